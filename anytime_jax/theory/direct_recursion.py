"""The direct recursion over all coordinates, one by one, in NumPy: the oracle of `risk.py`.

Its cost grows with the dimension: 500,000 coordinates and 150,000 updates take minutes for every
schedule. It shares the formulas of `risk.py`, and neither its quadrature nor its code.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from anytime_jax.checks import require
from anytime_jax.schedules import Schedule
from anytime_jax.theory.risk import Risks, diverged_to_inf, require_checkpoints
from anytime_jax.theory.spectrum import Problem
from anytime_jax.theory.tail_averages import Average, Plan, plan


def direct_risk(
    problem: Problem,
    schedule: Schedule,
    averages: Iterable[Average],
    checkpoints: Sequence[int],
) -> Risks:
    """Returns what `excess_risk` returns for one schedule, by brute force.

    Args:
      problem: the regression problem, of finite dimension.
      schedule: the step sizes.
      averages: the averages besides the iterate itself.
      checkpoints: numbers of updates, from 1, in rising order.

    Raises:
      ValueError: as `excess_risk`, or if the dimension is infinite.
    """
    ok = problem.dimension <= 1e7
    require(ok, "dimension", problem.dimension, "1e7 or less for the direct method")
    checkpoints = require_checkpoints(checkpoints, [schedule])
    kept = plan(averages, checkpoints)
    channels = [_channel(problem, schedule, kept, checkpoints, noise) for noise in (0.0, 1.0)]
    bias, variance = diverged_to_inf(np.array(channels)[:, :, None], kept)
    return Risks(kept.labels, np.array(checkpoints), bias, variance, 0.0)


def _channel(
    problem: Problem, schedule: Schedule, kept: Plan, checkpoints: Sequence[int], noise: float
) -> np.ndarray:
    """The risk at the checkpoints, float64[averages, T]: of the bias, or of the noise alone."""
    index = np.arange(1, int(problem.dimension) + 1, dtype=np.float64)
    lambdas = index**-problem.a
    m = np.zeros_like(index) if noise else index ** -(problem.b - problem.a)
    cross = [m.copy() for _ in kept.columns]
    moments = [m.copy() for _ in kept.columns]  # of each average, coordinate by coordinate
    out = np.full((len(kept.labels), len(checkpoints)), np.nan)
    rates = schedule.evaluate(np.arange(checkpoints[-1]))
    newest = kept.newest_weights(np.arange(1, checkpoints[-1] + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for t, eta in enumerate(rates, start=1):
            mean = 1 - eta * lambdas
            together = (lambdas @ m + noise) / problem.batch_size
            spread = (eta * lambdas) ** 2 / problem.batch_size
            m = (mean**2 + spread) * m + eta**2 * lambdas * together
            for k, rho in enumerate(newest[t - 1]):
                met = mean * cross[k]
                moments[k] = (1 - rho) ** 2 * moments[k] + 2 * rho * (1 - rho) * met + rho**2 * m
                cross[k] = (1 - rho) * met + rho * m
            if t in checkpoints:
                at = checkpoints.index(t)
                out[0, at] = lambdas @ m / 2
                for row, k in enumerate(kept.found[:, at], start=1):
                    out[row, at] = lambdas @ moments[k] / 2 if k >= 0 else np.nan
    return out
