"""Runs whose stored weights the tests read."""

import pytest
from training_runs import start

STORED = (6.25, 12.5, 25.0, 50.0, 100.0)
OTHERS = (25.0, 35.0, "uniform20", "uniform28")


@pytest.fixture(scope="session", name="folder")
def folder_fixture(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(name="run")
def run_fixture(folder, dataset):
    """40 updates with five averages and a checkpoint at every fifth."""
    return _trained(folder / "run", dataset, STORED, every="5 steps")


@pytest.fixture(name="other")
def other_fixture(folder, dataset):
    """The same updates with other averages."""
    return _trained(folder / "other", dataset, OTHERS, every="40 steps")


def _trained(path, dataset, rules, every):
    if not path.exists():
        changes = {"checkpoint__every": every, "checkpoint__keep_every": every}
        start(path, dataset, averages=rules, stop="4x", **changes)
    return path
