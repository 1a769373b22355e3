"""Commands run in the process of the tests, and a saved run for them."""

from command_fixtures import command, rejected, trained_fixture  # noqa: F401
