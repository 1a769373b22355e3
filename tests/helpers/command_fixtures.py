"""Fixtures of the tests of commands, which run in the process of the tests."""

import pytest
from run_command import run_command


@pytest.fixture
def command(capsys):
    """Runs a command; returns its exit status, output and error output."""

    def run(module, *argv):
        capsys.readouterr()
        status = run_command(module, argv)
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def rejected(command):
    """Runs a command with bad input; returns its one line of error output."""

    def run(module, *argv):
        status, out, err = command(module, *argv)
        assert (status, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run
