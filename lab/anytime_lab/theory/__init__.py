"""Exact excess risk of SGD on linear regression, for any schedule, batch and average.

Begin with `problem.py`, `risk.py` and `batches.py`. `convergence_rates.py` has what the paper
proves, `comparison.py` anytime runs against schedules tuned at every length,
`synthetic_figures.py` the paper's figures, and `reports.py` the tables of the command, `anytime
theory`.

    >>> problem = theory.Problem(a=1.5, b=3.0)
    >>> runs = [schedules.Power(0.5 / problem.trace, gamma=0.5)]
    >>> risks = theory.excess_risk(problem, runs, [25.0], checkpoints=[1_000, 100_000])
    >>> risks.excess(noise=0.1, label="f25").shape  # schedules, checkpoints
    (1, 2)
"""

from anytime_jax.weights.post_hoc_averages import LastFraction
from anytime_lab.theory.batches import BatchSchedule, GrowingBatch
from anytime_lab.theory.convergence_rates import gamma_star, theorem_1
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import Risks, excess_risk
from anytime_lab.theory.tracked_averages import Tail

__all__ = [
    "BatchSchedule",
    "GrowingBatch",
    "LastFraction",
    "Problem",
    "Risks",
    "Tail",
    "excess_risk",
    "gamma_star",
    "theorem_1",
]
