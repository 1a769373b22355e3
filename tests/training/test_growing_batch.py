"""Runs whose batch grows: stops on either side of the growth, and averages by hand."""

import numpy as np
import pytest
import small_run
from training_runs import bits, records, saved, start, update_by_hand

from anytime_jax import averaging
from anytime_jax.training.loop import Outcome

GROWN = {"batch_growth": (("9 steps", 16),), "averages": ("f6.25",)}
GROWN |= {"log__every": "1 steps", "checkpoint__every": "100 steps", "data__repeat": True}


@pytest.fixture(scope="module")
def trunk(dataset, tmp_path_factory):
    """15 updates in one go: 9 of 8 windows, 6 of 16."""
    run = tmp_path_factory.mktemp("grown") / "trunk"
    assert start(run, dataset, stop="15 steps", **GROWN)[0] == Outcome(15, "stop")
    return run


def test_resume_across_the_growth_is_bitwise_equal(trunk, dataset, tmp_path):
    for stop in ("9 steps", "11 steps", "15 steps"):
        start(tmp_path, dataset, stop=stop, **GROWN)
    assert bits(tmp_path, 15) == bits(trunk, 15)
    losses = [[x[2]["train/loss"] for x in records(run)] for run in (trunk, tmp_path)]
    assert losses[0] == losses[1]
    tokens = [row[1] for row in records(trunk)]
    assert tokens[-3:] == [8 * (8 * 9 + 16 * n) for n in (4, 5, 6)]


@pytest.mark.slow
def test_batches_and_averages_by_hand(trunk, dataset):
    """The average of 21 updates of 8 windows, of which the last 12 come in pairs."""
    config = small_run.config("unused", **GROWN)
    first = small_run.program(config, small_run.mesh()).init()
    iterates, last = [small_run.leaves(first.params)], first
    for last, _ in update_by_hand(first, config, dataset, [8] * 9 + [16] * 6):
        iterates.append(small_run.leaves(last.params))
    assert small_run.same_bits(last, saved(trunk, 15, config).state)
    kernel = averaging.GrowingWindow(6.25).kernel(21)
    kernel = [*kernel[:10], *(kernel[10::2] + kernel[11::2])]
    for name, average in small_run.leaves(averaging.averages(last.opt_state)["f6.25"]).items():
        expected = sum(weight * x[name] for weight, x in zip(kernel, iterates, strict=True))
        np.testing.assert_allclose(average, expected, atol=1e-6)
