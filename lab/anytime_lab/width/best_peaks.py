"""Find the best peak at each width or budget of a study, and the loss that another's gives away.

The losses of an optimizer with a schedule, its settings and a batch are fitted by parabolas in the
log of the peak, one for each parametrization and width; in a study of one width, one for each
budget. Their curvature is the same, which five peaks a factor of sqrt(2) apart do not measure for
one width alone; each seed has a level of its own. Runs without a horizon are read out through
averages, runs with one through the live weights at its end. The table goes between
<!-- best peaks --> and <!-- end --> of the page.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_lab import study_page
from anytime_lab.leaderboard.leaderboard import common_settings, optimizer_name
from anytime_lab.study.results import DECAY, LOSS, Results, describe, schedule_kind
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--study=widths --page=lab/evidence/width.md",)

_FAR = 1.01  # octaves: peaks farther from the best one that was tried are left out of the fit
_LEAST_PEAKS = 3  # of a curve; others are left out
_READOUTS = ("f12.5", "f25", LIVE)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Losses of an optimizer with a schedule at one size, by log2 of the peak and seed.

    Attributes:
      size: the width, or the multiple of a budget.
      base: the base width of "mup", else 0.
    """

    optimizer: str
    schedule: str
    parametrization: str
    size: float
    base: int
    losses: Mapping[tuple[float, Any], float]

    def near_least(self) -> dict[tuple[float, Any], float]:
        """The losses whose peak is at most an octave from the one with the least mean loss."""
        means: dict[float, list[float]] = {}
        for (x, _), loss in self.losses.items():
            means.setdefault(x, []).append(loss)
        best = min(means, key=lambda x: float(np.mean(means[x])))
        return {key: loss for key, loss in self.losses.items() if abs(key[0] - best) < _FAR}


@dataclasses.dataclass(frozen=True, eq=False)
class BestPeak:
    """The least of a fitted parabola.

    Attributes:
      log_peak: log2 of the best peak.
      error: its standard error, from the residuals of the fit.
      is_inside: whether it is between the least and the largest peak that was tried.
      runs: number of losses in its fit.
    """

    curve: Curve
    log_peak: float
    error: float
    is_inside: bool
    runs: int


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """Parabolas of one curvature for the curves of an optimizer with a schedule.

    Attributes:
      covariance: of the best peaks, in octaves squared.
      curvature: nats per octave squared: a peak x octaves from the best costs curvature * x².
      residual: standard deviation of the losses from the parabolas, in nats.
      degrees_of_freedom: number of losses minus the number of parameters.
    """

    best: Sequence[BestPeak]
    covariance: np.ndarray
    curvature: float
    curvature_error: float
    residual: float
    degrees_of_freedom: int

    def at_base(self, best: BestPeak) -> BestPeak:
        """The best peak at the base width, where "mup" is the standard parametrization.

        Without runs there, or a base, it is the one of the same parametrization at the least size.
        """
        same = [x for x in self.best if x.curve.parametrization == best.curve.parametrization]
        at_base = [x for x in self.best if x.curve.size == best.curve.base]
        return min(at_base or same, key=lambda x: x.curve.size)

    def excess_at_base_peak(self, best: BestPeak) -> float:
        """The loss above the best at a size with the best peak of the base, in nats."""
        return self.curvature * (best.log_peak - self.at_base(best).log_peak) ** 2

    @property
    def for_all(self) -> tuple[float, float]:
        """The log2 of the peak at which the mean of all parabolas is least, and its error.

        As their curvature is the same, it is the mean of the logs of their best peaks.
        """
        share = np.full(len(self.best), 1 / len(self.best))
        mean = float(share @ [x.log_peak for x in self.best])
        return mean, math.sqrt(share @ self.covariance @ share)


def fit(curves: Sequence[Curve]) -> Fit:
    """Fits the curves of an optimizer with a schedule by least squares.

    Raises an InputError if there are too few losses, or no parabola has a least value.
    """
    near = [curve.near_least() for curve in curves]
    points = [(i, x, y) for i, losses in enumerate(near) for x, y in sorted(losses.items())]
    levels = {key: n for n, key in enumerate(sorted({(i, x[1]) for i, x, _ in points}))}
    centers = [float(np.mean([x for x, _ in losses])) for losses in near]
    slopes = len(levels)
    matrix = np.zeros((len(points), slopes + len(curves) + 1))
    for row, (i, (x, seed), _) in zip(matrix, points, strict=True):
        row[levels[i, seed]] = 1
        row[slopes + i] = x - centers[i]
        row[-1] = (x - centers[i]) ** 2
    losses = np.array([y for _, _, y in points])
    rank = int(np.linalg.matrix_rank(matrix))
    degrees_of_freedom = len(points) - rank
    if degrees_of_freedom < 1 or rank < matrix.shape[1]:
        raise InputError(
            f"{_name(curves)}: {len(points)} runs are too few for the parabolas of "
            f"{len(curves)} sizes: train more of the study"
        )
    solution = np.linalg.lstsq(matrix, losses, rcond=None)[0]
    variance = float(((losses - matrix @ solution) ** 2).sum()) / degrees_of_freedom
    covariance = variance * np.linalg.inv(matrix.T @ matrix)
    a = float(solution[-1])
    if a <= 0:
        raise InputError(f"{_name(curves)}: its losses have no least value among the peaks")
    b = solution[slopes:-1]
    gradient = np.zeros((len(curves), len(solution)))  # of -b / 2a, by all parameters
    gradient[:, slopes:-1] = np.eye(len(curves)) * (-1 / (2 * a))
    gradient[:, -1] = b / (2 * a * a)
    of_peaks = gradient @ covariance @ gradient.T
    found = []
    for i, curve in enumerate(curves):
        error = math.sqrt(float(of_peaks[i, i]))
        tried = [x for x, _ in curve.losses]
        best = centers[i] - float(b[i]) / (2 * a)
        inside = min(tried) < best < max(tried)
        found.append(BestPeak(curve, best, error, inside, len(near[i])))
    curvature_error = math.sqrt(float(covariance[-1, -1]))
    return Fit(found, of_peaks, a, curvature_error, math.sqrt(variance), degrees_of_freedom)


def _name(curves: Sequence[Curve]) -> str:
    return f"{curves[0].optimizer}, {curves[0].schedule}"


def read_curves(results: Results, readout: str) -> list[list[Curve]]:
    """Returns the curves of every optimizer and schedule, by one read-out.

    In a study of several widths, they are of the end of the runs; in one of one width, of each
    budget. The live weights read out runs with a horizon, averages those without. Curves of fewer
    than three peaks are left out. Raises an InputError if two runs differ in something else.
    """
    losses: dict[tuple[str, str, str, float, int], dict[tuple[float, Any], float]] = {}
    names: dict[Any, str] = {}
    has_widths = _has_widths(results)
    for run in results.runs:
        config = results.configs[run.name]
        found = run.reported.get(LOSS, {})
        if (readout == LIVE) != (config.horizon is not None):
            continue
        is_of_budgets = not has_widths and config.horizon is None
        model, multiples = config.model, results.multiples if is_of_budgets else [run.stop]
        optimizer = optimizer_name(config.optimizer, common_settings(results))
        varying = {*config.schedule.settings, "batch_growth"} & run.settings.keys() - {*DECAY}
        others = {name: run.settings[name] for name in sorted(varying)}
        peak = math.log2(others.pop("peak"))
        schedule = ", ".join([schedule_kind(config), *([describe(others)] if others else [])])
        method = optimizer, schedule, model.parametrization
        for m in multiples:
            if readout not in found.get(m, {}):
                continue
            size, base = (model.width, model.base_width) if has_widths else (m, 0)
            key = (*method, size, base)
            if other := names.get((key, peak, run.seed)):
                raise InputError(
                    f"study {results.study.name}: {other} and {run.name} differ in another setting "
                    "than those of the optimizer and the schedule, the parametrization, the seed, "
                    "and the width or the budget: give a study of widths or of budgets"
                )
            names[key, peak, run.seed] = run.name
            losses.setdefault(key, {})[peak, run.seed] = float(np.mean(found[m][readout]))
    curves: dict[tuple[str, str], list[Curve]] = {}
    for key, of_curve in sorted(losses.items()):
        if len({peak for peak, _ in of_curve}) >= _LEAST_PEAKS:
            curve = Curve(*key, of_curve)
            curves.setdefault((curve.optimizer, curve.schedule), []).append(curve)
    return list(curves.values())


def _has_widths(results: Results) -> bool:
    return len({config.model.width for config in results.configs.values()}) > 1


def powers(fitted: Fit) -> dict[str, tuple[float, float]]:
    """Returns the power of the size that the best peak follows, and its standard error.

    It is by parametrization; the best peak at the base counts for all.
    """
    found = {}
    for parametrization in sorted({x.curve.parametrization for x in fitted.best}):
        of_it = [x for x in fitted.best if x.curve.parametrization == parametrization]
        base = fitted.at_base(of_it[0])
        points = [x for x in fitted.best if x in of_it or x is base]
        if len(points) < 2:
            continue
        x = np.log2([float(best.curve.size) for best in points])
        slope = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        power = slope @ [best.log_peak for best in points]
        chosen = [fitted.best.index(best) for best in points]
        error = np.sqrt(slope @ fitted.covariance[np.ix_(chosen, chosen)] @ slope)
        found[parametrization] = float(power), float(error)
    return found


def make_tables(results: Results, warn: Callable[[str], None]) -> Iterator[Table]:
    """Yields the best peaks of every optimizer, schedule and read-out, and the fits.

    Methods that cannot be fitted are left out, with a warning. Raises an InputError if nothing is
    left.
    """
    size = "width" if _has_widths(results) else "budget"
    peaks = Table(
        "",
        [
            *("optimizer", "schedule", "parametrization", *numbers(size), "read-out"),
            *numbers("best peak", "95% interval", "times the base's", "given away", "runs"),
        ],
    )
    fits = Table(
        "",
        [
            *("optimizer", "schedule", "read-out", *numbers("curvature", "residual")),
            *("parametrization", *numbers(f"power of the {size}", "95% interval")),
        ],
    )
    for readout in _READOUTS:
        for curves in read_curves(results, readout):
            try:
                fitted = fit(curves)
            except InputError as error:
                warn(f"left out   {readout} of {error}")
                continue
            method = curves[0].optimizer, curves[0].schedule
            t = float(stats.t.ppf(0.975, fitted.degrees_of_freedom))
            for best in fitted.best:
                low, high = (2 ** (best.log_peak + s * t * best.error) for s in (-1, 1))
                ratio = 2 ** (best.log_peak - fitted.at_base(best).log_peak)
                at = f"{best.curve.size:g}{'x' * (size == 'budget')}"
                peaks.add_row(
                    *(*method, best.curve.parametrization, at, readout),
                    f"{2**best.log_peak:.3g}{'' if best.is_inside else '‡'}",
                    f"{low:.3g} to {high:.3g}",
                    f"{ratio:.2f}",
                    f"{fitted.excess_at_base_peak(best):.4f}",
                    best.runs,
                )
            if size == "budget" and readout != LIVE and len(fitted.best) > 1:
                mean, error = fitted.for_all
                low, high = (2 ** (mean + s * t * error) for s in (-1, 1))
                at = "all", readout, f"{2**mean:.3g}", f"{low:.3g} to {high:.3g}"
                runs = sum(best.runs for best in fitted.best)
                peaks.add_row(*(*method, curves[0].parametrization, *at), None, None, runs)
            for parametrization, (power, error) in powers(fitted).items():
                fits.add_row(
                    *(*method, readout),
                    f"{fitted.curvature:.4f} ± {fitted.curvature_error:.4f}",
                    f"{fitted.residual:.4f}",
                    parametrization,
                    f"{power:+.2f}",
                    f"{power - t * error:+.2f} to {power + t * error:+.2f}",
                )
    if not peaks.rows:
        raise InputError(
            f"study {results.study.name}: no method has enough finished runs of three peaks: train "
            "more of it (anytime sweep --run)"
        )
    yield peaks
    yield fits


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the tables; returns the exit status."""
    return study_page.write(arguments, "best peaks", "Best peaks", _make_text)


def _make_text(results: Results, warn: study_page.Warn) -> tuple[list[str], str]:
    peaks, fits = make_tables(results, warn)
    parts = [
        f"Losses are means over {max(len(results.reported_sets), 1)} validation sets. "
        "Intervals are those of the fit, by Student's t. *Given away* is the loss, in nats per "
        "token, that the best peak of the base, which is the base width or the least width or "
        "budget, costs; the errors of the two peaks add to it. ‡: outside the peaks that were "
        "tried.",
        to_markdown(peaks),
        "Curvature is in nats per octave squared, the residual in nats.",
        to_markdown(fits),
    ]
    return parts, f"{len(peaks.rows)} best peaks"
