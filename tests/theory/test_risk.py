"""Exact risks against a direct recursion, a dense one, and simulated SGD."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import FixedDecay, GrowingWindow, Uniform
from anytime_jax.theory.direct_recursion import direct_risk
from anytime_jax.theory.risk import excess_risk
from anytime_jax.theory.spectrum import Problem, Quadrature
from anytime_jax.theory.tail_averages import Tail
from anytime_jax.weights.post_hoc import LastFraction

AVERAGES = [Uniform(), Uniform(40), 6.25, 100.0, FixedDecay(0.9), Tail(30, 70), LastFraction(0.5)]
CHECKPOINTS = [1, 2, 7, 50, 99, 100, 200]


def rates(problem, steps=200):
    """One schedule of each kind, at a rate that suits the problem."""
    peak = 0.5 / problem.trace
    return [
        schedules.Power(peak, 0.0),
        schedules.Power(2 * peak, 0.5),
        schedules.Power(peak, 0.3, alpha=20.0),
        schedules.inverse_sqrt(peak, alpha=30.0, warmup_steps=20),
        schedules.cosine(peak, steps, warmup_steps=10),
        schedules.wsd(peak, steps - 20, steps),
    ]


# The quadrature


@pytest.mark.parametrize("dimension", [500_000, math.inf])
@pytest.mark.parametrize(("a", "b"), [(1.1, 1.1), (1.1, 2.2), (1.5, 1.7), (1.9, 3.8), (2.5, 1.3)])
def test_sums_over_all_coordinates(a, b, dimension):
    problem = Problem(a, b, dimension)
    nodes = Quadrature().nodes(problem, reach=75_000.0)
    assert len(nodes.index) <= 64
    index = np.arange(1, 500_001.0)
    lambdas = index**-a
    for power in (b, 2 * a):  # what multiplies the target, and the noise
        factors = index**-power
        beyond = [problem.power_sum(power + n * a, 500_000) for n in range(8)]
        for time in (0.0, 1.0, 30.0, 1e3, 2e4, 75_000.0):
            found = nodes.weight @ (nodes.index**-power * np.exp(-time * nodes.index**-a))
            wanted = factors @ np.exp(-time * lambdas)
            if dimension == math.inf:  # the rest, where the exponential is its first terms
                wanted += sum((-time) ** n / math.factorial(n) * x for n, x in enumerate(beyond))
            assert found == pytest.approx(wanted, rel=1e-9)


def test_sums_of_powers():
    index = np.arange(1, 1001.0)
    assert Problem(1.5, 2.0, 1000).trace == pytest.approx(math.fsum(index**-1.5), rel=1e-13)
    assert Problem(1.5, 2.0).power_sum(2.0) == pytest.approx(math.pi**2 / 6, rel=1e-14)
    assert Problem(1.5, 2.0, 10).power_sum(2.0, after=10) == 0


def test_few_coordinates_are_taken_one_by_one():
    nodes = Quadrature().nodes(Problem(1.5, 2.0, 64), reach=1e5)
    np.testing.assert_array_equal(nodes.index, np.arange(1, 65))
    np.testing.assert_array_equal(nodes.weight, 1)


# The direct recursion


def agree(problem, checkpoints, averages, given):
    fast = excess_risk(problem, given, averages, checkpoints)
    worst = 0.0
    for k, schedule in enumerate(given):
        direct = direct_risk(problem, schedule, averages, checkpoints)
        for one, other in ((fast.bias, direct.bias), (fast.variance, direct.variance)):
            np.testing.assert_array_equal(np.isnan(one[:, k]), np.isnan(other[:, 0]))
            worst = max(worst, np.nanmax(abs(one[:, k] / other[:, 0] - 1)))
    return fast, worst


@pytest.mark.parametrize(("a", "b", "batch"), [(1.1, 2.2, 1), (1.5, 1.5, 4), (1.9, 3.8, 1)])
def test_the_direct_recursion(a, b, batch):
    problem = Problem(a, b, 3000, batch)
    fast, worst = agree(problem, CHECKPOINTS, AVERAGES, rates(problem))
    assert worst < 1e-11
    assert fast.error < 1e-11
    assert fast.labels == (
        "last", "uniform", "uniform40", "f6.25", "f100", "ema0.9", "tail30:100", "last50%",
    )  # fmt: skip
    tail = fast.bias[6, 0]
    assert [np.isnan(x) for x in tail] == [t != 99 for t in CHECKPOINTS]


@pytest.mark.parametrize(("a", "b"), [(1.1, 6.0), (1.1, 20.0), (20.0, 1.1), (3, 20)])
def test_extreme_exponents(a, b):
    problem = Problem(a, b, 3000)
    _, worst = agree(problem, [10, 150], [25.0], rates(problem)[:2])
    assert worst < 1e-11


def test_whole_numbers_are_numbers():
    problem = Problem(2, 3, 50)
    found = excess_risk(problem, rates(problem)[:1], [], [5]).bias
    problem = Problem(2.0, 3.0, 50.0)
    np.testing.assert_array_equal(found, excess_risk(problem, rates(problem)[:1], [], [5]).bias)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [(1.1, 1.1), (1.1, 2.2), (1.5, 3.0), (1.9, 1.9)])
def test_the_direct_recursion_at_length(a, b):
    problem = Problem(a, b, 100_000)
    averages = [Uniform(), 6.25, 100.0, LastFraction(0.5)]
    given = [schedules.Power(0.8 / problem.trace, gamma) for gamma in (0.0, 0.5)]
    fast, worst = agree(problem, [50, 500, 5_000], averages, given)
    assert worst < 1e-10
    assert worst < 10 * fast.error + 1e-11


def test_a_last_fraction_is_the_mean_of_the_last_iterates():
    problem, checkpoints = Problem(1.5, 2.0, 40), [3, 5, 8, 9, 20, 21]
    risks = excess_risk(problem, rates(problem)[:1], [LastFraction(0.5)], checkpoints)
    for at, t in enumerate(checkpoints):
        length = max(1, round(0.5 * t))
        tail = Tail(t - length + 1, length)
        wanted = excess_risk(problem, rates(problem)[:1], [tail], [t]).bias[1, 0, 0]
        assert risks.bias[1, 0, at] == pytest.approx(wanted, rel=1e-13)


# A dense covariance, from a start that is not diagonal


def dense(hessian, target, etas, weights, noise, batch):
    """The risk of the iterate mean with given weights, from covariances of the whole vector."""
    eye = np.eye(len(target))
    covariance = [np.outer(target, target)]
    for eta in etas:
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
    return 0.5 * np.trace(hessian @ total)


@pytest.mark.parametrize("rule", [Uniform(), GrowingWindow(6.25), GrowingWindow(100.0)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_dense_covariance_recursion(rule, batch):
    problem = Problem(1.2, 1.9, 5, batch)
    index = np.arange(1, 6.0)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    hessian = turn @ np.diag(index**-1.2) @ turn.T
    target = turn @ index ** -(0.7 / 2)
    for schedule in rates(problem, steps=40):
        risks = excess_risk(problem, [schedule], [rule], [40])
        etas = schedule.evaluate(np.arange(40))
        for weights, found in (
            (rule.kernel(40), risks.excess(0.3)[1, 0, 0]),
            (np.eye(41)[40], risks.excess(0.3)[0, 0, 0]),
        ):
            wanted = dense(hessian, target, etas, weights, 0.3, batch)
            assert found == pytest.approx(wanted, rel=1e-12)


# Simulated SGD


@pytest.mark.parametrize("batch", [1, 4])
def test_simulated_sgd(batch):
    dimension, steps, runs, noise = 12, 80, 20_000, 0.2
    problem = Problem(1.3, 2.0, dimension, batch)
    index = np.arange(1, dimension + 1.0)
    lambdas, target = index**-1.3, index ** -(0.7 / 2)
    schedule = schedules.Power(0.6 / problem.trace, 0.5, alpha=10.0)
    random = np.random.default_rng(1)
    w = np.zeros((runs, dimension))
    uniform, window = np.zeros_like(w), np.zeros_like(w)
    newest = GrowingWindow(6.25).evaluate(np.arange(1, steps + 1))
    for t, eta in enumerate(schedule.evaluate(np.arange(steps)), start=1):
        x = random.normal(size=(batch, runs, dimension)) * np.sqrt(lambdas)
        residual = ((w - target) * x).sum(-1) + math.sqrt(noise) * random.normal(size=(batch, runs))
        w = w - eta * (residual[..., None] * x).mean(0)
        uniform += (w - uniform) / t
        window += newest[t - 1] * (w - window)
    risks = excess_risk(problem, [schedule], [Uniform(), 6.25], [steps]).excess(noise)[:, 0, 0]
    for found, wanted in zip((w, uniform, window), risks, strict=True):
        losses = 0.5 * ((found - target) ** 2 @ lambdas)
        error = losses.std() / math.sqrt(runs)
        assert error < 0.02 * wanted
        assert abs(losses.mean() - wanted) < 4 * error


# What a run must not do


def test_unstable_step_sizes_give_inf():
    problem = Problem(1.5, 2.0, 500)
    given = [schedules.Power(c / problem.trace, 0.0) for c in (0.3, 5.0)]
    risks = excess_risk(problem, given, [Uniform(), LastFraction(0.5)], [10, 5000])
    risk = risks.excess(0.0)
    assert np.isfinite(risk[:, 0]).all()
    assert np.isfinite(risk[:, 1, 0]).all()
    assert np.isinf(risk[:, 1, 1]).all()
    assert np.isinf(risks.excess(0.1)[:, 1, 1]).all()
    assert risks.error < 1e-10


def test_the_precision_of_others_is_left_alone():
    excess_risk(Problem(1.5, 2.0), [schedules.Power(0.1, 0.0)], [], [3])
    assert jnp.zeros(3).dtype == jnp.float32
    assert not jax.config.read("jax_enable_x64")


def test_it_reports_and_ends_when_told_to():
    problem, told = Problem(1.5, 2.0), []
    excess_risk(problem, rates(problem)[:1], [], [5, 9000], report=told.append)
    assert told == sorted(told)
    assert told[-1] == 1

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        excess_risk(problem, rates(problem)[:1], [], [5, 9000], report=stop)


def risk(checkpoints=(10,), averages=(), schedule=None, noise=0.1, **problem):
    problem = Problem(**{"a": 1.5, "b": 2.0, "dimension": 50, **problem})
    schedule = schedule or schedules.Power(0.1, 0.0)
    return excess_risk(problem, [schedule], averages, checkpoints).excess(noise)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": 1.0}, r"a = 1\.0 .* number above 1"),
        ({"b": 0.9}, r"b = 0\.9 .* number above 1"),
        ({"a": math.nan}, "a = nan"),
        ({"dimension": 0}, "dimension = 0"),
        ({"dimension": 2.5}, r"dimension = 2\.5"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"noise": -0.1}, r"noise = -0\.1 .* sigma\^2, a number of 0 or more"),
        ({"noise": math.inf}, "noise = inf"),
        ({"noise": 1e308}, "noise = 1e[+]308"),
        ({"checkpoints": [10, 5]}, r"checkpoints = \[10, 5\] .* rising order"),
        ({"checkpoints": [5, 5]}, "rising order"),
        ({"checkpoints": []}, "rising order"),
        ({"checkpoints": [0, 5]}, r"a checkpoint = 0 .* whole number from 1"),
        ({"checkpoints": [2.5]}, r"a checkpoint = 2\.5"),
        ({"averages": [Tail(5, 20)]}, r"w_\{5:25\} ends at update 24, after the last checkpoint"),
        ({"averages": [Tail(1, 5)]}, r"ends at update 5, which is no checkpoint"),
        ({"averages": [6.25, 6.25]}, "'f6.25' is taken"),
        ({"averages": [LastFraction(0.5), LastFraction(0.5)]}, "'last50%' is given twice"),
        ({"averages": ["f25"]}, "averaging rule = 'f25'"),
        ({"schedule": schedules.FixedHorizon(0.1, 9)}, "checkpoint 10 is past the horizon"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_line(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        risk(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fraction", [0, -1, 1.5, "half"])
def test_fractions(fraction):
    with pytest.raises(ValueError, match="fraction = "):
        LastFraction(fraction)
