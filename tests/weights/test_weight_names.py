"""Names of weights, against sums over the iterates of a run."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import small_run
from training_runs import update_by_hand

from anytime_jax.averaging import GrowingWindow, Uniform
from anytime_jax.errors import InputError
from anytime_jax.weights.saved_run import load_weights, open_saved_run
from anytime_jax.weights.weight_names import SumLimits, format_sum, parse

ANY = SumLimits(kernel_error=1.0)


@functools.cache
def load(path, name, limits=ANY, step="latest"):
    run = open_saved_run(path, step)
    return load_weights(run, parse(run, name, limits))


def distance(left, right):
    """Norm of the difference of two trees."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return np.sqrt(sum(np.square(np.float64(x) - np.float64(y)).sum() for x, y in pairs))


def test_f_of_a_stored_window_is_that_average(trained):
    assert parse(open_saved_run(trained), "f=25", ANY) == parse(open_saved_run(trained), "f25", ANY)


def test_f_counts_what_the_stored_windows_count(trained):
    """Where the batch grows: a window next to a stored one has nearly its kernel."""
    stored = open_saved_run(trained)
    changes = {"averages": stored.config.averages, "batch_growth": (("1x", 64),)}
    grown = dataclasses.replace(stored, config=small_run.config(trained, **changes))
    assert grown.times[-1] > stored.times[-1]
    assert grown.growing_windows == stored.growing_windows
    weighted_sum = parse(grown, "f=25.01", SumLimits(0.01, checkpoints=1))
    assert weighted_sum.kernel_error < 0.001


@pytest.fixture(scope="module")
def iterates(trained, dataset):
    """The weights of the run after 0, 1, ..., 40 updates."""
    config = small_run.config(trained, averages=open_saved_run(trained).config.averages)
    first = small_run.program(config, small_run.mesh()).init()
    trees = [jax.device_get(first.params)]
    for state, _ in update_by_hand(first, config, dataset, [small_run.BATCH] * 40):
        trees.append(jax.device_get(state.params))
    assert small_run.same_bits(trees[-1], load(trained, "last"))
    return trees


@pytest.mark.parametrize(
    ("name", "rule", "bound"),
    [
        ("f=35", GrowingWindow(35.0), 0.12),
        ("tail:0.3", Uniform(28), 0.12),
    ],
)
def test_post_hoc_average_is_near_the_sum_over_iterates(trained, iterates, name, rule, bound):
    """Relative to the distance between that sum and the nearest stored average."""
    kernel = rule.kernel(40)
    exact = jax.tree.map(lambda *leaves: np.tensordot(kernel, leaves, axes=1), *iterates)
    nearest = min(
        distance(load(trained, label), exact) for label in open_saved_run(trained).growing_windows
    )
    limits = SumLimits(kernel_error=1.0, checkpoints=8)
    assert distance(load(trained, name, limits), exact) < bound * nearest


def test_mix_is_the_sum_of_its_terms(trained):
    mixed = load(trained, 'mix:{"f25": 0.75, "last@20": 0.25}')
    parts = load(trained, "f25")["head"], load(trained, "last", step="20")["head"]
    np.testing.assert_allclose(mixed["head"], 0.75 * parts[0] + 0.25 * parts[1], atol=1e-7)


def test_merge_uses_live_weights(trained):
    live = [load(trained, "last", step=str(s))["head"] for s in (20, 30, 35, 36, 40)]
    np.testing.assert_allclose(
        load(trained, "merge:3")["head"], np.mean(live[2:], axis=0), atol=1e-7
    )
    weighted_sum = parse(open_saved_run(trained), "merge:1-sqrt:0.5", ANY)
    assert [part.label for part in weighted_sum.parts] == ["last"] * len(weighted_sum.parts)
    assert sum(weighted_sum.coefficients) == pytest.approx(1)
    assert weighted_sum.coefficients[0] > weighted_sum.coefficients[-1] > 0


def test_smaller_error_limit_uses_more_checkpoints(trained):
    saved = open_saved_run(trained)
    one = parse(saved, "f=35", SumLimits(checkpoints=1)).kernel_error
    weighted_sum = parse(saved, "f=35", SumLimits(kernel_error=one / 2, checkpoints=4))
    assert weighted_sum.kernel_error <= one / 2
    assert len({x.step for x in weighted_sum.parts}) > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f30", r"'f30'.* last, f6\.25, "),
        ("f=x", "'x'"),
        ("f=nan", "f = nan"),
        ("f=1", "--max-error"),
        ("tail:0.3", "step 28.*--max-error"),
        ("tail:1.5", r"fraction = 1\.5"),
        ("mix:{", "JSON"),
        ('mix:{"f25": 0.5}', "sum to 0.5"),
        ('mix:{"f25": 0.5, "f25": 1}', "given twice"),
        ('mix:["f25"]', "JSON"),
        ('mix:{"f25": 1e5, "last": -99999}', "100000"),
        ('mix:{"f25@7": 1}', "'f25@7'"),
        ("merge:1", "merge:1"),
        ("merge:steep:0.1", "merge:steep:0.1"),
        ("merge:linear:0.01", "step 39"),
    ],
)
def test_resolve_rejects(trained, name, message):
    with pytest.raises(InputError, match=message):
        parse(open_saved_run(trained), name, SumLimits(checkpoints=1))


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ('mix:{"f25": 0.75, "last@20": 0.25}', "+0.75 f25@40 +0.25 last@20"),
        ('mix:{"f25": 0.75, "f25@40": 0.25}', "f25@40"),  # adds terms of the same weights
    ],
)
def test_describe_lists_parts_with_coefficients(trained, name, description):
    assert format_sum(parse(open_saved_run(trained), name, ANY)) == description
