"""The answers of the theory bench as tables, and a comparison as a picture with its numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from anytime_jax.averaging import LIVE
from anytime_jax.theory import synthetic_figures
from anytime_jax.theory.comparison import ENVELOPE, GRID, Comparison, Trajectory, mean_gap
from anytime_jax.theory.spectrum import Problem


def table(title: str, columns: Sequence[str]) -> Table:
    """Returns an empty table, its first column to the left and numbers to the right."""
    made = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify="left")
    for k, name in enumerate(columns):
        made.add_column(name, justify="left" if k == 0 else "right", no_wrap=True)
    return made


def percent(gap: float) -> str:
    """Returns a gap as a signed percentage."""
    return f"{100 * gap:+.1f}%"


def by_noise(comparison: Comparison, noises: Sequence[float]) -> Table:
    """How the answer moves with the noise: mean gaps over all lengths."""
    problem = comparison.problem
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, batch {problem.batch_size}: mean excess risk over "
        "the cosine tuned at each length"
    )
    others = comparison.families[:2]
    windows = ("f6.25", "f25", "f100")
    rivals = [name for name in comparison.rivals if name != ENVELOPE]
    names = ["sigma^2", "best run", "average", "c", "gap", "worst"]
    names += [f"one {family.name}" for family in others]
    made = table(title, [*names, *(f"best {label}" for label in windows), *rivals])
    for noise in noises:
        best = comparison.best(noise)
        runs = [comparison.best(noise, family) for family in others]
        runs += [comparison.best(noise, average=label) for label in windows]
        gaps = [comparison.rival_gaps(name, noise) for name in rivals]
        made.add_row(
            f"{noise:g}",
            best.family.name,
            best.average,
            _peak(best),
            percent(best.mean),
            percent(best.worst),
            *(f"{percent(run.mean)}{_mark(run)} ({run.average})" for run in runs[:2]),
            *(percent(run.mean) for run in runs[2:]),
            *(percent(mean_gap(gap)) for gap in gaps),
        )
    return made


def show(comparison: Comparison, noise: float, console: Console) -> None:
    """Prints the table: rivals tuned at every length, the best run of every family."""
    problem = comparison.problem
    envelope, _ = comparison.tuned(ENVELOPE, noise)
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, sigma^2 = {noise:g}, batch {problem.batch_size}, "
        f"d = {problem.dimension:g}: excess risk over the cosine tuned at each length"
    )
    names = ["", "average", "c", *(f"{x:,}" for x in comparison.lengths)]
    made = table(title, names)
    made.add_row("excess risk of the cosine", "", "", *(f"{x:.3g}" for x in envelope))
    for name in comparison.rivals:
        _, peaks = comparison.tuned(name, noise)
        cells = (percent(gap) for gap in comparison.rival_gaps(name, noise))
        made.add_row(f"tuned at each: {name}", LIVE, _span(peaks), *cells)
    for family in comparison.families:
        run = comparison.best(noise, family)
        cells = (percent(gap) for gap in run.gaps)
        made.add_row(f"one run: {family.name}", run.average, _peak(run), *cells)
    console.print(made)
    console.print(
        f"c: peak step size over {unit(comparison.problem)}, * the edge of what was tried. Runs: "
        f"the smallest mean gap of each. "
        f"Largest relative error {comparison.error:.0e}."
    )


def unit(problem: Problem) -> str:
    """Returns what peaks are multiples of, in words."""
    return "1/tr(H)" if problem.batch_size == 1 else f"{problem.step_unit:.3g}, the stable scale"


def _mark(run: Trajectory) -> str:
    return "*" if run.multiplier in (GRID[0], GRID[-1]) else ""


def _peak(run: Trajectory) -> str:
    return f"{run.multiplier:.2g}{_mark(run)}"


def _span(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:.2g}" if low == high else f"{low:.2g}..{high:.2g}"


def write(comparison: Comparison, noise: float, folder: Path, console: Console) -> None:
    """Writes the picture, and every number behind it."""
    envelope, _ = comparison.tuned(ENVELOPE, noise)
    rivals = {
        name: comparison.rival_gaps(name, noise) for name in comparison.rivals if name != ENVELOPE
    }
    runs = [comparison.best(noise, family) for family in comparison.families]
    problem = comparison.problem
    told = {
        "a": problem.a,
        "b": problem.b,
        "dimension": str(problem.dimension),
        "batch_size": problem.batch_size,
        "noise": noise,
        "lengths": comparison.lengths,
        "cosine_excess_risk": envelope.tolist(),
        "rivals": {name: gaps.tolist() for name, gaps in rivals.items()},
        "largest_relative_error": comparison.error,
        "runs": [_told(run) for run in sorted(comparison.runs(noise), key=lambda run: run.worst)],
    }
    numbers = folder / "compare.json"
    synthetic_figures.write_json(numbers, told)
    title = f"a = {problem.a:g}, b = {problem.b:g}, $\\sigma^2$ = {noise:g}"
    lines = {f"{run.family.name} ({run.average})": 1 + run.gaps for run in runs}
    dashed = {f"{name}, tuned at each": 1 + gaps for name, gaps in rivals.items()}
    picture = folder / "compare.png"
    synthetic_figures.draw_ratios(picture, title, comparison.lengths, lines, dashed)
    console.print(f"  {picture}\n  {numbers}")


def _told(run: Trajectory) -> dict[str, object]:
    return {
        "gamma": run.family.gamma,
        "alpha": run.family.alpha,
        "multiplier": run.multiplier,
        "average": run.average,
        "gaps": [round(float(gap), 6) for gap in run.gaps],
    }


def selected(config: synthetic_figures.FigureConfig, told: Mapping[str, Any]) -> Table:
    """Returns what the figures show, as numbers: the running average of each schedule."""
    error = told["largest_relative_error"]
    title = (
        f"running average, selected at {config.select_at:,} updates, risk at {config.steps:,} "
        f"(relative error {error:.0e})"
    )
    made = table(title, ["a, b", "sigma^2", "schedule", "c", "risk", "fitted p", "minimax p"])
    for row in told["selected"]:
        if row["average"] == synthetic_figures.RUNNING:
            made.add_row(
                f"{row['a']:g}, {row['b']:g}",
                f"{row['noise']:g}",
                row["schedule"],
                f"{row['multiplier']:g}",
                f"{row['final_excess_risk']:.4g}",
                f"{row['fitted_exponent']:.3f}",
                f"{row['minimax_exponent']:.3f}",
            )
    return made
