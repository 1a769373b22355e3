"""Fixtures of the tests of commands: commands in the process of the tests, and a saved run."""

import pytest
from run_command import run_command
from training_runs import finished

STORED = ("f6.25", "f12.5", "f25", "f50", "f100")


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


@pytest.fixture(scope="session", name="trained")
def trained_fixture(dataset, tmp_path_factory):
    """A run of 40 updates with five averages; no test changes it."""
    return finished(tmp_path_factory, "trained", dataset, averages=STORED, stop="4x")
