"""Reports of the theory: tables, advice in words, figures and their numbers."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE, label_rules
from anytime_jax.checks import (
    LARGEST_COUNT,
    require,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from anytime_jax.errors import InputError
from anytime_jax.schedules import Power
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.tables import Table, numbers
from anytime_jax.weights.post_hoc_averages import LastFraction
from anytime_lab import schedule_styles
from anytime_lab.theory.comparison import (
    AVERAGES,
    ENVELOPE,
    MULTIPLIERS,
    TOLERANCE,
    Comparison,
    NoiseComparison,
    Trajectory,
    mean_gap,
)
from anytime_lab.theory.convergence_rates import (
    RATES,
    fitted_exponent,
    gamma_star,
    minimax_exponent,
    power_law_exponent,
    theorem_1,
)
from anytime_lab.theory.parallel_risks import Progress, RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.ramps import Ramp
from anytime_lab.theory.risk import largest_error, require_noise
from anytime_lab.theory.tracked_averages import Average

LIMITS = (
    "Limits: this is SGD without momentum on a quadratic with Gaussian inputs and a power-law "
    "spectrum. A network's curvature moves, Adam rescales it, and its noise is not this noise: "
    "take the shape of the answer (which f, whether to decay, how late to tune), not the numbers."
)
SPECTRA = ((1.1, 1.1), (1.5, 1.5), (1.5, 2.0), (1.5, 2.5), (1.1, 2.2), (1.5, 3.0), (1.9, 3.8))
_GAMMAS = tuple(round(0.1 * k, 1) for k in range(6))
_LAST_HALF = LastFraction(0.5)
# Averages whose exponents the report fits, by label.
EXPONENT_AVERAGES: dict[str, list[Average]] = {
    LIVE: [],
    _LAST_HALF.label: [_LAST_HALF],
    **{label: [rule] for label, rule in label_rules(AVERAGES).items()},
}


def length_table(level: NoiseComparison) -> list[Table | str]:
    """Returns gaps at every length: baselines tuned there, the best run of each family."""
    comparison, problem = level.comparison, level.comparison.problem
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, sigma^2 = {level.noise:g}, batch "
        f"{comparison.batch_size}, d = {problem.dimension:g}: excess risk over the cosine tuned at "
        "each length"
    )
    table = new_table(title, ["", "average", "c", *(f"{x:,}" for x in comparison.lengths)])
    envelope = (f"{risk:.3g}" for risk in level.envelope)
    table.add_row("excess risk of the cosine", "", "", *envelope)
    for name, gaps in level.baseline_gaps.items():
        peaks = _range(level.baseline_multipliers[name])
        table.add_row(f"tuned at each: {name}", LIVE, peaks, *map(_percent, gaps))
    for family in comparison.families:
        run = level.best(family)
        table.add_row(f"one run: {family.name}", run.average, _peak(run), *map(_percent, run.gaps))
    footnote = (
        f"c: peak step size over {_unit(comparison)}, * the edge of what was tried. Runs: the "
        f"smallest mean gap of each. Largest relative error {comparison.error:.0e}."
    )
    return [table, footnote]


def noise_table(levels: Sequence[NoiseComparison]) -> Table:
    """Returns mean gaps over all lengths, a row for each noise level of a comparison."""
    comparison, problem = levels[0].comparison, levels[0].comparison.problem
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, batch {comparison.batch_size}: mean excess risk "
        "over the cosine tuned at each length"
    )
    single = comparison.families[:2]
    windows = ("f6.25", "f25", "f100")
    baselines = [name for name in comparison.baselines if name != ENVELOPE]
    names = ["sigma^2", "best run", "average", "c", "gap", "worst"]
    names += [f"one {family.name}" for family in single]
    table = new_table(title, [*names, *(f"best {label}" for label in windows), *baselines])
    for level in levels:
        best = level.best()
        runs = [level.best(family) for family in single]
        table.add_row(
            f"{level.noise:g}",
            best.family.name,
            best.average,
            _peak(best),
            _percent(best.mean),
            _percent(best.worst),
            *(f"{_percent(run.mean)}{_edge_mark(run)} ({run.average})" for run in runs),
            *(_percent(level.best(average=label).mean) for label in windows),
            *(_percent(mean_gap(level.baseline_gaps[name])) for name in baselines),
        )
    return table


def advice(level: NoiseComparison) -> list[Table | str]:
    """Returns the run to choose and when to tune it, with the evidence and its limits."""
    comparison = level.comparison
    run, shortest = level.best(), comparison.lengths[0]
    tune_at, tuned = level.tune(run)
    gamma, alpha = run.family.gamma, run.family.alpha
    shape = "gamma = 0 (a constant step size: there is no alpha)"
    if gamma > 0:
        part = alpha / shortest
        shape = f"gamma = {gamma:.4g}, alpha = {alpha:g} samples ({part:.3g} of the shortest)"
    later = tuned.gaps[comparison.lengths.index(tune_at) :]
    columns = ["average", "step sizes", "c", "worst", "mean"]
    table = new_table("the best run with each average", columns)
    for label in comparison.anytime[0].labels:
        best = level.best(average=label)
        numbers = f"{best.multiplier:.2g}", _percent(best.worst), _percent(best.mean)
        table.add_row(label, best.family.name, *numbers)
    return [
        f"{shape}, average {run.average}, "
        f"peak step size {run.multiplier * comparison.unit:.3g} "
        f"= {run.multiplier:.3g} {_unit(comparison)}",
        f"its gap to the cosine tuned at each length: {', '.join(map(_percent, run.gaps))} at "
        f"{', '.join(f'{length:,}' for length in comparison.lengths)} samples",
        f"tune the peak at {tune_at:,} samples ({tune_at / shortest:.3g}x): the run "
        f"that is best there has gaps of {_percent(later.max())} or less from there on, "
        f"within {100 * TOLERANCE:g}% of the best any peak can do",
        table,
        *length_table(level),
        LIMITS,
    ]


def write_comparison(level: NoiseComparison, directory: Path) -> list[Path]:
    """Writes the picture `compare.png` and every number behind it, `compare.json`."""
    comparison, problem = level.comparison, level.comparison.problem
    baselines = {name: gaps for name, gaps in level.baseline_gaps.items() if name != ENVELOPE}
    content = {
        "a": problem.a,
        "b": problem.b,
        "dimension": f"{problem.dimension:.0f}",
        "batch_size": comparison.batch_size,
        "noise": level.noise,
        "lengths": comparison.lengths,
        "cosine_excess_risk": level.envelope.tolist(),
        "baselines": {name: gaps.tolist() for name, gaps in baselines.items()},
        "largest_relative_error": comparison.error,
        "runs": [
            {
                "gamma": run.family.gamma,
                "alpha": run.family.alpha,
                "multiplier": run.multiplier,
                "average": run.average,
                "gaps": [round(float(gap), 6) for gap in run.gaps],
            }
            for run in sorted(level.trajectories, key=lambda run: run.worst)
        ],
    }
    return [
        figure_style.save(_plot_gaps(level), directory / "compare.png", dpi=130),
        write_finite_json(directory / "compare.json", content),
    ]


def _plot_gaps(level: NoiseComparison) -> Figure:
    """Plots excess risks over the tuned cosine's: solid for single runs, dashed for baselines."""
    problem, lengths = level.comparison.problem, level.comparison.lengths
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes = figure.subplots()
    families = level.comparison.families
    for color, family in zip(schedule_styles.shades(len(families), 0.95), families, strict=True):
        run = level.best(family)
        label = f"{family.name} ({run.average})"
        axes.plot(lengths, 1 + run.gaps, "o-", color=color, ms=3, lw=1.3, label=label)
    colors = figure_style.VERMILION, figure_style.PURPLE, figure_style.ORANGE
    names = [name for name in level.baseline_gaps if name != ENVELOPE]
    for color, name in zip(colors, names, strict=True):
        gaps, label = level.baseline_gaps[name], f"{name}, tuned at each"
        axes.plot(lengths, 1 + gaps, "s--", color=color, ms=3, lw=1.3, label=label)
    axes.axhline(1, color="black", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    schedule_styles.plain_log_ticks(axes)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("samples")
    axes.set_ylabel("excess risk / risk of the cosine tuned there")
    axes.set_title(f"a = {problem.a:g}, b = {problem.b:g}, $\\sigma^2$ = {level.noise:g}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _percent(gap: float) -> str:
    return f"{gap:+.1%}"


def _unit(comparison: Comparison) -> str:
    return "1/tr(H)" if comparison.batch_size == 1 else f"{comparison.unit:.3g}, the stable scale"


def _edge_mark(run: Trajectory) -> str:
    return "*" if run.multiplier in (MULTIPLIERS[0], MULTIPLIERS[-1]) else ""


def _peak(run: Trajectory) -> str:
    return f"{run.multiplier:.2g}{_edge_mark(run)}"


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:.2g}" if low == high else f"{low:.2g}..{high:.2g}"


def bound_report(
    problem: Problem,
    gamma: float | None,
    multiplier: float,
    steps: int,
    noise: float,
    progress: Progress,
) -> list[Table | str]:
    """Returns a table of the bound of Theorem 1 and the exact risk, for N up to `steps`.

    The step sizes are multiplier / (tr(H) t^gamma), with gamma* for a gamma of None.
    """
    require_positive("multiplier", multiplier)
    gamma = gamma_star(problem.a, problem.b) if gamma is None else gamma
    ok = 100 <= steps < LARGEST_COUNT // 2
    require(ok, "steps", steps, "a whole number from 100 to below 2^30: runs have twice it")
    eta = multiplier / problem.trace
    half_decades = (round(steps * 10 ** (-k / 2)) for k in reversed(range(20)))
    lengths = np.array([n for n in half_decades if n >= 10])
    bounds = [theorem_1(problem, eta, gamma, int(n), noise) for n in lengths]
    ends = [2 * int(n) for n in lengths]
    (risks,) = compute_risks(
        [RiskArguments(problem, [Power(eta, gamma)], [_LAST_HALF], ends)], progress
    )
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
        fitted_exponent(lengths[late], values[late])
        for values in (exact, np.array([bound.total for bound in bounds]))
    )
    footnote = (
        f"fitted over the last factor of 100: exact N^-{exact_fit:.3f}, bound N^-{bound_fit:.3f}; "
        f"without logarithms N^-{power_law_exponent(problem.a, problem.b, gamma):.3f}. "
        f"||w*||_H^2 is {problem.power_sum(problem.b):.3g}; the theorem assumes that it is of the "
        f"order of sigma^2 or less. Largest relative error {risks.error:.0e}."
    )
    return [table, footnote]


def exponent_report(
    multiplier: float,
    samples: int,
    noise: float,
    batch_share: float,
    average: str,
    progress: Progress,
) -> list[Table | str]:
    """Returns a table of exponents fitted to exact risks of `SPECTRA`, and the proven ones.

    The step size over the batch is multiplier / (tr(H) n^gamma) after n samples, for several
    gammas: the batch grows as n^(batch_share gamma), and the step size falls with the rest.
    """
    require_positive("multiplier", multiplier)
    require_noise(noise)
    require_count("samples", samples, least=1600)
    require_fraction("batch_share", batch_share)
    require_choice("average", average, tuple(EXPONENT_AVERAGES))
    ends = [samples // 2**k for k in range(int(np.log2(samples / 100)), -1, -1)]
    stars = [gamma_star(a, b) for a, b in SPECTRA]
    arguments = []
    for (a, b), star in zip(SPECTRA, stars, strict=True):
        problem = Problem(a, b)
        ramps = [Ramp("", gamma, batch_share) for gamma in (*_GAMMAS, star)]
        runs = [ramp.schedule(multiplier / problem.trace) for ramp in ramps]
        averages, batches = EXPONENT_AVERAGES[average], [ramp.batch for ramp in ramps]
        arguments.append(RiskArguments(problem, runs, averages, ends, batches))
    results = compute_risks(arguments, progress)
    if not all(np.isfinite(risks.excess(noise)[:, :, -1]).all() for risks in results):
        raise InputError(
            f"multiplier = {multiplier:g}: a step size of that many 1/tr(H) diverges: give a "
            "smaller one"
        )
    how = {0.0: "", 1.0: ", by the batch alone"}.get(batch_share, f", {batch_share:g} by the batch")
    title = (
        f"p of risk ~ N^-p by gamma{how}: fitted to the exact risk of {average}, "
        f"sigma^2 = {noise:g}, N = {samples // 16:,} .. {samples:,}, d = infinity "
        "(in brackets: Theorem 1)"
    )
    names = ["a, b", *(f"{gamma:g}" for gamma in _GAMMAS), "gamma*", "at gamma*", "minimax"]
    table = new_table(title, names)
    for (a, b), star, risks in zip(SPECTRA, stars, results, strict=True):
        late, last_ends = risks.excess(noise, average)[:, -5:], risks.checkpoints[-5:]
        cells = [
            f"{fitted_exponent(last_ends, row):.2f} ({power_law_exponent(a, b, gamma):.2f})"
            for row, gamma in zip(late, (*_GAMMAS, star), strict=True)
        ]
        minimax = f"{minimax_exponent(a, b):.2f}"
        table.add_row(f"{a:g}, {b:g}", *cells[:-1], f"{star:.2f}", cells[-1], minimax)
    return [table, _proven_table(), f"Largest relative error {largest_error(results):.0e}."]


def _proven_table() -> Table:
    spectra = [f"{a:g}, {b:g}" for a, b in SPECTRA]
    names = ["step sizes", "average", "horizon", "regime", *spectra]
    table = new_table("proven, up to constants and logarithms", names)
    for rate in RATES:
        exponents = [
            f"{minimax_exponent(a, b):.2f}" if rate.holds(a, b) else "" for a, b in SPECTRA
        ]
        table.add_row(rate.schedule, rate.averaged, rate.horizon, rate.regime, *exponents)
    return table


def new_table(title: str, columns: Sequence[str]) -> Table:
    """Returns an empty table, its first column aligned left and numbers right."""
    return Table(title, [columns[0], *numbers(*columns[1:])])


def write_finite_json(path: Path, content: Any) -> Path:
    """Writes a file whole or not at all; numbers that are not finite become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    with atomic_write(path) as part:
        part.write_text(json.dumps(finite, indent=1) + "\n", encoding="utf-8")
    return path
