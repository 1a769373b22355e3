"""The recursion of `risk.py` over all coordinates, one by one, in NumPy: its oracle.

It shares the formulas of `risk.py`, but neither its quadrature nor its recursion. The cost grows
with the dimension: 500,000 coordinates and 150,000 updates take minutes for each schedule.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from anytime_jax.checks import require
from anytime_jax.schedules import Schedule
from anytime_jax.theory.iterate_averages import Average, TrackedAverages, track
from anytime_jax.theory.problem import Problem
from anytime_jax.theory.risk import Risks, diverged_to_inf, require_checkpoints


def direct_risk(
    problem: Problem, schedule: Schedule, averages: Iterable[Average], checkpoints: Sequence[int]
) -> Risks:
    """Returns what `excess_risk` returns for one schedule, by brute force.

    Raises:
      ValueError: as `excess_risk`, or for more than 1e7 coordinates.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=1_000)
      >>> schedule = schedules.Power(0.5 / problem.trace, gamma=0.5)
      >>> direct = theory.direct_risk(problem, schedule, [25.0], [100]).excess(noise=0.1)
      >>> fast = theory.excess_risk(problem, [schedule], [25.0], [100]).excess(noise=0.1)
      >>> bool(abs(fast / direct - 1).max() < 1e-10)
      True
    """
    ok = problem.dimension <= 1e7
    require(ok, "dimension", problem.dimension, "1e7 or less for the direct recursion")
    checkpoints = require_checkpoints(checkpoints, [schedule])
    tracked = track(averages, checkpoints)
    channels = [_channel(problem, schedule, tracked, checkpoints, noise) for noise in (0.0, 1.0)]
    bias, variance = diverged_to_inf(np.array(channels)[:, :, None], tracked)
    return Risks(tracked.labels, np.array(checkpoints), bias, variance, 0.0)


def _channel(
    problem: Problem,
    schedule: Schedule,
    tracked: TrackedAverages,
    checkpoints: Sequence[int],
    noise: float,
) -> np.ndarray:
    """The risk at the checkpoints, float64[labels, T]: of the bias, or of the noise alone."""
    index = np.arange(1, int(problem.dimension) + 1, dtype=np.float64)
    lambdas = index**-problem.a
    m = np.zeros_like(index) if noise else index ** -(problem.b - problem.a)
    cross = [m.copy() for _ in tracked.means]
    moments = [m.copy() for _ in tracked.means]  # of each average, coordinate by coordinate
    out = np.full((len(tracked.labels), len(checkpoints)), np.nan)
    rates = schedule.evaluate(np.arange(checkpoints[-1]))
    newest = tracked.newest_weights(np.arange(1, checkpoints[-1] + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for t, eta in enumerate(rates, start=1):
            mean = 1 - eta * lambdas
            spread = (eta * lambdas) ** 2 / problem.batch_size
            coupling = (lambdas @ m + noise) / problem.batch_size
            m = (mean**2 + spread) * m + eta**2 * lambdas * coupling
            for k, rho in enumerate(newest[t - 1]):
                c = mean * cross[k]
                moments[k] = (1 - rho) ** 2 * moments[k] + 2 * rho * (1 - rho) * c + rho**2 * m
                cross[k] = (1 - rho) * c + rho * m
            if t in checkpoints:
                at = checkpoints.index(t)
                out[0, at] = lambdas @ m / 2
                for row, k in enumerate(tracked.mean_of[:, at], start=1):
                    out[row, at] = lambdas @ moments[k] / 2 if k >= 0 else np.nan
    return out
