"""Plugins of the tests of the trainer; tests/helpers has them, and lab/tests uses them too."""

pytest_plugins = ["shared_fixtures", "command_fixtures"]
