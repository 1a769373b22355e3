"""Ramps against pairs: risks are those of `excess_risk`, and the exponents those of the theory."""

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_lab.theory import ramps
from anytime_lab.theory.batches import GrowingBatch, sample_counts
from anytime_lab.theory.comparison import AVERAGES
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import excess_risk


@pytest.fixture(scope="module")
def comparison():
    return ramps.compare_ramps(Problem(1.5, 3.0, 60), samples=3_200, growths=[0.5])


def test_regrets_are_of_the_best_peak_and_average(comparison):
    problem, lengths, noise = comparison.problem, comparison.lengths, 0.1
    assert lengths == (1_000, 3_162)
    peaks = [c / problem.trace for c in ramps.MULTIPLIERS]
    constants = [schedules.Power(peak, 0.0) for peak in peaks]
    constant = excess_risk(problem, constants, AVERAGES, lengths).excess(noise)
    pair = constant.min(axis=(0, 1))
    for at, length in enumerate(lengths):
        for floor in (0.1, 0.0):
            cosines = [schedules.cosine(peak, length, floor=floor) for peak in peaks]
            risk = excess_risk(problem, cosines, [], [length]).excess(noise).min()
            pair[at] = min(pair[at], risk)
    np.testing.assert_allclose(comparison.pairs(noise), pair, rtol=1e-9)
    runs = {(run.ramp.name, run.ramp.alpha): run for run in comparison.runs(noise)}
    assert len(runs) == len(comparison.ramps) == 10
    for alpha in ramps.ALPHAS:
        run, batch = runs["batch grows", alpha], GrowingBatch(0.5, alpha)
        risks = excess_risk(problem, constants, AVERAGES, lengths, batch).excess(noise)
        means = np.log(risks / pair).mean(axis=-1)
        assert run.mean == pytest.approx(np.expm1(means.min()), rel=1e-7, abs=1e-9)
        row = ["last", "uniform", "f6.25", "f12.5", "f25", "f50", "f100"].index(run.average)
        best = risks[row, ramps.MULTIPLIERS.index(run.multiplier)]
        np.testing.assert_allclose(run.risks, best, rtol=1e-9)
        counts = sample_counts(batch, lengths[-1])
        assert run.updates.tolist() == [(counts <= length).sum() for length in lengths]


@pytest.mark.parametrize("share", ramps.SHARES.values())
def test_rate_and_batch_share_an_exponent(share):
    """Bias and variance of f25 fall as the theory has it, whichever of rate and batch changes."""
    a, growth, ends = 1.5, 0.25, [4_000, 16_000, 64_000, 256_000]
    for b, exponents in ((2.0, (1 / 2, 1 / 2)), (3.0, (1.0, 1 / 2))):
        problem = Problem(a, b)
        ramp = ramps.Ramp("", growth, share)
        runs = [ramp.schedule(0.5 / problem.trace)]
        risks = excess_risk(problem, runs, [25.0], ends, ramp.batch)
        for part, exponent in zip((risks.bias, risks.variance), exponents, strict=True):
            fitted = -np.polyfit(np.log(ends), np.log(part[1, 0]), 1)[0]
            assert fitted == pytest.approx(exponent, abs=0.02)


def test_a_constant_batch_is_tuned_over_peaks_and_averages():
    problem = Problem(1.5, 3.0, 60)
    tuned = ramps.tune_batches(problem, samples=3_200)
    runs = [schedules.Power(c / problem.trace, 0.0) for c in ramps.MULTIPLIERS]
    risks = excess_risk(problem, runs, AVERAGES, [1_000, 3_162], 16).excess(0.1)
    least = tuned.least(0.1)
    np.testing.assert_allclose(least[ramps.BATCHES.index(16)], risks.min(axis=(0, 1)), rtol=1e-12)
    assert least.shape == (len(ramps.BATCHES), 2)
