"""The paper's synthetic figures: pictures, the curves and the numbers behind them.

Source: Figure 1 and its version with little noise in the appendix.
"""

import csv
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write
from anytime_jax.averaging import Uniform
from anytime_jax.theory.output import new_table, prepare_directory, write_json
from anytime_jax.theory.parallel import Progress
from anytime_jax.theory.rates import minimax_exponent
from anytime_jax.theory.risk import largest_error
from anytime_jax.theory.synthetic_runs import FigureConfig, SelectedRun, select, sweep

RUNNING = Uniform().label
_COLORS = {"constant": plotting.BLUE, "inverse_sqrt": plotting.VERMILION}


def make_figures(config: FigureConfig, progress: Progress) -> tuple[list[Path], Table]:
    """Computes the runs and writes the figures; returns the files and a table of the numbers."""
    start = time.monotonic()
    out = prepare_directory("out_dir", Path(config.out_dir))
    results = sweep(config, progress)
    seconds = time.monotonic() - start
    runs = select(config, results)
    summary = {
        "config": dataclasses.asdict(config),
        "seconds": round(seconds, 2),
        "largest_relative_error": largest_error(results),
        "selected": [_numbers(run) for run in runs],
    }
    files = [_write_csv(out / "curves.csv", runs), write_json(out / "figure.json", summary)]
    for noise in config.noise:
        at_noise = [run for run in runs if run.noise == noise]
        running, averages = (out / f"synthetic_{noise:g}{x}.png" for x in ("", "_averages"))
        files.append(plotting.save(_plot_running(config, noise, at_noise), running, dpi=130))
        files.append(plotting.save(_plot_averages(config, noise, at_noise), averages, dpi=110))
    return files, _table(config, summary)


def _numbers(run: SelectedRun) -> dict[str, Any]:
    return {
        "noise": run.noise,
        "a": run.a,
        "b": round(run.b, 12),
        "schedule": run.schedule,
        "average": run.average,
        "multiplier": run.multiplier,
        "final_excess_risk": float(run.risks[-1]),
        "fitted_exponent": run.exponent,
        "minimax_exponent": minimax_exponent(run.a, run.b),
    }


def _table(config: FigureConfig, summary: dict[str, Any]) -> Table:
    """The numbers of the running average of each schedule."""
    title = (
        f"running average, selected at {config.select_at:,} updates, risk at {config.steps:,} "
        f"(relative error {summary['largest_relative_error']:.0e})"
    )
    names = ["a, b", "sigma^2", "schedule", "c", "risk", "fitted p", "minimax p"]
    table = new_table(title, names)
    for row in summary["selected"]:
        if row["average"] == RUNNING:
            table.add_row(
                f"{row['a']:g}, {row['b']:g}",
                f"{row['noise']:g}",
                row["schedule"],
                f"{row['multiplier']:g}",
                f"{row['final_excess_risk']:.4g}",
                f"{row['fitted_exponent']:.3f}",
                f"{row['minimax_exponent']:.3f}",
            )
    return table


def _write_csv(path: Path, runs: Sequence[SelectedRun]) -> Path:
    with atomic_write(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["noise", "a", "b", "schedule", "average", "multiplier", "steps", "excess_risk"]
        writer.writerow(names)
        for run in runs:
            fixed = [run.noise, run.a, f"{run.b:g}", run.schedule, run.average]
            for steps, risk in zip(run.steps, run.risks, strict=True):
                writer.writerow([*fixed, run.multiplier, steps, repr(float(risk))])
    return path


# Pictures


def _plot_running(config: FigureConfig, noise: float, runs: Sequence[SelectedRun]) -> Figure:
    """The figure of the paper: the running average of each schedule, and the predicted rate."""
    figure, axes = _panels(config, len(config.source_ratio), noise, "running average")
    for panel, problem in zip(axes.flat, config.problems, strict=True):
        curves = [
            run
            for run in runs
            if (run.a, run.b) == (problem.a, problem.b) and run.average == RUNNING
        ]
        for run in curves:
            label = f"{plotting.schedule_name(run.schedule)}, $c = {run.multiplier:g}$"
            panel.plot(run.steps, run.risks, color=_COLORS[run.schedule], label=label)
        _plot_minimax_rate(panel, min(curves, key=lambda x: x.risks[-1]), config.select_at)
        panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
        plotting.plain_log_ticks(panel)
        panel.set_title(f"a = {problem.a:g}, b = {problem.b:g}", fontsize=10)
        panel.legend(fontsize=8, frameon=False)
    return figure


def _plot_averages(config: FigureConfig, noise: float, runs: Sequence[SelectedRun]) -> Figure:
    """The same for every average, each relative to the running one of its schedule."""
    rows = [(ratio, name) for ratio in config.source_ratio for name in config.schedules]
    figure, axes = _panels(config, len(rows), noise, "every average over the running one")
    labels = list(dict.fromkeys(run.average for run in runs))
    shades = dict(zip(labels, plotting.shades(len(labels), 0.95), strict=True))
    for k, (ratio, name) in enumerate(rows):
        for panel, a in zip(axes[k], config.capacity, strict=True):
            curves = {x.average: x for x in runs if (x.a, x.b, x.schedule) == (a, a * ratio, name)}
            for label, run in curves.items():
                late = run.steps >= config.select_at / 50
                with np.errstate(invalid="ignore"):  # both may have diverged
                    relative = run.risks[late] / curves[RUNNING].risks[late]
                color = "black" if label == RUNNING else shades[label]
                panel.plot(run.steps[late], relative, color=color, label=label, lw=1.2)
            panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
            plotting.plain_log_ticks(panel)
            schedule = plotting.schedule_name(name)
            panel.set_title(f"{schedule}, a = {a:g}, b = {a * ratio:g}", fontsize=10)
    plotting.legend_below(figure, axes[0, 0], columns=8)
    return figure


def _panels(config: FigureConfig, rows: int, noise: float, title: str) -> tuple[Figure, np.ndarray]:
    columns = len(config.capacity)
    figure = Figure(figsize=(4.0 * columns, 2.7 * rows + 1.0), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    figure.suptitle(rf"excess risk of SGD, $\sigma^2 = {noise:g}$: {title}")
    for panel in axes.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("updates N")
    return figure, axes


def _plot_minimax_rate(axes: Axes, run: SelectedRun, from_step: int) -> None:
    """A dashed line of the minimax rate, a little below the run from `from_step` on."""
    late = run.steps >= from_step
    steps = run.steps[late]
    line = 0.7 * run.risks[late][0] * (steps / steps[0]) ** -minimax_exponent(run.a, run.b)
    axes.plot(steps, line, "k--", lw=1, label=r"$N^{-(b-1)/\max(a,b)}$")
