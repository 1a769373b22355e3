"""Fixtures of the tests of commands: commands in the process of the tests, and a saved run."""

import pytest
from run_command import run_command
from training_runs import finished

STORED = (6.25, 12.5, 25.0, 50.0, 100.0)


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
