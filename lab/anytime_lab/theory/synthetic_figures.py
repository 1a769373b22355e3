"""The paper's synthetic figures: step sizes swept on each problem, the best selected early.

Source: Figure 1 and its version with little noise in the appendix.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.averaging import Uniform
from anytime_jax.checks import is_number, require, require_choice, require_count, require_directory
from anytime_jax.errors import InputError
from anytime_jax.schedules import Power
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.tables import Table
from anytime_jax.weights.post_hoc_averages import LastFraction
from anytime_lab import schedule_styles
from anytime_lab.table_text import to_csv
from anytime_lab.theory.convergence_rates import fitted_exponent, minimax_exponent
from anytime_lab.theory.parallel_risks import Progress, RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.reports import new_table, write_finite_json
from anytime_lab.theory.risk import Risks, largest_error, require_noise
from anytime_lab.theory.tracked_averages import Average, track

RUNNING = Uniform().label
_COLORS = {"constant": figure_style.BLUE, "inverse_sqrt": figure_style.VERMILION}
# Exponents of the decay of horizon-free schedules, by name. Update t uses count t - 1, so that
# `Power(peak, gamma)`, whose alpha is 1, is peak / t^gamma.
GAMMAS: Mapping[str, float] = {"constant": 0.0, "inverse_sqrt": 0.5}


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """Settings of the figures."""

    out_dir: str  # for the pictures and numbers
    capacity: tuple  # exponents a, one column of panels each
    source_ratio: tuple  # b / a, one row of panels each
    dimension: int  # number of coordinates; 0 for infinity
    noise: tuple  # values of sigma^2, one picture each
    steps: int  # updates of every run, N
    select_at: int  # the update at which the step size is selected
    multipliers: tuple  # step sizes to try, in units of 1/tr(H)
    schedules: tuple  # names of horizon-free schedules, of `GAMMAS`
    windows: tuple  # the f of growing-window averages
    last_fraction: float  # part of the run that the tail average covers

    def __post_init__(self) -> None:
        require_directory("out_dir", self.out_dir)
        require_count("dimension", self.dimension)
        require_count("steps", self.steps, least=2)
        require_count("select_at", self.select_at, least=1)
        within = self.select_at <= self.steps
        require(within, "select_at", self.select_at, f"at most steps = {self.steps}")
        for name in ("capacity", "source_ratio", "noise", "multipliers", "schedules"):
            values = getattr(self, name)
            require(len(values) > 0, name, values, "one value or more")
            require(len(set(values)) == len(values), name, values, "values that differ")
        for name in ("capacity", "source_ratio", "multipliers"):
            for value in getattr(self, name):
                require(is_number(value) and value > 0, name, value, "numbers above 0")
        for value in self.noise:
            require_noise(value)
        for name in self.schedules:
            require_choice("schedules", name, tuple(GAMMAS))
        self.problems  # noqa: B018  (each checks its exponents)
        track(self.averages, [1])  # the constructor checks each value

    @property
    def problems(self) -> list[Problem]:
        """The problem of each panel, row by row."""
        dimension = self.dimension or math.inf
        return [Problem(a, a * r, dimension) for r in self.source_ratio for a in self.capacity]

    @property
    def averages(self) -> list[Average]:
        """The running average, the tail, and the growing windows."""
        return [Uniform(), LastFraction(self.last_fraction), *self.windows]


@dataclasses.dataclass(frozen=True)
class SelectedRun:
    """The best run of a panel at the update of selection, for one average."""

    noise: float
    problem: Problem
    schedule: str
    average: str  # its label
    multiplier: float  # step size, in units of 1/tr(H)
    steps: np.ndarray  # int[T], checkpoints
    risks: np.ndarray  # float64[T], exact excess risks

    def summary(self) -> dict[str, Any]:
        """Returns the settings, the last risk and its rates: p of risk ~ N^-p.

        The fit is over the last factor of 10 of the run.
        """
        late = self.steps >= self.steps[-1] / 10
        return {
            "noise": self.noise,
            "a": self.problem.a,
            "b": round(self.problem.b, 12),
            "schedule": self.schedule,
            "average": self.average,
            "multiplier": self.multiplier,
            "final_excess_risk": float(self.risks[-1]),
            "fitted_exponent": fitted_exponent(self.steps[late], self.risks[late]),
            "minimax_exponent": minimax_exponent(self.problem.a, self.problem.b),
        }


def select(config: FigureConfig, results: Sequence[Risks]) -> list[SelectedRun]:
    """Returns the run with the lowest risk at the update of selection.

    There is one for each noise level, problem, schedule and average, in this order.
    """
    number = len(config.multipliers)
    panels = list(zip(config.problems, results, strict=True))
    selected = []
    for noise, (problem, risks) in itertools.product(config.noise, panels):
        for k, name in enumerate(config.schedules):
            for label in risks.labels:
                rows = risks.excess(noise, label)[k * number : (k + 1) * number]
                best = lowest(rows, risks.checkpoints, config.select_at)
                curve = config.multipliers[best], risks.checkpoints, rows[best]
                selected.append(SelectedRun(noise, problem, name, label, *curve))
    return selected


def lowest(risks: np.ndarray, checkpoints: np.ndarray, at: int) -> int:
    """Returns the index of the run with the lowest of risks float64[S, T] at a checkpoint."""
    column = risks[:, list(checkpoints).index(at)]
    if not np.isfinite(column).any():
        raise InputError(f"every run of the sweep has diverged by update {at}: try smaller rates")
    return int(np.argmin(np.where(np.isfinite(column), column, np.inf)))


def checkpoints_through(through: int, steps: int) -> list[int]:
    """Returns numbers of updates, about two a doubling, through `through` to `steps`."""
    above = max(1, int(2 * np.log2(steps / through)))
    later = through * (steps / through) ** (np.arange(above) / above)
    ratio = max(2**0.5, (steps / through) ** (1 / above))
    earlier = through * ratio ** np.arange(-int(np.log(through) / np.log(ratio)), 0.0)
    return sorted({*(round(float(x)) for x in (*earlier, *later)), through, steps})


def make_figures(config: FigureConfig, progress: Progress) -> tuple[list[Path], Table]:
    """Computes the runs and writes the figures; returns the files and a table of the numbers."""
    start = time.monotonic()
    out = Path(config.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    arguments = [_risk_arguments(config, problem) for problem in config.problems]
    results = compute_risks(arguments, progress)
    seconds = time.monotonic() - start
    runs = select(config, results)
    summary = {
        "config": dataclasses.asdict(config),
        "seconds": round(seconds, 2),
        "largest_relative_error": largest_error(results),
        "selected": [run.summary() for run in runs],
    }
    files = [_write_csv(out / "curves.csv", runs), write_finite_json(out / "figure.json", summary)]
    for noise in config.noise:
        at_noise = [run for run in runs if run.noise == noise]
        running, averages = (out / f"synthetic_{noise:g}{x}.png" for x in ("", "_averages"))
        files.append(figure_style.save(_plot_running(config, noise, at_noise), running, dpi=130))
        files.append(figure_style.save(_plot_averages(config, noise, at_noise), averages, dpi=110))
    return files, _table(config, summary)


def _risk_arguments(config: FigureConfig, problem: Problem) -> RiskArguments:
    """Every schedule at every multiplier."""
    runs = [
        Power(multiplier / problem.trace, GAMMAS[name])
        for name in config.schedules
        for multiplier in config.multipliers
    ]
    checkpoints = checkpoints_through(config.select_at, config.steps)
    return RiskArguments(problem, runs, config.averages, checkpoints)


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
    names = ["noise", "a", "b", "schedule", "average", "multiplier", "steps", "excess_risk"]
    table = Table("", names)
    for run in runs:
        fixed = [run.noise, run.problem.a, f"{run.problem.b:g}", run.schedule, run.average]
        for steps, risk in zip(run.steps, run.risks, strict=True):
            table.add_row(*fixed, run.multiplier, int(steps), float(risk))
    with atomic_write(path) as part:
        part.write_text(to_csv(table), encoding="utf-8", newline="")
    return path


# Pictures


def _plot_running(config: FigureConfig, noise: float, runs: Sequence[SelectedRun]) -> Figure:
    """Plots the paper's figure: the running average of each schedule over the minimax rate."""
    title, y_label = "running average", "excess risk"
    figure, axes = _panels(config, len(config.source_ratio), noise, title, y_label)
    for panel, problem in zip(axes.flat, config.problems, strict=True):
        curves = [run for run in runs if (run.problem, run.average) == (problem, RUNNING)]
        for run in curves:
            label = f"{schedule_styles.schedule_name(run.schedule)}, $c = {run.multiplier:g}$"
            panel.plot(run.steps, run.risks, color=_COLORS[run.schedule], label=label)
        best = min(curves, key=lambda run: run.risks[-1])
        late = best.steps >= config.select_at
        decay = best.steps[late] / best.steps[late][0]
        rate = 0.7 * best.risks[late][0] * decay ** -minimax_exponent(problem.a, problem.b)
        panel.plot(best.steps[late], rate, "k--", lw=1, label=r"$N^{-(b-1)/\max(a,b)}$")
        panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
        schedule_styles.plain_log_ticks(panel)
        panel.set_title(f"a = {problem.a:g}, b = {problem.b:g}", fontsize=10)
        panel.legend(fontsize=8, frameon=False)
    return figure


def _plot_averages(config: FigureConfig, noise: float, runs: Sequence[SelectedRun]) -> Figure:
    """Plots every average relative to the running average of its schedule."""
    rows = list(itertools.product(config.source_ratio, config.schedules))
    title, y_label = "every average over the running one", "risk / risk of the running average"
    figure, axes = _panels(config, len(rows), noise, title, y_label)
    for k, (ratio, name) in enumerate(rows):
        for panel, a in zip(axes[k], config.capacity, strict=True):
            key = a, a * ratio, name
            curves = {x.average: x for x in runs if (x.problem.a, x.problem.b, x.schedule) == key}
            for label, run in curves.items():
                late = run.steps >= config.select_at / 50
                with np.errstate(invalid="ignore"):  # both may have diverged
                    relative = run.risks[late] / curves[RUNNING].risks[late]
                style = figure_style.weight_style(label)
                panel.plot(run.steps[late], relative, label=label, lw=1.2, **style)
            panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
            schedule_styles.plain_log_ticks(panel)
            schedule = schedule_styles.schedule_name(name)
            panel.set_title(f"{schedule}, a = {a:g}, b = {a * ratio:g}", fontsize=10)
    schedule_styles.legend_below(figure, axes[0, 0], columns=8)
    return figure


def _panels(
    config: FigureConfig, rows: int, noise: float, title: str, y_label: str
) -> tuple[Figure, np.ndarray]:
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
    for panel in axes[:, 0]:
        panel.set_ylabel(y_label)
    return figure, axes
