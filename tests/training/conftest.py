"""Commands run in the process of the tests."""

from command_fixtures import command  # noqa: F401
