"""Reports on what the paper proves: Theorem 1 term by term, and exponents fitted to exact risks."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from rich.table import Table

from anytime_jax.checks import LARGEST_COUNT, require, require_count, require_positive
from anytime_jax.schedules import Power
from anytime_jax.theory import rates
from anytime_jax.theory.output import new_table
from anytime_jax.theory.parallel import Progress, run_in_parallel
from anytime_jax.theory.problem import Problem
from anytime_jax.theory.risk import Risks, excess_risk, largest_error, require_noise
from anytime_jax.weights.post_hoc import LastFraction

SPECTRA = ((1.1, 1.1), (1.5, 1.5), (1.5, 2.0), (1.5, 2.5), (1.1, 2.2), (1.5, 3.0), (1.9, 3.8))
_GAMMAS = tuple(round(0.1 * k, 1) for k in range(6))
_LAST_HALF = LastFraction(0.5)


def bound_report(
    problem: Problem,
    gamma: float | None,
    multiplier: float,
    steps: int,
    noise: float,
    progress: Progress,
) -> list[Table | str]:
    """Returns the bound of Theorem 1 beside the exact risk, for N up to `steps`.

    The step sizes are multiplier / (tr(H) t^gamma), with gamma* for a gamma of None.
    """
    require_positive("multiplier", multiplier)
    gamma = rates.gamma_star(problem.a, problem.b) if gamma is None else gamma
    ok = 100 <= steps < LARGEST_COUNT // 2
    require(ok, "steps", steps, "a whole number from 100 to below 2^30: runs have twice it")
    eta = multiplier / problem.trace
    half_decades = (round(steps * 10 ** (-k / 2)) for k in reversed(range(20)))
    lengths = np.array([n for n in half_decades if n >= 10])
    bounds = [rates.theorem_1(problem, eta, gamma, int(n), noise) for n in lengths]
    ends = [2 * int(n) for n in lengths]
    risks = excess_risk(problem, [Power(eta, gamma)], [_LAST_HALF], ends, progress=progress)
    exact = risks.excess(noise, _LAST_HALF.label)[0]
    title = (
        f"Theorem 1 at a = {problem.a:g}, b = {problem.b:g}, sigma^2 = {noise:g}, eta_t = "
        f"{multiplier:g}/tr(H) / t^{gamma:.3g}: mean of iterates N+1 .. 2N"
    )
    names = ["N", "k*", "bias k<=k*", "bias k>k*", "k* sigma^2/N", "sum eta^2 lambda^2"]
    table = new_table(title, [*names, "sum eta lambda", "bound", "exact", "bound/exact"])
    for n, bound, risk in zip(lengths, bounds, exact, strict=True):
        _, *terms = dataclasses.astuple(bound)
        numbers = *terms, bound.total, risk, bound.total / risk if risk > 0 else math.inf
        table.add_row(f"{n:,}", f"{bound.k_star}", *(f"{number:.3g}" for number in numbers))
    late = lengths >= lengths[-1] / 100
    exact_fit, bound_fit = (
        rates.fitted_exponent(lengths[late], values[late])
        for values in (exact, np.array([bound.total for bound in bounds]))
    )
    footnote = (
        f"fitted over the last factor of 100: exact N^-{exact_fit:.3f}, bound N^-{bound_fit:.3f}; "
        f"without logarithms N^-{rates.power_law_exponent(problem.a, problem.b, gamma):.3f}. "
        f"||w*||_H^2 is {problem.power_sum(problem.b):.3g}; the theorem assumes that it is of the "
        f"order of sigma^2 or less. Largest relative error {risks.error:.0e}."
    )
    return [table, footnote]


def exponent_report(
    multiplier: float, steps: int, noise: float, progress: Progress
) -> list[Table | str]:
    """Returns exponents fitted to exact risks of `SPECTRA`, beside the proven ones.

    The step sizes are multiplier / (tr(H) t^gamma) for several gammas.
    """
    require_positive("multiplier", multiplier)
    require_noise(noise)
    require_count("steps", steps, least=1600)
    ends = np.array([steps // 2**k for k in range(int(np.log2(steps / 100)), -1, -1)])

    def task(a: float, b: float) -> Callable[[Progress], Risks]:
        problem = Problem(a, b)
        gammas = [*_GAMMAS, rates.gamma_star(a, b)]
        runs = [Power(multiplier / problem.trace, gamma) for gamma in gammas]
        checkpoints = ends.tolist()
        return lambda report: excess_risk(problem, runs, [_LAST_HALF], checkpoints, progress=report)

    results = run_in_parallel([task(a, b) for a, b in SPECTRA], [1.0] * len(SPECTRA), progress)
    title = (
        "p of risk ~ N^-p by gamma: fitted to the exact risk of the mean of the last half, "
        f"sigma^2 = {noise:g}, N = {steps // 16:,} .. {steps:,}, d = infinity "
        "(in brackets: Theorem 1)"
    )
    names = ["a, b", *(f"{gamma:g}" for gamma in _GAMMAS), "gamma*", "at gamma*", "minimax"]
    table = new_table(title, names)
    for (a, b), risks in zip(SPECTRA, results, strict=True):
        star = rates.gamma_star(a, b)
        late = risks.excess(noise, _LAST_HALF.label)[:, -5:]
        cells = [
            f"{rates.fitted_exponent(ends[-5:], row):.2f} "
            f"({rates.power_law_exponent(a, b, gamma):.2f})"
            for row, gamma in zip(late, [*_GAMMAS, star], strict=True)
        ]
        minimax = f"{rates.minimax_exponent(a, b):.2f}"
        table.add_row(f"{a:g}, {b:g}", *cells[:-1], f"{star:.2f}", cells[-1], minimax)
    return [table, _proven_table(), f"Largest relative error {largest_error(results):.0e}."]


def _proven_table() -> Table:
    names = ["step sizes", "average", "horizon", "regime"]
    names += [f"{a:g}, {b:g}" for a, b in SPECTRA]
    table = new_table("proven, up to constants and logarithms", names)
    for rate in rates.RATES:
        cells = [
            f"{rates.minimax_exponent(a, b):.2f}" if rate.holds(a, b) else "" for a, b in SPECTRA
        ]
        average = "yes" if rate.averaged else "no"
        horizon = "free" if rate.horizon_free else "needed"
        table.add_row(rate.schedule, average, horizon, rate.regime, *cells)
    return table
