"""Sweeps in parallel."""

import pytest

from anytime_jax import schedules
from anytime_lab.theory.parallel_risks import RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem

PROBLEM, RUNS = Problem(1.5, 2.0), [schedules.Power(0.1, 0.0)]


def test_first_error_ends_all_arguments():
    minutes = RiskArguments(PROBLEM, RUNS, [25.0], [10_000_000])
    fractions = []
    bad = RiskArguments(PROBLEM, [schedules.cosine(0.1, 9)], [], [10])
    with pytest.raises(ValueError, match="checkpoint 10"):
        compute_risks([minutes, bad], fractions.append)
    assert max(fractions, default=0) < 0.5
