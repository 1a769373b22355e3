"""The paper's synthetic figures: one sweep for each panel, the picture, and its numbers.

Source: Figure 1 and its version with little noise in the appendix.
"""

import csv
import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from anytime_jax import plotting
from anytime_jax.atomic import atomic_write, make_writable_directory
from anytime_jax.averaging import Uniform
from anytime_jax.checks import (
    format_value,
    is_number,
    require,
    require_choice,
    require_count,
    require_directory,
)
from anytime_jax.schedules import Power
from anytime_jax.theory.parallel import GAMMAS, Report, best, in_parallel, lengths
from anytime_jax.theory.rates import fitted_exponent, minimax_exponent
from anytime_jax.theory.risk import Risks, excess_risk, largest_error, require_noise
from anytime_jax.theory.spectrum import Problem
from anytime_jax.theory.tail_averages import Average, plan
from anytime_jax.weights.post_hoc import LastFraction

_COLOURS = {"constant": plotting.BLUE, "inverse_sqrt": plotting.VERMILION}
RUNNING = Uniform().label


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """What to compute and draw.

    Attributes:
      out_dir: directory for the pictures and numbers.
      capacity: the exponents a, one column of panels each.
      source_ratio: b / a, one row of panels each.
      dimension: number of coordinates; 0 for infinity.
      noise: the values of sigma^2, one picture each.
      steps: updates of every run, N.
      select_at: the update at which the step size is selected.
      multipliers: step sizes to try, in units of 1/tr(H).
      schedules: names of horizon-free schedules.
      windows: the f of growing-window averages.
      last_fraction: part of the run that the tail average covers.
    """

    out_dir: str
    capacity: tuple
    source_ratio: tuple
    dimension: int
    noise: tuple
    steps: int
    select_at: int
    multipliers: tuple
    schedules: tuple
    windows: tuple
    last_fraction: float

    def __post_init__(self) -> None:
        """Checks every field, as far as no object made of them does."""
        require_directory("out_dir", self.out_dir)
        require_count("dimension", self.dimension)
        require_count("steps", self.steps, least=2)
        require_count("select_at", self.select_at, least=1)
        within = self.select_at <= self.steps
        require(within, "select_at", self.select_at, f"at most steps = {self.steps}")
        for name in ("capacity", "source_ratio", "noise", "multipliers", "schedules"):
            given = getattr(self, name)
            require(len(given) > 0, name, given, "one value or more")
            require(len(set(given)) == len(given), name, given, "values that differ")
        for name in ("capacity", "source_ratio", "multipliers"):
            for value in getattr(self, name):
                require(is_number(value) and value > 0, name, value, "numbers above 0")
        for value in self.noise:
            require_noise(value)
        for name in self.schedules:
            require_choice("schedules", name, tuple(GAMMAS))
        self.problems  # noqa: B018  (each checks its own exponents)
        plan(self.averages, [1])  # checks each

    @property
    def problems(self) -> list[Problem]:
        """One for each panel, row by row."""
        dimension = self.dimension or math.inf
        return [Problem(a, a * r, dimension) for r in self.source_ratio for a in self.capacity]

    @property
    def averages(self) -> list[Average]:
        """The running average, the tail, and the growing windows."""
        return [Uniform(), LastFraction(self.last_fraction), *self.windows]


@dataclasses.dataclass(frozen=True)
class SelectedRun:
    """The trajectory that was selected in a panel.

    Attributes:
      noise: sigma^2.
      a: capacity exponent.
      b: source exponent.
      schedule: name of the schedule.
      average: label of the average.
      multiplier: step size, in units of 1/tr(H).
      steps: int[T], checkpoints.
      risks: float64[T], exact excess risks.
    """

    noise: float
    a: float
    b: float
    schedule: str
    average: str
    multiplier: float
    steps: np.ndarray
    risks: np.ndarray

    @property
    def exponent(self) -> float:
        """The p of risk ~ N^-p, fitted over the last factor of 10 of the run."""
        late = self.steps >= self.steps[-1] / 10
        return fitted_exponent(self.steps[late], self.risks[late])


def make(config: FigureConfig, report: Report) -> tuple[list[Path], dict[str, Any]]:
    """Computes and draws the figures; returns the files written and what `figure.json` holds.

    Args:
      config: what to compute.
      report: told the part that is done.
    """
    began = time.monotonic()
    problems = config.problems
    out = require_folder("out_dir", Path(config.out_dir))
    sweeps = in_parallel([_sweep(config, x) for x in problems], [1.0] * len(problems), report)
    seconds = time.monotonic() - began
    curves = [
        curve
        for noise in config.noise
        for problem, risks in zip(problems, sweeps, strict=True)
        for curve in _selected(config, problem, noise, risks)
    ]
    files = [_write_csv(out / "curves.csv", curves)]
    told = _told(config, sweeps, curves, seconds)
    files.append(write_json(out / "figure.json", told))
    for noise in config.noise:
        mine = [curve for curve in curves if curve.noise == noise]
        files.append(_draw(out / f"synthetic_{noise:g}.png", config, noise, mine))
        files.append(_draw_averages(out / f"synthetic_{noise:g}_averages.png", config, noise, mine))
    return files, told


def require_folder(name: str, path: Path) -> Path:
    """Returns a directory that is there now; raises if something else is there."""
    require_directory(name, str(path))
    try:
        make_writable_directory(path)
    except OSError as error:
        raise ValueError(
            f"{name} = {format_value(str(path))} cannot be written to ({error.strerror}): choose another "
            "directory"
        ) from error
    return path


def _settings(config: FigureConfig) -> list[tuple[str, float]]:
    return [(name, c) for name in config.schedules for c in config.multipliers]


def _sweep(config: FigureConfig, problem: Problem) -> Callable[[Report], Risks]:
    """The task of a panel: every schedule at every multiplier."""
    checkpoints = lengths(config.steps, config.select_at)
    given = [Power(c / problem.trace, GAMMAS[name]) for name, c in _settings(config)]

    def task(report: Report) -> Risks:
        return excess_risk(problem, given, config.averages, checkpoints, report=report)

    return task


def _selected(
    config: FigureConfig, problem: Problem, noise: float, risks: Risks
) -> list[SelectedRun]:
    """For each schedule and average the trajectory that was best at the update of selection."""
    settings = _settings(config)
    curves = []
    for name in config.schedules:
        mine = [k for k, (schedule, _) in enumerate(settings) if schedule == name]
        of_name = dataclasses.replace(
            risks, bias=risks.bias[:, mine], variance=risks.variance[:, mine]
        )
        for label in risks.labels:
            k = best(of_name, noise, label, config.select_at)
            values = of_name.excess(noise, label)[k]
            multiplier = settings[mine[k]][1]
            curves.append(
                SelectedRun(
                    noise, problem.a, problem.b, name, label, multiplier, risks.checkpoints, values
                )
            )
    return curves


def _write_csv(path: Path, curves: Sequence[SelectedRun]) -> Path:
    with atomic_write(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["noise", "a", "b", "schedule", "average", "multiplier", "steps", "excess_risk"]
        writer.writerow(names)
        for curve in curves:
            fixed = [curve.noise, curve.a, f"{curve.b:g}", curve.schedule, curve.average]
            for steps, risk in zip(curve.steps, curve.risks, strict=True):
                writer.writerow([*fixed, curve.multiplier, steps, repr(float(risk))])
    return path


def _told(
    config: FigureConfig, sweeps: Sequence[Risks], curves: Sequence[SelectedRun], seconds: float
) -> dict[str, Any]:
    """What was asked for, what was selected, and how exact it is."""
    return {
        "config": dataclasses.asdict(config),
        "seconds": round(seconds, 2),
        "largest_relative_error": largest_error(sweeps),
        "selected": [
            {
                "noise": curve.noise,
                "a": curve.a,
                "b": round(curve.b, 12),
                "schedule": curve.schedule,
                "average": curve.average,
                "multiplier": curve.multiplier,
                "final_excess_risk": float(curve.risks[-1]),
                "fitted_exponent": curve.exponent,
                "minimax_exponent": minimax_exponent(curve.a, curve.b),
            }
            for curve in curves
        ],
    }


def write_json(path: Path, told: Mapping[str, Any]) -> Path:
    """Writes a file whole or not at all; numbers that are not finite become null."""
    with atomic_write(path) as part:
        text = json.dumps(_finite(told), indent=1, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
    return path


def _finite(told: Any) -> Any:
    if isinstance(told, Mapping):
        return {name: _finite(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _panels(config: FigureConfig, rows: int, noise: float, what: str) -> tuple[Figure, np.ndarray]:
    columns = len(config.capacity)
    figure = Figure(figsize=(4.0 * columns, 2.7 * rows + 1.0), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    figure.suptitle(rf"excess risk of SGD, $\sigma^2 = {noise:g}$: {what}")
    for panel in axes.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("updates N")
    return figure, axes


def _ticks(panel: Axes) -> None:
    """Few ticks with plain numbers: the many small ones of a log axis take seconds to draw."""
    low, high = panel.get_ylim()
    decades = math.log10(high / low)
    subs: tuple[float, ...] = (1, 1.1, 1.2, 1.4, 2, 3, 4, 5, 6, 7, 8, 9)
    for least, fewer in ((0.3, (1, 1.5, 2, 3, 5, 7)), (1.3, (1, 3)), (3, (1,))):
        subs = fewer if decades > least else subs
    panel.yaxis.set_major_locator(LogLocator(subs=subs))
    panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_minor_locator(NullLocator())


def _rate(axes: Axes, curve: SelectedRun, from_step: int) -> None:
    """The dashed line of the minimax rate, through the curve at the selection."""
    late = curve.steps >= from_step
    steps = curve.steps[late]
    line = 0.7 * curve.risks[late][0] * (steps / steps[0]) ** -minimax_exponent(curve.a, curve.b)
    axes.plot(steps, line, "k--", lw=1, label=r"$N^{-(b-1)/\max(a,b)}$")


def _draw(path: Path, config: FigureConfig, noise: float, curves: Sequence[SelectedRun]) -> Path:
    """The figure of the paper: the running average of each schedule, and the predicted rate."""
    figure, axes = _panels(config, len(config.source_ratio), noise, "running average")
    for panel, problem in zip(axes.flat, config.problems, strict=True):
        mine = [x for x in curves if (x.a, x.b) == (problem.a, problem.b) and x.average == RUNNING]
        for curve in mine:
            label = f"{plotting.schedule_name(curve.schedule)}, $c = {curve.multiplier:g}$"
            panel.plot(curve.steps, curve.risks, color=_COLOURS[curve.schedule], label=label)
        _rate(panel, min(mine, key=lambda x: x.risks[-1]), config.select_at)
        panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
        _ticks(panel)
        panel.set_title(f"a = {problem.a:g}, b = {problem.b:g}", fontsize=10)
        panel.legend(fontsize=8, frameon=False)
    return plotting.save(figure, path, dpi=130)


def _draw_averages(
    path: Path, config: FigureConfig, noise: float, curves: Sequence[SelectedRun]
) -> Path:
    """The same for every average, each relative to the running one of its schedule."""
    rows = [(ratio, name) for ratio in config.source_ratio for name in config.schedules]
    figure, axes = _panels(config, len(rows), noise, "every average over the running one")
    labels = list(dict.fromkeys(curve.average for curve in curves))
    shades = dict(zip(labels, plotting.shades(len(labels), lightest=0.95), strict=True))
    for k, (ratio, name) in enumerate(rows):
        for panel, a in zip(axes[k], config.capacity, strict=True):
            mine = {x.average: x for x in curves if (x.a, x.b, x.schedule) == (a, a * ratio, name)}
            for label, curve in mine.items():
                late = curve.steps >= config.select_at / 50
                with np.errstate(invalid="ignore"):  # both may have diverged
                    relative = curve.risks[late] / mine[RUNNING].risks[late]
                colour = "black" if label == RUNNING else shades[label]
                panel.plot(curve.steps[late], relative, color=colour, label=label, lw=1.2)
            panel.axvline(config.select_at, color="0.6", lw=0.8, ls=":")
            _ticks(panel)
            panel.set_title(
                f"{plotting.schedule_name(name)}, a = {a:g}, b = {a * ratio:g}", fontsize=10
            )
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=8, frameon=False)
    return plotting.save(figure, path, dpi=110)


def draw_ratios(
    path: Path,
    title: str,
    steps: Sequence[int],
    runs: Mapping[str, np.ndarray],
    rivals: Mapping[str, np.ndarray],
) -> Path:
    """Draws excess risks over that of the tuned cosine, against the length of the run.

    Args:
      path: the picture to write.
      title: its title.
      steps: int[T], the lengths.
      runs: float64[T] ratios of single runs, by name.
      rivals: the same of schedules tuned at each length; dashed.
    """
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes = figure.subplots()
    for lines, style in ((runs, "o-"), (rivals, "s--")):
        colours = (
            plotting.shades(len(lines), lightest=0.95)
            if lines is runs
            else [plotting.VERMILION, plotting.PURPLE, plotting.ORANGE]
        )
        for colour, (name, ratios) in zip(colours, lines.items(), strict=True):
            axes.plot(steps, ratios, style, color=colour, ms=3, lw=1.3, label=name)
    axes.axhline(1, color="black", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _ticks(axes)
    axes.set_xticks(steps, [f"{x:,}" for x in steps])
    axes.set_xlabel("updates")
    axes.set_ylabel("excess risk / that of the cosine tuned there")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return plotting.save(figure, path, dpi=130)
