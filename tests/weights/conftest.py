"""Runs whose stored weights the tests read; no test changes them."""

import pytest
from training_runs import every, finished


@pytest.fixture(name="run")
def run_fixture(trained):
    """40 updates with five averages and a checkpoint at every fifth."""
    return trained


@pytest.fixture(scope="session", name="other")
def other_fixture(dataset, tmp_path_factory):
    """The same updates with other averages."""
    rules = ("f25", "f35", "uniform20", "uniform28")
    changes = every("40 steps")
    return finished(tmp_path_factory, "other", dataset, averages=rules, stop="4x", **changes)
