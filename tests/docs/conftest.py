"""Fixtures of the tests of documentation."""

from command_fixtures import command  # noqa: F401
