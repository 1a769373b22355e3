"""Report of a comparison: tables, advice in words, a picture and the numbers behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from anytime_jax import plotting
from anytime_jax.averaging import LIVE
from anytime_jax.theory.comparison import (
    ENVELOPE,
    MULTIPLIERS,
    TOLERANCE,
    Comparison,
    NoiseLevel,
    Trajectory,
    mean_gap,
)
from anytime_jax.theory.output import new_table, write_json

LIMITS = (
    "Limits: this is SGD without momentum on a quadratic with Gaussian inputs and a power-law "
    "spectrum. A network's curvature moves, Adam rescales it, and its noise is not this noise: "
    "take the shape of the answer (which f, whether to decay, how late to tune), not the numbers."
)


def length_table(comparison: Comparison, level: NoiseLevel) -> list[Table | str]:
    """Returns gaps at every length: baselines tuned there, the best run of each family."""
    problem = comparison.problem
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, sigma^2 = {level.noise:g}, batch "
        f"{problem.batch_size}, d = {problem.dimension:g}: excess risk over the cosine tuned at "
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


def noise_table(comparison: Comparison, levels: Sequence[NoiseLevel]) -> Table:
    """Returns mean gaps over all lengths, a row for each noise level."""
    problem = comparison.problem
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, batch {problem.batch_size}: mean excess risk over "
        "the cosine tuned at each length"
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


def advice(comparison: Comparison, level: NoiseLevel) -> list[Table | str]:
    """Returns what to run and when to tune it, with the evidence and its limits."""
    chosen = level.advise()
    run, shortest = chosen.run, comparison.lengths[0]
    gamma, alpha = run.family.gamma, run.family.alpha
    shape = "gamma = 0 (a constant step size: there is no alpha)"
    if gamma > 0:
        part = alpha / shortest
        shape = f"gamma = {gamma:.4g}, alpha = {alpha:g} updates ({part:.3g} of the shortest)"
    later = chosen.tuned.gaps[comparison.lengths.index(chosen.tune_at) :]
    table = new_table(
        "the best run with each average", ["average", "step sizes", "c", "worst", "mean"]
    )
    for label in comparison.anytime.labels:
        best = level.best(average=label)
        numbers = f"{best.multiplier:.2g}", _percent(best.worst), _percent(best.mean)
        table.add_row(label, best.family.name, *numbers)
    return [
        f"{shape}, average {run.average}, "
        f"peak step size {run.multiplier * comparison.problem.step_unit:.3g} "
        f"= {run.multiplier:.3g} {_unit(comparison)}",
        f"its gap to the cosine tuned at each length: {', '.join(map(_percent, run.gaps))} at "
        f"{', '.join(f'{length:,}' for length in comparison.lengths)} updates",
        f"tune the peak at {chosen.tune_at:,} updates ({chosen.tune_at / shortest:.3g}x): the run "
        f"that is best there has gaps of {_percent(later.max())} or less from there on, "
        f"within {100 * TOLERANCE:g}% of the best any peak can do",
        table,
        *length_table(comparison, level),
        LIMITS,
    ]


def write(comparison: Comparison, level: NoiseLevel, directory: Path) -> list[Path]:
    """Writes the picture `compare.png` and every number behind it, `compare.json`."""
    problem = comparison.problem
    baselines = {name: x for name, x in level.baseline_gaps.items() if name != ENVELOPE}
    by_worst = sorted(level.trajectories, key=lambda run: run.worst)
    content = {
        "a": problem.a,
        "b": problem.b,
        "dimension": str(problem.dimension),
        "batch_size": problem.batch_size,
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
            for run in by_worst
        ],
    }
    title = f"a = {problem.a:g}, b = {problem.b:g}, $\\sigma^2$ = {level.noise:g}"
    runs = [level.best(family) for family in comparison.families]
    solid = {f"{run.family.name} ({run.average})": 1 + run.gaps for run in runs}
    dashed = {f"{name}, tuned at each": 1 + gaps for name, gaps in baselines.items()}
    picture = _plot_ratios(title, comparison.lengths, solid, dashed)
    return [
        plotting.save(picture, directory / "compare.png", dpi=130),
        write_json(directory / "compare.json", content),
    ]


def _plot_ratios(
    title: str,
    lengths: Sequence[int],
    solid: Mapping[str, np.ndarray],
    dashed: Mapping[str, np.ndarray],
) -> Figure:
    """Excess risks over that of the tuned cosine, float64[lengths] by name."""
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes = figure.subplots()
    baseline_colors = plotting.VERMILION, plotting.PURPLE, plotting.ORANGE
    for color, (name, ratios) in zip(plotting.shades(len(solid), 0.95), solid.items(), strict=True):
        axes.plot(lengths, ratios, "o-", color=color, ms=3, lw=1.3, label=name)
    for color, (name, ratios) in zip(baseline_colors, dashed.items(), strict=True):
        axes.plot(lengths, ratios, "s--", color=color, ms=3, lw=1.3, label=name)
    axes.axhline(1, color="black", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plotting.plain_log_ticks(axes)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("updates")
    axes.set_ylabel("excess risk / that of the cosine tuned there")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _percent(gap: float) -> str:
    return f"{100 * gap:+.1f}%"


def _unit(comparison: Comparison) -> str:
    problem = comparison.problem
    return "1/tr(H)" if problem.batch_size == 1 else f"{problem.step_unit:.3g}, the stable scale"


def _edge_mark(run: Trajectory) -> str:
    return "*" if run.multiplier in (MULTIPLIERS[0], MULTIPLIERS[-1]) else ""


def _peak(run: Trajectory) -> str:
    return f"{run.multiplier:.2g}{_edge_mark(run)}"


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:.2g}" if low == high else f"{low:.2g}..{high:.2g}"
