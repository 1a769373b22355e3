"""Report of a calibration: the errors of forecasts of a study's runs, and their coverage."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.tables import Table, numbers
from anytime_lab import schedule_styles
from anytime_lab.forecast.forecast_calibration import Outcome
from anytime_lab.table_text import to_csv

TABLE, FIGURE = "forecasts.csv", "forecasts.png"
_GROUPS = {  # rows of the tables: name, kind of run, and whether the losses are of averages
    "run, live": ("run", False),
    "run, averages": ("run", True),
    "decay, live": ("decay", False),
    "cosine, live": ("cosine", False),
}


def write(directory: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Writes every forecast as CSV, and the figure of predicted against actual losses."""
    table = directory / TABLE
    names = [field.name for field in dataclasses.fields(Outcome)]
    rows = [[_cell(getattr(outcome, name)) for name in names] for outcome in outcomes]
    with atomic_write(table) as part:
        part.write_text(to_csv(Table("", names, rows)), encoding="utf-8", newline="")
    return [table, _draw(directory / FIGURE, outcomes)]


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Returns the tables: coverage and errors by kind of run, and the gains of averages."""
    return [_coverage(outcomes), _errors(outcomes), _gains(outcomes)]


def _coverage(outcomes: Sequence[Outcome]) -> Table:
    columns = numbers("prior", "from", "to", "losses", "runs")
    columns += [*numbers("covered", format=".0%"), *numbers("half width", format=".4f")]
    table = Table("losses in their 80% intervals, and the mean width of these (nats)", columns)
    for prior, begin, end, group in _ranges(outcomes):
        covered = float(np.mean([x.is_covered for x in group]))
        width = float(np.mean([x.high - x.low for x in group])) / 2
        runs = len({x.run for x in group})
        table.add_row(prior, begin, end, len(group), runs, covered, width)
    return table


def _errors(outcomes: Sequence[Outcome]) -> Table:
    columns = numbers("prior", "from", "to", *_GROUPS)
    table = Table("root mean square error, and mean error (nats)", columns)
    for prior, begin, end, group in _ranges(outcomes):
        cells = []
        for kind, averages in _GROUPS.values():
            part = [x.error for x in group if x.kind == kind and (x.label != LIVE) == averages]
            cells.append(f"{_rms(part):.4f} {np.mean(part):+.4f}" if part else "")
        table.add_row(prior, begin, end, *cells)
    return table


def _gains(outcomes: Sequence[Outcome]) -> Table:
    labels = dict.fromkeys(x.label for x in outcomes if x.label != LIVE)
    columns = [*numbers("prior", "from", "to", "gain"), *numbers(*labels, format=".4f")]
    title = "root mean square error of the gain of an average over the live loss (nats)"
    table = Table(title, columns)
    for prior, begin, end, group in _ranges(outcomes):
        for name in ("law", "constant"):
            cells = []
            for label in labels:
                part = [x for x in group if x.kind == "run" and x.label == label]
                gains = [x.gain if name == "law" else x.constant_gain for x in part]
                cells.append(_rms([g - x.actual_gain for g, x in zip(gains, part, strict=True)]))
            table.add_row(prior, begin, end, name, *cells)
    return table


def _draw(path: Path, outcomes: Sequence[Outcome]) -> Path:
    # The import takes half a second, and a command may draw nothing.
    from matplotlib.figure import Figure

    from anytime_jax import figure_style

    priors = list(dict.fromkeys(x.prior for x in outcomes))
    figure = Figure(figsize=(5.2 * len(priors), 5.0), layout="constrained")
    parts = np.atleast_1d(figure.subplots(1, len(priors), sharex=True, sharey=True))
    for axes, prior in zip(parts, priors, strict=True):
        for i, (name, (kind, averages)) in enumerate(_GROUPS.items()):
            part = [
                x
                for x in outcomes
                if (x.prior, x.kind, x.label != LIVE) == (prior, kind, averages)
                and (not averages or x.label == "f25")
            ]
            axes.errorbar(
                [x.actual for x in part],
                [x.loss for x in part],
                [[x.loss - x.low for x in part], [x.high - x.loss for x in part]],
                fmt=schedule_styles.MARKERS[i],
                color=figure_style.PALETTE[i],
                markersize=3,
                linewidth=0.6,
                label=name.replace("averages", "f25"),
            )
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="black", linewidth=0.8)
        axes.set(xlabel="loss (nats per token)", title=f"prior: {prior}")
        axes.set_ylabel("forecast and its 80% interval")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    return figure_style.save(figure, path, dpi=140)


def _ranges(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str, list[Outcome]]]:
    """Groups the forecasts by prior, begin and end."""

    def key(x: Outcome) -> tuple[str, float, float]:
        return x.prior, x.begin, x.end

    groups = itertools.groupby(sorted(outcomes, key=key), key)
    return [(p, f"{begin:g}x", f"{end:g}x", list(group)) for (p, begin, end), group in groups]


def _rms(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else float("nan")


def _cell(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)
