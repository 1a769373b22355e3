"""Runs of every kind of the laboratory's optimizers: resumed, branched, read out, sharded."""

import numpy as np
import optimizer_runs
import pytest
from lab_optimizers import KINDS, kind_parameters, optimizer
from optimizer_runs import COMMON, CONSTANT, stored
from training_runs import finished, records

from anytime_jax import api
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.weight_names import SumLimits

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
    optimizer_runs.check_resumed(changes_of(kind), trunk, dataset, tmp_path, EXPECTED[kind][0])


def test_branch_equals_run_that_decays_there(kind, trunk, dataset, tmp_path):
    optimizer_runs.check_branch(changes_of(kind), trunk, dataset, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_any_weight_decay_has_the_same_state(kind):
    optimizer_runs.check_state_of_any_decay(optimizer, kind)


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
    run = saved_run.open_saved_run(trunk, "10")
    assert sorted(run.readouts) == EXPECTED[kind][0]
    for label, loss in api.evaluate(trunk, step=10).items():
        assert loss == pytest.approx(recorded[10][f"eval/{label}/loss"], rel=1e-6)
    if run.readouts:
        for label, expected in readouts_by_hand(kind, trunk, 10).items():
            weighted_sum = weight_names.parse(run, label, SumLimits())
            params = flatten_by_name(saved_run.load_weights(run, weighted_sum))
            assert params.keys() == expected.keys()
            for name, array in params.items():
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_split_like_parameters(kind):
    optimizer_runs.check_split(changes_of(kind), EXPECTED[kind][1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eight_devices_train_like_one(kind, dataset, tmp_path):
    optimizer_runs.check_eight_devices(changes_of(kind), dataset, tmp_path)
