"""Post-hoc averages, against explicit sums over iterates and closed forms."""

import math

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import FixedDecay, GrowingWindow, Late, Uniform
from anytime_jax.weights.post_hoc_averages import (
    DecayedRate,
    LastFraction,
    StoredWeights,
    WeightedSum,
    fit_sum,
    merge_live_weights,
)

STORED = (6.25, 12.5, 25.0, 50.0, 100.0)
T = 4000


def stored(*steps, f=STORED):
    return [StoredWeights(t, f"f{x:g}", GrowingWindow(x)) for t in steps for x in f]


def kernel_of(mix, t):
    """The weight of every iterate in a weighted sum, float64[t + 1]."""
    return mix.coefficients @ np.stack([part.kernel(t) for part in mix.parts])


def error_of(mix, target):
    goal = target.kernel(T)
    return np.linalg.norm(kernel_of(mix, T) - goal) / np.linalg.norm(goal)


def iterates(count):
    """A random walk with noise, float64[count + 1, 5]."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count + 1, 5)).cumsum(axis=0) + rng.normal(size=(count + 1, 5))


def average(walk, rule, since=0):
    """The recursion itself, in float64."""
    value = walk[since]
    for t in range(since + 1, len(walk)):
        value = value + rule.evaluate(t) * (walk[t] - value)
    return value


@pytest.mark.parametrize(
    ("rule", "since"), [(GrowingWindow(25.0), 0), (FixedDecay(0.9), 40), (Uniform(3), 40)]
)
def test_kernel_equals_the_recursion(rule, since):
    """That of an earlier checkpoint ignores the iterates after it."""
    walk = iterates(150)
    rule_here = Late(rule, since) if since else rule
    kernel = StoredWeights(120, "x", rule_here).kernel(150)
    assert kernel.sum() == pytest.approx(1)
    np.testing.assert_allclose(kernel @ walk, average(walk[:121], rule, since), rtol=1e-9)


def test_inner_products_match_the_closed_form():
    """c d / (c + d - 1) * t1^(d - 1) / t2^d: for continuous time."""
    t1, t2, f, g = 30_000, 40_000, 6.25, 25.0
    c, d = f * math.log(2), g * math.log(2)
    left, right = (
        StoredWeights(t, "x", GrowingWindow(x)).kernel(t2) for t, x in ((t1, f), (t2, g))
    )
    assert left @ right == pytest.approx(c * d / (c + d - 1) * t1 ** (d - 1) / t2**d, rel=3e-3)


@pytest.mark.parametrize(
    ("steps", "points", "low", "high"), [([T], 40, 0.011, 0.0125), ([T - 1000, T], 9, 0, 0.0062)]
)
def test_every_f_between_stored_ones_has_a_small_error(steps, points, low, high):
    fs = np.geomspace(6.25, 100, points)
    fits = [fit_sum(stored(*steps), GrowingWindow(f), T, len(steps)) for f in fs]
    assert low < max(mix.kernel_error for mix in fits) < high


@pytest.mark.parametrize("target", [GrowingWindow(35.0), GrowingWindow(3.0), LastFraction(0.3)])
def test_kernel_error_is_the_explicit_norm_and_minimal(target):
    mix = fit_sum(stored(T // 2, T), target, T, 2)
    assert sum(mix.coefficients) == pytest.approx(1)
    assert mix.kernel_error == pytest.approx(error_of(mix, target), rel=1e-4)
    rng = np.random.default_rng(1)
    for _ in range(50):
        step = rng.normal(size=len(mix.parts)) * 1e-3
        moved = WeightedSum(mix.parts, tuple(np.array(mix.coefficients) + step - step.mean()))
        assert error_of(moved, target) >= mix.kernel_error


def test_tail_needs_several_checkpoints():
    assert 0.25 < fit_sum(stored(T), LastFraction(0.3), T, 1).kernel_error < 0.30
    many = stored(*range(T // 20, T + 1, T // 20))
    assert fit_sum(many, LastFraction(0.3), T, 10).kernel_error < 0.05


def test_fit_sum_stops_at_the_tolerance():
    averages = stored(T // 4, T // 2, T)
    assert {x.step for x in fit_sum(averages, GrowingWindow(35.0), T, 3, 0.02).parts} == {T}
    assert len({x.step for x in fit_sum(averages, GrowingWindow(3.0), T, 3).parts}) == 3


def test_fit_sum_ignores_live_weights():
    live = [StoredWeights(T, "last")]
    assert fit_sum([*live, *stored(T)], GrowingWindow(30.0), T, 1).parts == tuple(stored(T))
    with pytest.raises(ValueError, match="average"):
        fit_sum(live, GrowingWindow(30.0), T, 1)


@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
def test_decayed_rate_equals_scaled_updates(shape):
    """The definition, update by update: the same updates, scaled as by a decay from 80%."""
    walk = iterates(100)
    decay = schedules.Decay(schedules.constant(1.0), 80, 100, floor=0.0, shape=shape)
    value = walk[0]
    for t in range(1, 101):
        value = value + decay.evaluate(t - 1) * (walk[t] - walk[t - 1])
    np.testing.assert_allclose(DecayedRate(0.2, shape).kernel(100) @ walk, value, rtol=1e-9)


def test_linear_decay_equals_a_tail():
    np.testing.assert_allclose(
        DecayedRate(0.1, "linear").kernel(500), LastFraction(0.1).kernel(500), atol=1e-12
    )


def test_merge_interpolates_between_checkpoints():
    steps = [60, 70, 90, 100]
    walk = np.interp(np.arange(101), steps, [3.0, 1.0, 4.0, 1.5])  # linear between them
    target = DecayedRate(0.4, "1-sqrt")
    mix = merge_live_weights([StoredWeights(s, "last") for s in steps], target, 100)
    assert sum(mix.coefficients) == pytest.approx(1)
    assert kernel_of(mix, 100) @ walk == pytest.approx(target.kernel(100) @ walk)


@pytest.mark.parametrize("fraction", [0, 1.5, "0.3"])
def test_fraction_is_validated(fraction):
    with pytest.raises(ValueError, match="fraction = "):
        LastFraction(fraction)
    with pytest.raises(ValueError, match="fraction = "):
        DecayedRate(fraction, "linear").kernel(10)
