"""Exact risks against a direct recursion, a dense one, and simulated SGD."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import FixedDecay, GrowingWindow, Uniform
from anytime_jax.weights.post_hoc_averages import LastFraction
from anytime_lab.theory.batches import GrowingBatch, sample_counts
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import excess_risk
from anytime_lab.theory.tracked_averages import Tail

AVERAGES = [Uniform(), Uniform(40), 6.25, 100.0, FixedDecay(0.9), Tail(30, 70), LastFraction(0.5)]
CHECKPOINTS = [1, 2, 7, 50, 99, 100, 200]


def rates(problem, steps=200):
    """One schedule of each kind, at a rate that suits the problem."""
    peak = 0.5 / problem.trace
    return [
        schedules.Power(peak, 0.0),
        schedules.Power(2 * peak, 0.5),
        schedules.Power(peak, 0.3, alpha=20.0),
        schedules.inverse_sqrt(peak, alpha=30.0, warmup=20),
        schedules.cosine(peak, steps, warmup=10),
        schedules.wsd(peak, steps, steps - 20),
    ]


def kernel(average, times, checkpoint):
    """The weights of all iterates in an average at a checkpoint; None if there is none.

    `times` has the samples after each update up to the checkpoint.
    """
    if not isinstance(average, Tail | LastFraction):
        return (GrowingWindow(average) if isinstance(average, float) else average).kernel(times)
    if isinstance(average, LastFraction):
        start = checkpoint - max(1, round(average.fraction * checkpoint))
    elif average.end == checkpoint:
        start = average.start - 1
    else:
        return None
    inside = np.diff(np.clip([0, *times], start, None), prepend=start)
    return inside / inside.sum() if inside.any() else np.eye(len(times) + 1)[-1]


# The direct recursion


def direct_risk(problem, schedule, averages, checkpoints, batch):
    """The risks of bias and noise, float64[2, labels, T], coordinate by coordinate.

    An average with the kernel k has the second moment sum_{s, t} k_s k_t E[e_s e_t], where
    E[e_s e_t] = E[e_s^2] (1 - eta_{s+1} lambda) ... (1 - eta_t lambda) for s <= t.
    """
    index = np.arange(1, problem.dimension + 1.0)
    lambdas = index**-problem.a
    times = list(sample_counts(batch, checkpoints[-1]))
    sizes = np.diff(times, prepend=0)
    etas = schedule.evaluate(times - sizes)
    out = np.full((2, 1 + len(averages), len(checkpoints)), np.nan)
    starts = index ** -(problem.b - problem.a), np.zeros_like(index)
    for channel, m in enumerate(starts):
        moments = [m]
        for eta, size in zip(etas, sizes, strict=True):
            coupling = (lambdas @ m + channel) / size
            m = ((1 - eta * lambdas) ** 2 + (eta * lambdas) ** 2 / size) * m
            m += eta**2 * lambdas * coupling
            moments.append(m)
        for at, checkpoint in enumerate(checkpoints):
            until = [x for x in times if x <= checkpoint]
            t = len(until)
            kernels = [np.eye(t + 1)[t], *(kernel(x, until, checkpoint) for x in averages)]
            for row, weights in enumerate(kernels):
                if weights is not None:
                    total = np.zeros_like(index)
                    later = np.zeros_like(index)  # sum over t > s of k_t (1 - eta_{s+1} lambda) ...
                    for s in reversed(range(t + 1)):
                        total += weights[s] * (weights[s] + 2 * later) * moments[s]
                        later = (1 - etas[s - 1] * lambdas) * (weights[s] + later)
                    out[channel, row, at] = lambdas @ total / 2
    return out


def compare_with_direct_recursion(problem, checkpoints, averages, runs, batches=None):
    """The risks of some runs, and their largest relative difference to the direct recursion."""
    batches = batches or [1] * len(runs)
    fast = excess_risk(problem, runs, averages, checkpoints, batches)
    direct = [
        direct_risk(problem, schedule, averages, checkpoints, batch)
        for schedule, batch in zip(runs, batches, strict=True)
    ]
    ours, exact = np.stack([fast.bias, fast.variance]), np.stack(direct, axis=2)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    return fast, np.nanmax(abs(ours - exact) / np.maximum(exact, 1e-300))  # 0 before an update


@pytest.mark.parametrize(("a", "b"), [(1.1, 2.2), (1.5, 1.5), (1.9, 3.8)])
def test_risk_equals_direct_recursion(a, b):
    problem = Problem(a, b, 1000)
    fast, worst = compare_with_direct_recursion(problem, CHECKPOINTS, AVERAGES, rates(problem))
    assert worst < 1e-11
    assert fast.error < 1e-11
    assert fast.labels == (
        "last", "uniform", "uniform40", "f6.25", "f100", "ema0.9", "tail30:100", "last50%",
    )  # fmt: skip
    tail = fast.bias[6, 0]
    assert [np.isnan(x) for x in tail] == [t != 99 for t in CHECKPOINTS]


def test_risk_of_runs_with_different_batches_equals_direct_recursion():
    problem, checkpoints = Problem(1.3, 2.4, 1000), [2, 7, 50, 99, 101, 200]
    batches = [1, GrowingBatch(0.5), GrowingBatch(1.0, alpha=8), 4, GrowingBatch(0.5), 30]
    averages = [Uniform(), Uniform(40), 6.25, FixedDecay(0.9), Tail(30, 70), LastFraction(0.5)]
    runs = rates(problem)
    fast, worst = compare_with_direct_recursion(problem, checkpoints, averages, runs, batches)
    assert worst < 1e-11
    assert fast.samples[0].tolist() == checkpoints
    assert fast.samples[3].tolist() == [0, 4, 48, 96, 100, 200]
    for run, batch in zip(fast.samples, batches, strict=True):
        times = sample_counts(batch, 200)
        assert run.tolist() == [max([0, *times[times <= x]]) for x in checkpoints]


@pytest.mark.parametrize(("a", "b"), [(1.1, 20.0), (20.0, 1.1)])
def test_risk_at_extreme_exponents(a, b):
    problem = Problem(a, b, 3000)
    _, worst = compare_with_direct_recursion(problem, [10, 150], [25.0], rates(problem)[:2])
    assert worst < 1e-11


@pytest.mark.parametrize(
    ("a", "b", "dimension", "checkpoints"),
    [
        (1.1, 1.1, 300, [50, 500, 5_000]),  # more updates than one call of `_advance` makes
        # More coordinates than are enumerated.
        pytest.param(1.5, 3.0, 100_000, [50, 400], marks=pytest.mark.slow),
        pytest.param(1.1, 2.2, 100_000, [50, 400], marks=pytest.mark.slow),
    ],
)
def test_risk_of_large_problems_equals_direct_recursion(a, b, dimension, checkpoints):
    problem = Problem(a, b, dimension)
    averages = [Uniform(), 6.25, 100.0, LastFraction(0.5)]
    runs = [schedules.Power(0.8 / problem.trace, gamma) for gamma in (0.0, 0.5)]
    fast, worst = compare_with_direct_recursion(problem, checkpoints, averages, runs)
    assert worst < 1e-10
    assert worst < 10 * fast.error + 1e-11


# A dense covariance, from a start that is not diagonal


def dense_covariance(hessian, target, etas, weights, noise, batches):
    """The covariance of the iterate mean with given weights, from those of the whole vector."""
    eye = np.eye(len(target))
    covariance = [np.outer(target, target)]
    for eta, batch in zip(etas, batches, strict=True):
        s = covariance[-1]
        pairs = hessian @ s @ hessian
        fourth = 2 * pairs + np.trace(hessian @ s) * hessian
        square = (1 - 1 / batch) * pairs + fourth / batch
        s = s - eta * (hessian @ s + s @ hessian) + eta**2 * square
        covariance.append(s + eta**2 * noise / batch * hessian)
    total = np.zeros_like(hessian)
    for s, covariance_s in enumerate(covariance):
        cross = covariance_s
        total += weights[s] ** 2 * cross
        for t in range(s + 1, len(covariance)):
            cross = (eye - etas[t - 1] * hessian) @ cross
            total += weights[s] * weights[t] * (cross + cross.T)
    return total


@pytest.mark.parametrize(
    ("rule", "batch"), [(Uniform(), 1), (GrowingWindow(6.25), GrowingBatch(0.4))]
)
def test_risk_equals_dense_covariance_recursion(rule, batch):
    problem = Problem(1.2, 1.9, 5)
    index = np.arange(1, 6.0)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    hessian = turn @ np.diag(index**-1.2) @ turn.T
    target = turn @ index ** -(0.7 / 2)
    times = sample_counts(batch, 40)
    sizes = np.diff(times, prepend=0)
    for schedule in rates(problem, steps=40):
        etas = schedule.evaluate(times - sizes)
        kernels = np.eye(len(times) + 1)[-1], rule.kernel(times)
        covariances = [
            dense_covariance(hessian, target, etas, weights, 0.3, sizes) for weights in kernels
        ]
        for power, norm in ((1, hessian), (2, hessian @ hessian)):
            risks = excess_risk(problem, [schedule], [rule], [40], batch, power=power)
            expected = [0.5 * np.trace(norm @ covariance) for covariance in covariances]
            np.testing.assert_allclose(risks.excess(0.3)[:, 0, 0], expected, rtol=1e-12)


# Simulated SGD


@pytest.mark.parametrize("batch", [1, 4, GrowingBatch(0.5)], ids=str)
def test_risk_equals_simulated_sgd(batch):
    dimension, samples, runs, noise = 12, 160, 6_000, 0.2
    problem = Problem(1.3, 2.0, dimension)
    index = np.arange(1, dimension + 1.0)
    lambdas, target = index**-1.3, index ** -(0.7 / 2)
    schedule = schedules.Power(0.6 / problem.trace, 0.5, alpha=10.0)
    random = np.random.default_rng(1)
    w = np.zeros((runs, dimension))
    times = sample_counts(batch, samples)
    sizes = np.diff(times, prepend=0)
    rules = Uniform(), GrowingWindow(6.25)
    kernels = np.stack([np.eye(len(times) + 1)[-1], *(rule.kernel(times) for rule in rules)])
    means = np.zeros((3, *w.shape))
    for t, (eta, size) in enumerate(zip(schedule.evaluate(times - sizes), sizes, strict=True), 1):
        x = random.normal(size=(size, runs, dimension)) * np.sqrt(lambdas)
        residual = ((w - target) * x).sum(-1) + math.sqrt(noise) * random.normal(size=(size, runs))
        w = w - eta * (residual[..., None] * x).mean(0)
        means += kernels[:, t, None, None] * w
    risks = excess_risk(problem, [schedule], rules, [samples], batch).excess(noise)[:, 0, 0]
    for mean, risk in zip(means, risks, strict=True):
        losses = 0.5 * ((mean - target) ** 2 @ lambdas)
        error = losses.std() / math.sqrt(runs)
        assert error < 0.03 * risk
        assert abs(losses.mean() - risk) < 4 * error


# Limits


def test_diverged_runs_have_infinite_risk():
    problem = Problem(1.5, 2.0, 500)
    runs = [schedules.Power(c / problem.trace, 0.0) for c in (0.3, 5.0)]
    risks = excess_risk(problem, runs, [Uniform(), LastFraction(0.5)], [10, 5000])
    risk = risks.excess(0.0)
    assert np.isfinite(risk[:, 0]).all()
    assert np.isfinite(risk[:, 1, 0]).all()
    assert np.isinf(risk[:, 1, 1]).all()
    assert np.isinf(risks.excess(0.1)[:, 1, 1]).all()
    assert risks.error < 1e-10


def test_error_is_unknown_if_all_runs_diverged():
    problem = Problem(1.5, 2.0, 500)
    risks = excess_risk(problem, [schedules.Power(5 / problem.trace, 0.0)], [25.0], [10, 5000])
    assert np.isinf(risks.excess(0.1)[:, 0, 1]).all()
    assert np.isnan(risks.error)


def test_precision_outside_is_unchanged():
    excess_risk(Problem(1.5, 2.0), [schedules.Power(0.1, 0.0)], [], [3])
    assert jnp.zeros(3).dtype == jnp.float32
    assert not jax.config.read("jax_enable_x64")


def risk(checkpoints=(10,), averages=(), schedule=None, noise=0.1, batches=1, **problem):
    problem = Problem(**{"a": 1.5, "b": 2.0, "dimension": 50, **problem})
    schedule = schedule or schedules.Power(0.1, 0.0)
    return excess_risk(problem, [schedule], averages, checkpoints, batches).excess(noise)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": 1.0}, "a = "),
        ({"b": 0.9}, "b = "),
        ({"dimension": 0}, "dimension = "),
        ({"batches": 1.5}, "a batch = "),
        ({"batches": [1, 2]}, "batches = "),
        ({"noise": 1e308}, "noise = "),
        ({"checkpoints": [5, 5]}, "checkpoints = "),
        ({"checkpoints": [0, 5]}, "a checkpoint = "),
        ({"averages": [Tail(1, 5)]}, "tail1:6"),
        ({"averages": [6.25, 6.25]}, "'f6.25'"),
        ({"averages": ["f25"]}, "averaging rule = "),
        ({"schedule": schedules.cosine(0.1, 9)}, "checkpoint 10"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        risk(**changes)
