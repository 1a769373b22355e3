"""Fleets: runs as one program, compared to the same runs trained alone."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from rich.console import Console
from training_runs import start

from anytime_jax import averaging
from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.checkpoints.manager import restore_checkpoint
from anytime_jax.checkpoints.metric_records import TIMINGS, read_records
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import fleet, preflight
from anytime_jax.training.progress import Display
from anytime_jax.training.step import make_program
from anytime_jax.training.trainer import Outcome, train_fleet

COMMON = {"averages": (6.25,), "eval__every": "4 steps", "checkpoint__every": "6 steps"}
OWN = {
    "seed": 5,
    "data__seed": 3,
    "schedule__peak": 3e-3,
    "optimizer__b1": 0.8,
    "optimizer__b2": 0.9,
    "optimizer__epsilon": 1e-6,
}
# They differ in all that may differ in a fleet, and one stops before the others.
RUNS = {
    "plain": {"stop": "8 steps"},
    "own": {"stop": "8 steps", **OWN},
    "short": {"stop": "5 steps", "seed": 7},
}


def member(run, dataset, **changes):
    """A run of a fleet: its configuration and its display."""
    config = small_run.config(run, dataset.path, **COMMON, **changes)
    return config, Display(config.clock, Console(file=io.StringIO(), width=200))


def train(members, dataset, **options):
    configs, displays = zip(*members, strict=True)
    return train_fleet(configs, small_run.mesh(), dataset, displays, **options)


def rows(run):
    """The records of a run without timings."""
    return [
        (row.step, {name: x for name, x in row.values.items() if name not in TIMINGS})
        for row in read_records(run)
    ]


def check_equal(one, other):
    """Equal records, to the rounding of sums in another order, and checkpoints of equal steps."""
    mine, theirs = rows(one), rows(other)
    assert [step for step, _ in mine] == [step for step, _ in theirs]
    for (_, values), (_, expected) in zip(mine, theirs, strict=True):
        assert values.keys() == expected.keys()
        for name, value in values.items():
            assert value == pytest.approx(expected[name], rel=2e-5, abs=1e-7), name
    assert saved_steps(one) == saved_steps(other)


@pytest.fixture(name="alone", scope="module")
def alone_fixture(dataset, tmp_path_factory):
    """Each of the runs, trained alone."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "make_program", small_run.program)
        for name, changes in RUNS.items():
            start(folder / name, dataset, **COMMON, **changes)
    return folder


@pytest.fixture(name="whole", scope="module")
def whole_fixture(dataset, tmp_path_factory):
    """The runs as a fleet, uninterrupted: folder, members, results."""
    folder = tmp_path_factory.mktemp("fleet")
    members = [member(folder / name, dataset, **changes) for name, changes in RUNS.items()]
    return folder, members, train(members, dataset)


@pytest.mark.parametrize("name", RUNS)
def test_fleet_equals_its_runs_trained_alone(name, alone, whole, dataset):
    folder, members, ended = whole
    i = list(RUNS).index(name)
    stop_step = int(RUNS[name]["stop"].split()[0])
    assert ended[i] == Outcome(stop_step, "stop")
    assert ended[i].samples == stop_step * members[i][0].batch_size
    check_equal(folder / name, alone / name)
    abstract = make_program(members[i][0], small_run.mesh()).abstract_state
    found, expected = (
        restore_checkpoint(path / name / "checkpoints" / str(stop_step), abstract)
        for path in (folder, alone)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        found.state,
        expected.state,
    )
    assert found.meta["samples"] == expected.meta["samples"]
    assert found.meta["config"]["seed"] == expected.meta["config"]["seed"]
    assert "validation" in members[i][1].console.file.getvalue()


def test_runs_of_fleet_differ(whole):
    """Or the comparison above would show nothing."""
    folder, members, _ = whole
    abstract = make_program(members[0][0], small_run.mesh()).abstract_state
    states = [
        restore_checkpoint(folder / x / "checkpoints" / "8", abstract).state
        for x in ("plain", "own")
    ]
    for tree in ("params", "averages"):
        one, other = (
            state.params if tree == "params" else averaging.averages(state.opt_state)["f6.25"]
            for state in states
        )
        assert float(jnp.abs(one["head"] - other["head"]).max()) > 1e-3


@pytest.mark.slow
def test_interrupted_fleet_resumes(dataset, tmp_path, alone):
    """Some of its runs, at their own steps; at last all of them are complete."""
    first = [member(tmp_path / name, dataset, **RUNS[name]) for name in ("own", "short")]
    calls = iter(range(100))
    ended = train(first, dataset, interrupted=lambda: next(calls) > 2)
    assert {how.reason for how in ended} == {"interrupted"}
    assert 0 < ended[0].step < 5
    later = [member(tmp_path / name, dataset, **changes) for name, changes in RUNS.items()]
    ended = train(later, dataset)
    assert [how.step for how in ended] == [8, 8, 5]
    for name in RUNS:
        (_, found), (_, expected) = rows(tmp_path / name)[-1], rows(alone / name)[-1]
        assert found["eval/last/loss"] == pytest.approx(expected["eval/last/loss"], rel=2e-5)
    assert train(later, dataset) == ended


def test_failing_run_leaves_others_alone(dataset, tmp_path, alone):
    """One has a learning rate that overflows float32 at once, one cannot start."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    broken = {"stop": "8 steps", "schedule__peak": 1e38}
    names = {"taken": RUNS["plain"], "plain": RUNS["plain"], "broken": broken}
    members = [member(tmp_path / name, dataset, **changes) for name, changes in names.items()]
    taken, good, bad = train(members, dataset)
    assert isinstance(taken, InputError)
    assert good == Outcome(8, "stop")
    assert isinstance(bad, RunError)
    assert "the last good checkpoint" in str(bad)
    check_equal(tmp_path / "plain", alone / "plain")


def test_differing_hyperparameters_become_data():
    """One number for each run where they differ, else the constant of a run alone."""
    assert fleet._as_data([0.9, 0.9]) == 0.9
    found = fleet._as_data([0.9, 0.95])
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([0.9, 0.95])
