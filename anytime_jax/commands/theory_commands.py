"""The commands of the theory bench, each a computation and the table that answers it."""

import argparse
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from rich.console import Console

from anytime_jax.checks import LARGEST_COUNT, require, require_count
from anytime_jax.commands.command_line import HelpFormatter
from anytime_jax.schedules import Power
from anytime_jax.theory import comparison_report, rates, synthetic_figures
from anytime_jax.theory.comparison import TOLERANCE, Comparison, Trajectory, advise, compare
from anytime_jax.theory.comparison_report import percent
from anytime_jax.theory.parallel import in_parallel
from anytime_jax.theory.risk import excess_risk, largest_error, require_noise
from anytime_jax.theory.spectrum import Problem
from anytime_jax.weights.post_hoc import LastFraction

Progress = Callable[[Console, str], AbstractContextManager[Callable[[float], None]]]
LIMITS = (
    "Limits: this is SGD without momentum on a quadratic with Gaussian inputs and a power-law "
    "spectrum. A network's curvature moves, Adam rescales it, and its noise is not this noise: "
    "take the shape of the answer (which f, whether to decay, how late to tune), not the numbers."
)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands; `arguments.work` does what was asked for."""
    parser.set_defaults(work=None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, what: Callable[..., int], about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=about,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )
        made.set_defaults(work=what)
        return made

    for name, what, about in (
        ("compare", _compare, "cosine tuned at every length against single anytime runs"),
        ("advise", _advise, "gamma, alpha, f and when to tune, with the evidence"),
    ):
        made = command(name, what, about)
        _add_problem(made, several=what is _compare)
        made.add_argument("--batch-size", type=_count, default=1, help="samples in an update")
        made.add_argument(
            "--steps", type=_count, default=150_000, help="updates of the longest run"
        )
        made.add_argument("--doublings", type=_count, default=5, help="from the shortest to it")
        made.add_argument("--output", type=Path, help="a directory for the picture and numbers")
    made = command("bound", _bound, "the bound of Theorem 1, term by term, beside the exact risk")
    _add_problem(made)
    made.set_defaults(batch_size=1)  # the theorem's own
    made.add_argument(
        "--steps", type=_count, default=1_000_000, help="iterates in the longest mean"
    )
    made.add_argument("--gamma", type=float, help="1 - a/b, held to 0 .. 1/2, if not given")
    made.add_argument(
        "--multiplier", type=_positive, default=0.5, help="step size in units of 1/tr(H)"
    )
    made = command("rates", _rates, "exponents fitted to exact risks, beside the proven ones")
    made.add_argument("--steps", type=_count, default=1_000_000, help="updates of every run")
    made.add_argument("--noise", type=float, default=0.1, help="sigma^2")
    made.add_argument(
        "--multiplier", type=_positive, default=0.5, help="step size in units of 1/tr(H)"
    )


def _add_problem(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument("--a", type=float, required=True, help="capacity: eigenvalues are i^-a")
    parser.add_argument("--b", type=float, required=True, help="source: (w*_i)^2 is i^-(b-a)")
    if several:
        about = "sigma^2, or several with commas between: the runs are made once"
        parser.add_argument("--noise", type=_numbers, default="0.1", help=about)
    else:
        parser.add_argument("--noise", type=float, default=0.1, help="sigma^2")
    parser.add_argument("--dimension", type=_dimension, default=math.inf, help="coordinates")


def _count(text: str) -> int:
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
    return int(value)


def _positive(text: str) -> float:
    try:
        value = float(text)
        if not 1e-30 <= value <= 1e30:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1e-30 to 1e30") from error
    return value


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from error


def _dimension(text: str) -> float:
    return math.inf if text.strip().lower() in ("inf", "infinity") else _count(text)


def _problem(given: argparse.Namespace) -> Problem:
    for noise in given.noise if isinstance(given.noise, tuple) else (given.noise,):
        require_noise(noise)
    return Problem(given.a, given.b, given.dimension, given.batch_size)


# Cosine against anytime runs


def _computed(given: argparse.Namespace, console: Console, progress: Progress) -> Comparison:
    problem = _problem(given)
    if given.output is not None:
        synthetic_figures.require_folder("--output", given.output)
    with progress(console, "every rival and every anytime run") as report:
        return compare(problem, given.steps, given.doublings, report)


def _compare(given: argparse.Namespace, console: Console, progress: Progress) -> int:
    comparison = _computed(given, console, progress)
    for noise in given.noise:
        comparison_report.show(comparison, noise, console)
    if len(given.noise) > 1:
        console.print(comparison_report.by_noise(comparison, given.noise))
    if given.output is not None:
        comparison_report.write(comparison, given.noise[0], given.output, console)
    return 0


def _advise(given: argparse.Namespace, console: Console, progress: Progress) -> int:
    comparison = _computed(given, console, progress)
    advice = advise(comparison, given.noise)
    run, shortest = advice.run, comparison.lengths[0]
    console.print(
        f"{_shape(run, shortest)}, average {run.average}, "
        f"peak step size {run.multiplier * comparison.problem.step_unit:.3g} "
        f"= {run.multiplier:.3g} {comparison_report.unit(comparison.problem)}"
    )
    console.print(
        f"its gap to the cosine tuned at each length: "
        f"{', '.join(percent(gap) for gap in run.gaps)} at {_lengths(comparison)} updates"
    )
    later = advice.tuned.gaps[comparison.lengths.index(advice.tune_at) :]
    console.print(
        f"tune the peak at {advice.tune_at:,} updates ({advice.tune_at / shortest:.3g}x): the run "
        f"that is best there has gaps of {percent(later.max())} or less from there on, "
        f"within {100 * TOLERANCE:g}% of the best any peak can do"
    )
    near = [comparison.best(given.noise, average=label) for label in comparison.anytime.labels]
    table = comparison_report.table(
        "the best run with each average", ["average", "step sizes", "c", "worst", "mean"]
    )
    for other in near:
        cells = (
            f"{other.multiplier:.2g}",
            percent(other.worst),
            percent(other.mean),
        )
        table.add_row(other.average, other.family.name, *cells)
    console.print(table)
    comparison_report.show(comparison, given.noise, console)
    console.print(LIMITS)
    if given.output is not None:
        comparison_report.write(comparison, given.noise, given.output, console)
    return 0


def _shape(run: Trajectory, shortest: int) -> str:
    gamma, alpha = run.family.gamma, run.family.alpha
    if gamma == 0:
        return "gamma = 0 (a constant step size: there is no alpha)"
    return (
        f"gamma = {gamma:.4g}, alpha = {alpha:g} updates ({alpha / shortest:.3g} of the shortest)"
    )


def _lengths(comparison: Comparison) -> str:
    return ", ".join(f"{length:,}" for length in comparison.lengths)


# What the paper proves


def _bound(given: argparse.Namespace, console: Console, progress: Progress) -> int:
    problem, noise = _problem(given), given.noise
    gamma = rates.gamma_star(given.a, given.b) if given.gamma is None else given.gamma
    ok = 100 <= given.steps < LARGEST_COUNT // 2
    require(ok, "steps", given.steps, "a whole number from 100 to below 2^30: runs have twice it")
    eta = given.multiplier / problem.trace
    halves = (round(given.steps * 10 ** (-k / 2)) for k in reversed(range(20)))
    steps = [n for n in halves if n >= 10]  # two for each factor of 10
    bounds = [rates.theorem_1(problem, eta, gamma, n, noise) for n in steps]
    with progress(console, "the exact risk") as report:
        tail, ends = LastFraction(0.5), [2 * n for n in steps]
        risks = excess_risk(problem, [Power(eta, gamma)], [tail], ends, report=report)
    exact = risks.excess(noise, tail.label)[0]
    title = (
        f"Theorem 1 at a = {given.a:g}, b = {given.b:g}, sigma^2 = {noise:g}, eta_t = "
        f"{given.multiplier:g}/tr(H) / t^{gamma:.3g}: mean of iterates N+1 .. 2N"
    )
    names = ["N", "k*", "bias k<=k*", "bias k>k*", "k* sigma^2/N", "sum eta^2 lambda^2"]
    table = comparison_report.table(
        title, [*names, "sum eta lambda", "bound", "exact", "bound/exact"]
    )
    for n, bound, risk in zip(steps, bounds, exact, strict=True):
        terms = (
            bound.bias_head,
            bound.bias_tail,
            bound.variance_head,
            bound.variance_square,
            bound.variance_linear,
            bound.total,
            float(risk),
            bound.total / float(risk) if risk > 0 else math.inf,
        )
        table.add_row(f"{n:,}", f"{bound.k_star}", *(f"{term:.3g}" for term in terms))
    console.print(table)
    late = [k for k, n in enumerate(steps) if n >= steps[-1] / 100]
    fits = [
        rates.fitted_exponent(np.array(steps)[late], np.array(values)[late])
        for values in (exact, [bound.total for bound in bounds])
    ]
    console.print(
        f"fitted over the last factor of 100: exact N^-{fits[0]:.3f}, bound N^-{fits[1]:.3f}; "
        f"without logarithms N^-{rates.power_law_exponent(given.a, given.b, gamma):.3f}. "
        f"||w*||_H^2 is {problem.power_sum(problem.b):.3g}; the theorem wants it of the order "
        f"of sigma^2 or less. Largest relative error {risks.error:.0e}."
    )
    return 0


_GRID = ((1.1, 1.1), (1.5, 1.5), (1.5, 2.0), (1.5, 2.5), (1.1, 2.2), (1.5, 3.0), (1.9, 3.8))


def _rates(given: argparse.Namespace, console: Console, progress: Progress) -> int:
    require_noise(given.noise)
    require_count("steps", given.steps, least=1600)
    gammas = [round(0.1 * k, 1) for k in range(6)]
    tail = LastFraction(0.5)
    ends = [given.steps // 2**k for k in range(int(np.log2(given.steps / 100)), -1, -1)]

    def task(a: float, b: float):
        problem = Problem(a, b)
        eta = given.multiplier / problem.trace
        given_gammas = [*gammas, rates.gamma_star(a, b)]
        schedules = [Power(eta, gamma) for gamma in given_gammas]
        return lambda report: excess_risk(problem, schedules, [tail], ends, report=report)

    with progress(console, f"{len(_GRID)} spectra") as report:
        found = in_parallel([task(a, b) for a, b in _GRID], [1.0] * len(_GRID), report)
    title = (
        "p of risk ~ N^-p by gamma: fitted to the exact risk of the mean of the last half, "
        f"sigma^2 = {given.noise:g}, N = {given.steps // 16:,} .. {given.steps:,}, d = infinity "
        "(in brackets: Theorem 1)"
    )
    names = ["a, b", *(f"{gamma:g}" for gamma in gammas), "gamma*", "at gamma*", "minimax"]
    table = comparison_report.table(title, names)
    for (a, b), risks in zip(_GRID, found, strict=True):
        values = risks.excess(given.noise, tail.label)[:, -5:]
        fits = [rates.fitted_exponent(np.array(ends[-5:]), row) for row in values]
        star = rates.gamma_star(a, b)
        cells = [
            f"{fit:.2f} ({rates.power_law_exponent(a, b, gamma):.2f})"
            for fit, gamma in zip(fits, [*gammas, star], strict=True)
        ]
        table.add_row(
            f"{a:g}, {b:g}",
            *cells[:-1],
            f"{star:.2f}",
            cells[-1],
            f"{rates.minimax_exponent(a, b):.2f}",
        )
    console.print(table)
    proven = comparison_report.table(
        "proven, up to constants and logarithms", ["step sizes", "average", "horizon", "regime"]
    )
    for a, b in _GRID:
        proven.add_column(f"{a:g}, {b:g}", justify="right")
    for rate in rates.RATES:
        cells = [f"{rate.exponent(a, b):.2f}" if rate.holds(a, b) else "" for a, b in _GRID]
        average = "yes" if rate.averaged else "no"
        horizon = "free" if rate.horizon_free else "needed"
        proven.add_row(rate.schedule, average, horizon, rate.regime, *cells)
    console.print(proven)
    console.print(f"Largest relative error {largest_error(found):.0e}.")
    return 0
