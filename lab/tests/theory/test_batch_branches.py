"""Branches with larger batches, the noise scale and the batch that is doubled by trial."""

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.errors import InputError
from anytime_lab.theory import batch_branches
from anytime_lab.theory.batch_branches import LABEL, MULTIPLES, RATE_POWERS, SteppedBatch
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import excess_risk

PROBLEM, MULTIPLIER, NOISE = Problem(1.5, 3.0, 6), 0.2, 0.1
RATE = MULTIPLIER / PROBLEM.trace


@pytest.fixture(scope="module")
def branches():
    return batch_branches.compare_branches(PROBLEM, MULTIPLIER, NOISE, samples=4_000)


def recursion(rates, sizes):
    """The second moments of the error after updates, by the recursion as it is written."""
    lambdas = np.arange(1, 7.0) ** -1.5
    m = np.arange(1, 7.0) ** -1.5
    for rate, size in zip(rates, sizes, strict=True):
        coupling = lambdas @ m + NOISE
        m = ((1 - rate * lambdas) ** 2 + (rate * lambdas) ** 2 / size) * m
        m += rate**2 * lambdas * coupling / size
    return lambdas, m


@pytest.mark.parametrize("rate", RATE_POWERS)
def test_a_branch_takes_a_multiple_of_the_batch_from_its_start_on(rate, branches):
    start = branches.lengths[1]
    risks = []
    for multiple in (1, 4):
        batch = SteppedBatch((0, start), (1, multiple))
        schedule = schedules.Power(RATE, 0.0)
        if rate != "kept":
            schedule = batch_branches._Stepped(RATE, start, float(multiple))
        found = excess_risk(PROBLEM, [schedule], [25.0], [2 * start], batch)
        updates = start + start // multiple
        assert found.updates.tolist() == [[updates]]
        rates = [RATE] * start + [RATE * multiple ** RATE_POWERS[rate]] * (updates - start)
        lambdas, m = recursion(rates, [1] * start + [multiple] * (updates - start))
        assert found.excess(NOISE, "last")[0, 0] == pytest.approx(lambdas @ m / 2, rel=1e-10)
        risks.append(found.excess(NOISE, LABEL)[0, 0])
    excess = branches.excess[rate][1, MULTIPLES.index(4)]
    assert excess == pytest.approx(risks[1] / risks[0] - 1, rel=1e-7)


def test_noise_scale_is_that_of_sampled_gradients(branches):
    """At normal errors with the moments of the recursion: E[x x^T e] is H e."""
    lambdas, m = recursion([RATE] * 1_000, [1] * 1_000)
    random, runs = np.random.default_rng(0), 1_000_000
    error = random.normal(size=(runs, 6)) * np.sqrt(m)
    x = random.normal(size=(runs, 6)) * np.sqrt(lambdas)
    noise = np.sqrt(NOISE) * random.normal(size=runs)
    gradients = ((x * error).sum(-1) - noise)[:, None] * x
    square = (gradients**2).sum(-1)
    squared_mean = ((lambdas * error) ** 2).sum(-1)
    scale = square.mean() / squared_mean.mean() - 1
    uncertain = np.hypot(*(y.std() / y.mean() / np.sqrt(runs) for y in (square, squared_mean)))
    assert uncertain < 0.003
    assert branches.noise_scales["last"][0] == pytest.approx(scale, rel=4 * uncertain)


def test_largest_free_multiple_is_before_the_first_that_costs(branches):
    for rate, excess in branches.excess.items():
        for free, costs in zip(branches.largest_free(rate, 0.02), excess, strict=True):
            at = MULTIPLES.index(free)
            assert (costs[: at + 1] <= 0.02).all()
            assert at == len(MULTIPLES) - 1 or not costs[at + 1] <= 0.02


def test_the_batch_is_doubled_where_the_branch_is_better():
    doubled = batch_branches.double(PROBLEM, MULTIPLIER, NOISE, samples=16_000)
    assert doubled.lengths == (2_000, 4_000, 8_000, 16_000)
    run, sizes = [schedules.Power(RATE, 0.0)], [1]
    for at, end in enumerate(doubled.lengths):
        starts = (0, *(1_000 * 2**k for k in range(at + 1)))
        tried = [SteppedBatch(starts, (*sizes, factor * sizes[-1])) for factor in (1, 2)]
        risks = [
            excess_risk(PROBLEM, run, [25.0], [end], x).excess(NOISE, LABEL)[0, 0] for x in tried
        ]
        sizes.append(sizes[-1] * (1 + int(risks[1] < risks[0])))
    assert doubled.sizes == tuple(sizes[1:])
    batch = SteppedBatch((0, 1_000, 2_000, 4_000, 8_000), tuple(sizes))
    again = excess_risk(PROBLEM, run, [25.0], [1_000, 3_162, 10_000], batch)
    found = doubled.risks.excess(NOISE, LABEL)
    np.testing.assert_allclose(found, again.excess(NOISE, LABEL), rtol=1e-12)


def test_the_default_rate_is_the_best_at_the_shortest_length():
    best = batch_branches.best_multiplier(PROBLEM, NOISE)
    risks = {
        c: excess_risk(PROBLEM, [schedules.Power(c / PROBLEM.trace, 0.0)], [25.0], [1_000])
        for c in (best / 2, best, 2 * best)
    }
    found = {c: x.excess(NOISE, LABEL)[0, 0] for c, x in risks.items()}
    assert min(found, key=found.get) == best


def test_a_rate_that_diverges_is_refused():
    with pytest.raises(InputError, match="multiplier = 10"):
        batch_branches.compare_branches(Problem(1.5, 3.0, 60), 10, NOISE, samples=2_000)
