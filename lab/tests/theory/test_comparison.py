"""Anytime runs against tuned schedules: gaps, selection and advice."""

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_lab.theory.comparison import AVERAGES, MULTIPLIERS, TOLERANCE, compare
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import excess_risk


@pytest.fixture(scope="module")
def comparison():
    # So many coordinates are few nodes: four times as fast as infinitely many.
    return compare(Problem(1.5, 2.5, 500), samples=800, doublings=2)


@pytest.fixture(scope="module")
def level(comparison):
    return comparison.at_noise(0.1)


def test_comparison_has_every_family_multiplier_and_average(comparison, level):
    assert comparison.lengths == (200, 400, 800)
    assert {family.gamma for family in comparison.families} == {0.0, 0.5, 0.4}
    runs = level.trajectories
    assert len({(run.family, run.multiplier, run.average) for run in runs}) == len(runs)
    assert len(runs) <= len(comparison.families) * len(MULTIPLIERS) * (len(AVERAGES) + 1)
    assert comparison.error < 1e-8


def test_gaps_are_relative_to_the_cosine_tuned_at_each_length(comparison, level):
    run, problem = level.best(), comparison.problem
    for at, length in list(enumerate(comparison.lengths))[::2]:
        cosines = [schedules.cosine(c / problem.trace, length, floor=0.1) for c in MULTIPLIERS]
        envelope = excess_risk(problem, cosines, [], [length]).excess(0.1, "last").min()
        assert level.envelope[at] == pytest.approx(envelope, rel=1e-9)
        schedule = schedules.Power(
            run.multiplier / problem.trace, run.family.gamma, run.family.alpha
        )
        risks = excess_risk(problem, [schedule], AVERAGES, [length]).excess(0.1, run.average)
        assert run.gaps[at] == pytest.approx(risks[0, 0] / envelope - 1, rel=1e-7)


def test_peak_is_tuned_at_the_first_length_that_is_good_enough(comparison, level):
    best = level.best()
    means = [np.log1p(run.gaps).mean() for run in level.trajectories]
    assert np.log1p(best.gaps).mean() == min(means)
    length, tuned = level.tune(best)
    at = comparison.lengths.index(length)
    rivals = [run.gaps for run in level.select(best.family, best.average)]
    assert tuned.gaps[at:].max() <= min(gaps[at:].max() for gaps in rivals) + TOLERANCE
    assert tuned.gaps[at] == min(gaps[at] for gaps in rivals)


def test_envelope_without_risk_raises():
    comparison = compare(Problem(1.5, 3.0, dimension=1), samples=3200, doublings=2)
    with pytest.raises(ValueError, match="cosine's excess risks are"):
        comparison.at_noise(0.0)
