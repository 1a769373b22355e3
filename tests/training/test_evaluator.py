"""Evaluator: against the plain mean over the same windows."""

from unittest import mock

import jax
import numpy as np
import pytest
import small_run
from float64_losses import token_losses

from anytime_jax import averaging
from anytime_jax.data.windows import Windows
from anytime_jax.training.evaluator import Evaluator, Evaluators, weight_trees

ALL = 75  # windows; the split has some more
CONFIG = small_run.config("unused")


@pytest.fixture(scope="module")
def windows(dataset):
    order = {"seed": 0, "repeat": True, "shuffle": False}
    return Windows.from_dataset(dataset, "validation", length=small_run.LENGTH, **order)


@pytest.fixture(scope="module")
def state():
    """Three different weight trees."""
    first = small_run.program(CONFIG, small_run.mesh()).init()
    scaled = {
        label: jax.tree.map(lambda x, factor=factor: factor * x, first.params)
        for label, factor in (("f6.25", 0.5), ("f25", 2.0))
    }
    return first._replace(opt_state=averaging.replace_averages(first.opt_state, scaled))


def evaluator(windows, count=10, mesh=None):
    program, dataset = small_run.program(CONFIG, mesh or small_run.mesh()), mock.Mock(path="data")
    return Evaluator(program, dataset, windows, count, 8)


def evaluate(evaluator, state):
    losses = evaluator.position_losses(weight_trees(state))
    return {label: losses_L.mean() for label, losses_L in losses.items()}


@pytest.fixture(scope="module")
def plain_losses(windows, state):
    """The losses of every window and token, by tree."""
    tokens = windows.batch(0, ALL)
    trees = {"last": state.params, **averaging.averages(state.opt_state)}
    return {label: token_losses(CONFIG.model, tree, tokens) for label, tree in trees.items()}


@pytest.mark.parametrize("count", [3, ALL])  # less than a batch, and many and a part
def test_losses_are_the_plain_mean_of_each_tree(windows, state, plain_losses, count):
    recording = mock.Mock(wraps=windows)
    recorded = evaluator(recording, count)
    actual = evaluate(recorded, state)
    expected = {label: losses[:count].mean() for label, losses in plain_losses.items()}
    assert actual == pytest.approx(expected, rel=1e-6)
    assert len({round(loss, 3) for loss in actual.values()}) == 3
    by_position = recorded.position_losses({"last": state.params})["last"]
    np.testing.assert_allclose(by_position, plain_losses["last"][:count].mean(axis=0), rtol=1e-5)
    recording.batch.reset_mock()
    evaluate(recorded, state)
    # All trees share one pass, and another one repeats it.
    assert [call.args[0] for call in recording.batch.call_args_list] == [*range(0, count, 8)]
    assert evaluate(recorded, state) == actual
    of_windows = recorded.window_losses(state.params)
    np.testing.assert_allclose(of_windows, plain_losses["last"][:count].mean(axis=1), rtol=1e-5)


def test_each_range_of_positions_has_its_mean(windows, state, plain_losses):
    by_set = {"a": evaluator(windows, ALL), "b": evaluator(windows, 3)}
    found = Evaluators(by_set, {"a": 1.0}, (2, 5, 99)).losses({"last": state.params})
    mean = plain_losses["last"].mean(axis=0)
    ranges = {"loss": mean, "loss_1_to_2": mean[:2], "loss_3_to_5": mean[2:5]}
    ranges[f"loss_6_to_{small_run.LENGTH}"] = mean[5:]
    expected = {name: losses.mean() for name, losses in ranges.items()}
    for prefix in ("last", "a/last"):
        of_prefix = {name: found[f"{prefix}/{name}"] for name in ranges}
        assert of_prefix == pytest.approx(expected, rel=1e-5)
    assert len(found) == 3 * len(ranges)


def test_live_weights_come_first_then_averages_by_number(windows, state):
    labels = ("f100", "uniform", "f6.25", "ema0.99", "f25", "ema0.9")
    trees = dict.fromkeys(labels, state.params)
    many = state._replace(opt_state=averaging.replace_averages(state.opt_state, trees))
    expected = ["last", "ema0.9", "ema0.99", "f6.25", "f25", "f100", "uniform"]
    assert list(evaluate(evaluator(windows), many)) == expected


def test_another_tree_or_pass_compiles_nothing(windows, state, compilations):
    repeated = evaluator(windows)
    evaluate(repeated, state)
    repeated.window_losses(state.params)
    with compilations() as count:
        evaluate(repeated, state)
        repeated.window_losses(state.params)
        evaluate(repeated, state._replace(params=averaging.averages(state.opt_state)["f25"]))
    assert count() == 0
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_eight_devices_match_one(windows, state):
    mesh = small_run.mesh(8, fsdp=4, tensor=2)
    abstract = small_run.program(CONFIG, mesh).abstract_state
    sharded = jax.device_put(state, jax.tree.map(lambda x: x.sharding, abstract))
    expected = pytest.approx(evaluate(evaluator(windows), state), rel=1e-6)
    assert evaluate(evaluator(windows, mesh=mesh), sharded) == expected
