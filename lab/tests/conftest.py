"""Plugins of the tests of the laboratory: the shared ones, and its own."""

pytest_plugins = ["shared_fixtures", "command_fixtures", "lab_fixtures"]
