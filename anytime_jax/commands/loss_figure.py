"""Figure of one run: its losses so far, and the gain of each average.

Separate from `loss_table`, which every start of a run imports: Matplotlib takes half a second.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands.loss_table import (
    evaluated_rows,
    gain_limits,
    gains,
    validation_sets,
    weight_labels,
)
from anytime_jax.storage.paths import storage_path

FILE = "curves.png"
_FEW_DOUBLINGS = 8


def draw(
    directory: str | Path, name: str, rows: Sequence[Row], stages: Sequence[int] = ()
) -> Path | None:
    """Draws the records of a run as `curves.png`; returns its path, None without evaluations.

    Left: training and validation loss. Right: gain of each average over the live weights. An
    average that a resumed run added or dropped is drawn where it was evaluated. With several
    validation sets, a third part has the loss of the live weights on each. A dotted line marks
    every stage, which begins after so many tokens.
    """
    rows = [row for row in rows if row.tokens]  # the axis is logarithmic
    evaluated = evaluated_rows(rows)
    if not evaluated:
        return None
    sets = validation_sets(rows)
    figure = Figure(figsize=(16 if sets else 11, 4.2), layout="constrained")
    left, right, *third = figure.subplots(1, 3 if sets else 2)
    figure.suptitle(f"{name}: validation loss, live weights and averages", parse_math=False)
    _draw_losses(left, rows, evaluated)
    _draw_gains(right, evaluated)
    for axes in third:
        _draw_sets(axes, rows, sets)
    for axes in (left, right, *third):
        low, high = axes.get_xlim()
        for tokens in stages:
            if low < tokens / 1e6 < high:
                axes.axvline(tokens / 1e6, color="0.4", linewidth=0.9, linestyle=":")
    return figure_style.save(figure, storage_path(directory) / FILE, dpi=140)


def draw_frame(axes: Axes, label: str = "training tokens (millions)", columns: int = 6) -> None:
    """Draws the logarithmic axis of the progress of a run, the grid, and the legend below."""
    axes.set_xscale("log", base=2)
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    if high < _FEW_DOUBLINGS * low:  # the range has few powers of two, or none
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.grid(alpha=0.3)
    # Below the axes, it covers no line.
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    axes.legend(frameon=False, ncols=columns, columnspacing=1.2, **below)


def _millions(rows: Sequence[Row]) -> list[float]:
    return [row.tokens / 1e6 for row in rows]


def _draw_losses(
    axes: Axes, rows: Sequence[Row], evaluated: Sequence[tuple[Row, dict[str, float]]]
) -> None:
    begin = evaluated[0][0].tokens / 4
    trained = [row for row in rows if "train/loss" in row.values and row.tokens >= begin]
    losses = [row.values["train/loss"] for row in trained]
    axes.plot(_millions(trained), losses, color="0.6", linewidth=0.8, label="training")
    final = evaluated[-1][1]
    best = min(final, key=lambda label: final[label])
    for label, color in {
        LIVE: "black",
        best: figure_style.BLUE if best != LIVE else "black",
    }.items():
        points = [(row, losses[label]) for row, losses in evaluated if label in losses]
        axes.plot(*_points(points), ".-", color=color, label=f"validation, {label}")
    axes.set_ylabel("loss (nats per token)")
    draw_frame(axes)


def _draw_sets(axes: Axes, rows: Sequence[Row], sets: Sequence[str]) -> None:
    names = list(dict.fromkeys(name.partition("@")[0] for name in sets))
    for name in sets:
        evaluated = evaluated_rows(rows, name)
        plain, _, length = name.partition("@")
        color, line = figure_style.PALETTE[names.index(plain) % 6], "--" if length else "-"
        x, y = _points([(row, losses[LIVE]) for row, losses in evaluated if LIVE in losses])
        axes.plot(x, y, marker=".", label=name, color=color, linestyle=line)
    axes.set_ylabel(f"validation loss of {LIVE} by set (nats per token)")
    draw_frame(axes, columns=4)


def _points(points: Sequence[tuple[Row, float]]) -> tuple[list[float], list[float]]:
    return _millions([row for row, _ in points]), [value for _, value in points]


def _draw_gains(axes: Axes, evaluated: Sequence[tuple[Row, dict[str, float]]]) -> None:
    axes.axhline(0, color="black", linewidth=1, label=LIVE)
    for i, label in enumerate(weight_labels(evaluated, LIVE)):
        points = gains(evaluated, label)
        style = {"color": figure_style.PALETTE[i % 6], "linestyle": figure_style.DASHES[i % 6]}
        x, y = _points(points)
        axes.plot(x, y, marker=".", label=label, **style)
    axes.set_ylim(gain_limits(evaluated))
    axes.set_ylabel(f"validation loss minus the loss of {LIVE} (nats)")
    draw_frame(axes)
