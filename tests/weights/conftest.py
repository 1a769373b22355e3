"""Runs whose stored weights the tests read; no test changes them."""

import pytest
from training_runs import finished


@pytest.fixture(scope="session", name="run")
def run_fixture(dataset, tmp_path_factory):
    """40 updates with five averages and a checkpoint at every fifth."""
    return _trained(tmp_path_factory, "every", dataset, (6.25, 12.5, 25.0, 50.0, 100.0), "5 steps")


@pytest.fixture(scope="session", name="other")
def other_fixture(dataset, tmp_path_factory):
    """The same updates with other averages."""
    rules = (25.0, 35.0, "uniform20", "uniform28")
    return _trained(tmp_path_factory, "other", dataset, rules, "40 steps")


def _trained(factory, name, dataset, rules, every):
    changes = {"checkpoint__every": every, "checkpoint__keep_every": every}
    return finished(factory, name, dataset, averages=rules, stop="4x", **changes)
