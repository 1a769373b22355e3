"""Runs of every kind of the laboratory's optimizers: resumed, branched, read out, sharded."""

import jax
import numpy as np
import pytest
import small_run
from lab_optimizers import KINDS, kind_parameters, optimizer
from training_runs import after, bits, finished, records, start

from anytime_jax import api
from anytime_jax.checkpoints import checkpoint_reader
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.training import step
from anytime_jax.training.loop import Outcome
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.weight_names import MixtureLimits

CONSTANT = {"kind": "constant", "peak": 1e-2, "warmup": "3 steps"}
DECAY = {"decay__horizon": "2x", "decay__floor": 0.1, "stop": "horizon"}
COMMON = {"averages": ("f25",), "checkpoint__every": "100 steps", "log__every": "1 steps"}
# Read-outs, and trees of matrices in the state besides the average.
EXPECTED = {
    "normuon": ([], 1),
    "amuse": (["x"], 2),
    "gpa": (["x"], 3),
    "gpa_muon": (["x"], 2),
    "pace": (["ema"], 3),
    "ema_nesterov": (["ema", "theta"], 3),
    "ema_nesterov_muon": (["ema", "theta"], 2),
}


def changes_of(kind, **changes):
    return {"schedule": CONSTANT, **COMMON, **optimizer(kind), **changes}


@pytest.fixture(scope="module", params=kind_parameters())
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trunk(kind, dataset, tmp_path_factory):
    """A constant run to 2x, 20 updates: milestones 9, 10, 18, 20."""
    return finished(tmp_path_factory, f"trunk_{kind}", dataset, stop="2x", **changes_of(kind))


def test_stopped_and_resumed_run_equals_unbroken_one(kind, trunk, dataset, tmp_path):
    outcome, _ = start(tmp_path, dataset, after(13), stop="2x", **changes_of(kind))
    assert outcome == Outcome(13, "interrupted")
    start(tmp_path, dataset, stop="2x", **changes_of(kind))
    assert bits(tmp_path, 20) == bits(trunk, 20)
    assert records(tmp_path) == records(trunk)
    labels = {name for _, _, values in records(trunk) for name in values if "eval/" in name}
    assert labels == {f"eval/{label}/loss" for label in ("last", "f25", *EXPECTED[kind][0])}
    losses = {step: values["train/loss"] for step, _, values in records(trunk)}
    assert losses[20] < losses[1] - 0.3  # it learned


def test_branch_equals_run_that_decays_there(kind, trunk, dataset, tmp_path):
    for name, branch in (("branch", {"branch__from_run": str(trunk)}), ("whole", {})):
        start(tmp_path / name, dataset, **changes_of(kind, **DECAY, **branch))
    assert bits(tmp_path / "branch", 20) == bits(tmp_path / "whole", 20)
    assert bits(tmp_path / "branch", 20) != bits(trunk, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_any_weight_decay_has_the_same_state(kind):
    """So that a branch may change it."""
    found = set()
    for decay in (0.0, 0.1, "g2"):
        changes = optimizer(kind, weight_decay=decay, decay_mask="matrices")
        config = small_run.config("run", schedule=CONSTANT, **changes)
        state = step.make_program(config, small_run.mesh()).abstract_state.opt_state
        found.add(tuple(flatten_by_name(state)))
    assert len(found) == 1


def stored(run, step, item, field=""):
    """The arrays of a checkpoint, or of a field of its optimizer's state, by parameter; float64."""
    path = run / "checkpoints" / str(step)
    names = {
        name: name.rpartition(f"/{field}/")[2] if field else name
        for name in checkpoint_reader.read_meta(path)["checksums"][item]
        if f"/{field}/" in name or not field
    }
    arrays = checkpoint_reader.read_arrays(path, item, dict.fromkeys(names))
    return {names[name]: array.astype(np.float64) for name, array in arrays.items()}


def interpolation_by_hand(kind, step):
    if kind != "amuse":
        return 0.9
    squares = np.square([0.1, 0.4, 0.7, *np.ones(step - 3)])
    odds = [squares[t - 1] / squares[: t - 1].sum() for t in (3, step)]  # of c_t
    return 1 - odds[1] / odds[0] * (1 - 0.9)  # it rises from the end of the warmup, 3


def readouts_by_hand(kind, run, step):
    """The read-outs of a checkpoint in float64, by the formulas of the papers."""
    y = stored(run, step, "params")
    if kind == "amuse" or "gpa" in kind:
        b, z = interpolation_by_hand(kind, step), stored(run, step, "opt", "z")
        return {"x": {name: (y[name] - (1 - b) * z[name]) / b for name in y}}
    ema = stored(run, step, "opt", "ema")
    if kind == "pace":
        return {"ema": ema}
    kappa = 0.5 * (1 - 0.9) / 0.9  # y = theta + kappa (theta - ema)
    theta = {name: (y[name] + kappa * ema[name]) / (1 + kappa) for name in y}
    return {"ema": ema, "theta": theta}


def test_recorded_losses_are_those_of_weights_in_the_checkpoint(kind, trunk):
    recorded = {step: values for step, _, values in records(trunk)}
    run = saved_run.open_run(trunk, "10")
    assert sorted(run.readouts) == EXPECTED[kind][0]
    for label, loss in api.evaluate(trunk, step=10).items():
        assert loss == pytest.approx(recorded[10][f"eval/{label}/loss"], rel=1e-6)
    if run.readouts:
        for label, expected in readouts_by_hand(kind, trunk, 10).items():
            mixture = weight_names.resolve(run, label, MixtureLimits())
            params = flatten_by_name(saved_run.load_weights(run, mixture))
            assert params.keys() == expected.keys()
            for name, array in params.items():
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_split_like_parameters(kind):
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
    config = small_run.config("unused", **changes_of(kind))
    state = small_run.program(config, mesh).abstract_state
    params = {
        str(path[-1].key): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
    }
    copies = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
        name = getattr(path[-1], "key", None)
        if name in params and leaf.shape == params[name].shape:
            assert leaf.sharding == params[name].sharding
            copies += name == "qkv"
        else:  # counts, scales of norms, and mean squares of neurons
            assert leaf.size <= 64 or not leaf.sharding.is_fully_replicated
    assert copies == EXPECTED[kind][1] + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eight_devices_train_like_one(kind, dataset, tmp_path):
    changes = changes_of(kind, stop="6 steps", eval__every="3 steps")
    start(tmp_path / "one", dataset, **changes)
    start(tmp_path / "eight", dataset, mesh=small_run.mesh(8, data=2, fsdp=2, tensor=2), **changes)
    for row, expected in zip(records(tmp_path / "eight"), records(tmp_path / "one"), strict=True):
        assert row[:2] == expected[:2]
        assert row[2] == pytest.approx(expected[2], rel=1e-4, abs=1e-6)
