"""Run whose stored weights the tests read; no test changes it."""

import pytest


@pytest.fixture(scope="session", name="run")
def run_fixture(trained):
    """40 updates with five averages and a checkpoint at every fifth."""
    return trained
