"""Sweeps in parallel."""

import pytest

from anytime_jax import schedules
from anytime_jax.theory.problem import Problem
from anytime_jax.theory.sweeps import Sweep, run_sweeps

PROBLEM, RUNS = Problem(1.5, 2.0), [schedules.Power(0.1, 0.0)]


def test_results_are_in_order_and_progress_rises_to_one():
    fractions = []
    sweeps = [Sweep(PROBLEM, RUNS, [], [5, steps]) for steps in (9000, 10, 20)]
    risks = run_sweeps(sweeps, fractions.append)
    assert [part.checkpoints[-1] for part in risks] == [9000, 10, 20]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


def test_first_error_ends_all_sweeps():
    minutes = Sweep(PROBLEM, RUNS, [25.0], [10_000_000])
    fractions = []
    bad = Sweep(PROBLEM, [schedules.FixedHorizon(0.1, 9)], [], [10])
    with pytest.raises(ValueError, match="checkpoint 10"):
        run_sweeps([minutes, bad], fractions.append)
    assert max(fractions, default=0) < 0.5
