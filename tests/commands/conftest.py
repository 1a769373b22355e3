"""Commands run in the process of the tests."""

from command_fixtures import command, rejected  # noqa: F401
