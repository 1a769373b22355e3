"""Figure of one run: its losses so far, and the gain of each average.

Separate from `loss_table`, which every start of a run imports: Matplotlib takes half a second.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands.loss_table import (
    Evaluated,
    curve_name,
    define,
    evaluated_rows,
    gain_limits,
    gains,
    validation_sets,
    weight_labels,
)
from anytime_jax.config.clock import Clock
from anytime_jax.config.run_config import Config
from anytime_jax.storage.paths import storage_path

FILE = "curves.png"
_TOKENS = "training tokens (millions)"


def draw(
    directory: str | Path, config: Config, rows: Sequence[Row], trunk: Sequence[Row] = ()
) -> Path | None:
    """Draws the records of a run as `curves.png`; returns its path, None without evaluations."""
    figure = make_figure(config, rows, trunk)
    if figure is None:
        return None
    return figure_style.save(figure, storage_path(directory) / FILE, dpi=140)


def make_figure(config: Config, rows: Sequence[Row], trunk: Sequence[Row] = ()) -> Figure | None:
    """Returns the figure of the records of a run, None without evaluations.

    Left: training and validation loss. Right: gain of each average over the live weights. An
    average that a resumed run added or dropped is drawn where it was evaluated. With several
    validation sets, a third part has the loss of the live weights on each. Dotted lines mark the
    stages, and where a branch leaves its trunk, whose records `trunk` are drawn too.
    """
    rows = late_rows([*trunk, *rows])
    evaluated = evaluated_rows(rows)
    if not evaluated:
        return None
    sets, labels = validation_sets(rows), weight_labels(evaluated)
    figure = Figure(figsize=(11, 8.4 if sets else 5), layout="constrained")
    panels = figure.subplot_mosaic("ab;cc" if sets else "ab")
    figure.suptitle(f"{config.name}: losses of live weights and averages", parse_math=False)
    text = "training: batches since the point before; validation text may be harder or easier."
    if sets:
        text += (
            "\nvalidation: the mean of the sets. NAME@LENGTH: a set in windows of LENGTH tokens."
        )
    figure.supxlabel(f"{define(labels)}\n{text}", fontsize=9)
    _draw_losses(panels["a"], rows, evaluated)
    _draw_gains(panels["b"], evaluated)
    if sets:
        _draw_sets(panels["c"], rows, sets)
    marks = {stage.step: f"stage {i}" for i, stage in enumerate(config.run_stages[1:], 2)}
    if config.branch_step is not None:
        marks[config.branch_step] = "branch"
    for axes in panels.values():
        axes.set_xlim(rows[0].tokens / 1.1e6, rows[-1].tokens * 1.1e-6)
        draw_frame(axes, clock=config.clock)
        low, high = axes.get_xlim()
        for step, text in marks.items():
            if low < (x := config.clock.tokens(step) / 1e6) < high:
                axes.axvline(x, color="0.4", linewidth=0.9, linestyle=":")
                style = {"rotation": 90, "va": "top", "ha": "right", "fontsize": 8}
                axes.text(x, 0.87, text, transform=axes.get_xaxis_transform(), **style)
    return figure


def late_rows(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows that a figure shows: earlier losses would press the later ones together.

    They begin at the first evaluation, or where the run was shorter by a factor of 4 to 16.
    """
    rows = [row for row in rows if row.tokens]  # the axis is logarithmic
    evaluated = [row.tokens for row, _ in evaluated_rows(rows)] or [0]
    last = max(row.tokens for row in rows) if rows else 0
    first = max(min(evaluated[0], last / 4), min(evaluated[-1], last / 16))
    return [row for row in rows if row.tokens >= first]


def draw_frame(
    axes: Axes, label: str = _TOKENS, columns: int = 6, clock: Clock | None = None
) -> None:
    """Draws the logarithmic axis of the progress of a run, the grid, and the legend below.

    With a clock, for an axis in millions of tokens, the upper axis has the multiples of its budget.
    """
    axes.set_xscale("log", base=2)
    axes.set_xlabel(label)
    low, high = axes.get_xlim()
    scales = [(axes.xaxis, "")]
    if clock is not None:
        budget = clock.tokens(clock.chinchilla_steps) / 1e6
        scale: Any = (lambda x: x / budget, lambda x: x * budget)
        upper = axes.secondary_xaxis("top", functions=scale)
        upper.set_xscale("log", base=2)
        scales.append((upper.xaxis, "x"))
    for axis, unit in scales:
        if high < 2 * low:
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        elif high < 8 * low:
            axis.set_major_locator(LogLocator(2, (1, 1.5)))
        axis.set_major_formatter(lambda x, _, unit=unit: f"{x:g}{unit}")
    axes.grid(alpha=0.3)
    # Below the axes, it covers no line. About 70 characters fit in the width of a panel.
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    columns = max(1, min(columns, 70 // (longest + 6)))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    axes.legend(frameon=False, ncols=columns, columnspacing=1.2, **below)


def plot(axes: Axes, points: Sequence[tuple[Row, float]], label: str, **style: Any) -> None:
    """Draws values at the rows' numbers of tokens."""
    axes.plot([row.tokens / 1e6 for row, _ in points], [x for _, x in points], label=label, **style)


def training_losses(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Returns the rows that have a training loss, with it."""
    return [(row, row.values["train/loss"]) for row in rows if "train/loss" in row.values]


def _draw_losses(axes: Axes, rows: Sequence[Row], evaluated: Evaluated) -> None:
    plot(axes, training_losses(rows), f"training, {LIVE}", color="0.6", linewidth=0.8)
    final = evaluated[-1][1]
    best = min(final, key=lambda label: final[label])
    for label in dict.fromkeys((LIVE, best)):
        points = [(row, losses[label]) for row, losses in evaluated if label in losses]
        style = figure_style.weight_style(label)
        name = curve_name(evaluated, label)
        plot(axes, points, f"validation, {name}", marker=".", **style)
    axes.set_ylabel("loss (nats per token; lower is better)")


def _draw_sets(axes: Axes, rows: Sequence[Row], sets: Sequence[str]) -> None:
    names = list(dict.fromkeys(name.partition("@")[0] for name in sets))
    for name in sets:
        plain, _, length = name.partition("@")
        color, line = figure_style.PALETTE[names.index(plain) % 6], "--" if length else "-"
        points = [(row, x[LIVE]) for row, x in evaluated_rows(rows, name) if LIVE in x]
        plot(axes, points, name, marker=".", color=color, linestyle=line)
    axes.set_ylabel(f"loss of {LIVE} on each validation set\n(nats per token; lower is better)")


def _draw_gains(axes: Axes, evaluated: Evaluated) -> None:
    axes.axhline(0, label=LIVE, **figure_style.weight_style(LIVE))
    for label in weight_labels(evaluated, LIVE):
        style = figure_style.weight_style(label)
        name = curve_name(evaluated, label)
        plot(axes, gains(evaluated, label), name, marker=".", **style)
    axes.set_ylim(gain_limits(evaluated))
    axes.set_ylabel(f"validation loss minus that of {LIVE}\n(nats per token; lower is better)")
