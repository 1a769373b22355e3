"""Runs whose stored weights the tests read; no test changes them."""

import pytest
from training_runs import finished


@pytest.fixture(scope="session", name="run")
def run_fixture(dataset, tmp_path_factory):
    """40 updates with five averages and a checkpoint at every fifth."""
    return _trained(tmp_path_factory, "every", dataset, ("f6.25", "f12.5", "f25", "f50", "f100"), "5 steps")


@pytest.fixture(scope="session", name="other")
def other_fixture(dataset, tmp_path_factory):
    """The same updates with other averages."""
    rules = ("f25", "f35", "uniform20", "uniform28")
    return _trained(tmp_path_factory, "other", dataset, rules, "40 steps")


def _trained(factory, name, dataset, rules, every):
    changes = {"checkpoint__every": every, "checkpoint__keep_every": every}
    return finished(factory, name, dataset, averages=rules, stop="4x", **changes)
