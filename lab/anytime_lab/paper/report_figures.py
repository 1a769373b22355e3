"""Figures of a study: the empirical figures of the paper.

`selection` and `paper_items` decide which curves are drawn, `figure_style` how they look.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_lab import schedule_styles
from anytime_lab.study import paper_losses
from anytime_lab.study.results import COSINE
from anytime_lab.study.selection import Gap

_LOSS = "validation loss (nats per token)"
_GAP = "loss minus cosine envelope (nats)"


class Series(NamedTuple):
    """Losses of one kind of schedule read out through a weight label, by multiple."""

    kind: str
    label: str
    losses: Mapping[float, float]
    gaps: Mapping[float, Gap]

    def name(self, math: bool = True) -> str:
        """Returns the name for a legend or, without `math`, for a table."""
        if self.kind == COSINE:
            return "cosine envelope"
        average = "" if self.label == LIVE else f" + {self.label}"
        return schedule_styles.schedule_name(self.kind, math) + average


def draw_comparison(
    clock: Clock,
    series: Sequence[Series],
    longest_cosine: Mapping[float, float] | None = None,
    model: str = "",
) -> Figure:
    """Draws losses (left) and differences to the cosine envelope (right) against the budget.

    Args:
      clock: converts multiples to tokens.
      series: the envelope first.
      longest_cosine: losses on the way of the cosine tuned for the longest horizon.
      model: "150M" or "300M" to draw the paper's published losses too.

    Source: Figure 2, the large-batch figure, and their counterparts at optimal hyperparameters.
    """
    figure, (left, right) = _subplots(10.0, 4.4, 2)
    if longest_cosine:
        style = {"color": figure_style.VERMILION, "lw": 1.0, "alpha": 0.6}
        left.plot(*_xy(longest_cosine), label="the longest cosine", **style)
    for each in series:
        style = schedule_styles.schedule_style(each.kind)
        if each.kind == COSINE:
            style["linestyle"] = "none" if longest_cosine else "-"
        left.plot(*_xy(each.losses), label=each.name(), **style)
    right.axhline(0, color=figure_style.VERMILION, lw=1.5)
    multiples = sorted(series[0].losses)
    for i, each in enumerate(series[1:]):
        # Shifts error bars, so that they do not overlap.
        shift = 2 ** (0.035 * (i - (len(series) - 2) / 2))
        gaps = [each.gaps[m] for m in sorted(each.gaps)]
        stderr = [gap.stderr for gap in gaps]
        right.errorbar(
            [m * shift for m in sorted(each.gaps)],
            [gap.mean for gap in gaps],
            stderr if any(stderr) else None,
            capsize=3,
            **schedule_styles.schedule_style(each.kind),
        )
    _finish(figure, clock, multiples, {left: _LOSS, right: _GAP}, legend_columns=5)
    if model:
        _draw_published(left, paper_losses.losses()[model], multiples, model)
        _draw_published(right, paper_losses.differences(model), multiples, model)
    return figure


def _draw_published(
    axes: Axes,
    numbers: Mapping[str, Mapping[float, float]],
    multiples: Sequence[float],
    model: str,
) -> None:
    """Draws the paper's numbers by kind and multiple, thin and hollow."""
    hollow = {"lw": 0.8, "markerfacecolor": "none"}
    for kind, by_multiple in numbers.items():
        losses = {m: x for m, x in by_multiple.items() if m in multiples}
        style = {**schedule_styles.schedule_style(kind), **hollow}
        axes.plot(*_xy(losses), **style, alpha=0.7)
    label = f"hollow: the paper, {model}"
    handles = axes.plot([], [], label=label, color="0.3", marker="o", **hollow)
    # `_finish` adds the other legend.
    axes.legend(handles=handles, loc="best", frameon=False, fontsize=8)


def draw_cosine_transfer(
    clock: Clock,
    envelope: Mapping[float, float],
    cosines: Mapping[float, Mapping[float, float]],
) -> Figure:
    """Draws the envelope and, by horizon, each of its cosines at all evaluated multiples.

    Source: Figure 1 of the paper and its counterpart at 300M.
    """
    figure, (axes,) = _subplots(5.4, 4.2)
    greys = np.linspace(0.72, 0.25, len(cosines))
    longer = [(horizon, losses) for horizon, losses in sorted(cosines.items()) if len(losses) > 1]
    for i, (horizon, losses) in enumerate(longer):
        style = {"ls": figure_style.DASHES[i % 6], "color": str(greys[i])}
        axes.plot(*_xy(losses), ".", label=f"cosine tuned for {horizon:g}×", **style)
    style = schedule_styles.schedule_style(COSINE)
    axes.plot(*_xy(envelope), label="cosine envelope", zorder=5, **style)
    _finish(figure, clock, envelope, {axes: _LOSS}, legend_columns=2)
    return figure


def draw_setting_transfer(
    multiples: Sequence[float], differences: Mapping[str, Mapping[str, Mapping[float, float]]]
) -> Figure:
    """Draws heatmaps of settings selected at one budget and evaluated at later ones.

    `differences` to the envelope are by kind of schedule, settings and multiple.

    Source: the hyperparameter-transfer figure of the paper.
    """
    count, kinds = max(map(len, differences.values())), len(differences)
    width = max(4.2, 0.85 * len(multiples) + 2.0) * kinds + 0.8
    figure, panels = _subplots(width, 0.55 * count + 1.5, kinds)
    numbers = [x for rows in differences.values() for row in rows.values() for x in row.values()]
    largest = max(*map(abs, numbers), 1e-9)
    style = {"cmap": matplotlib.colormaps["PuOr_r"], "vmin": -largest, "vmax": largest}
    for axes, (kind, rows) in zip(panels, differences.items(), strict=True):
        grid = np.array([[row.get(m, math.nan) for m in multiples] for row in rows.values()])
        axes.set_facecolor("0.92")  # budgets before the selection stay empty
        axes.imshow(grid, aspect="auto", **style)
        for (i, j), value in np.ndenumerate(grid):
            if not math.isnan(value):
                ink = "white" if abs(value) > 0.6 * largest else "black"
                axes.text(j, i, f"{value:+.4f}", ha="center", va="center", color=ink, fontsize=9)
        axes.set_xticks(range(len(multiples)), [f"{m:g}×" for m in multiples])
        axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
        axes.set_xlabel("evaluated at")
        axes.set_title(schedule_styles.schedule_name(kind), fontsize=10)
    panels[0].set_ylabel("selected at")
    label = "loss minus envelope (nats)"
    figure.colorbar(panels[0].images[0], ax=list(panels), shrink=0.9, label=label)
    return figure


def draw_alphas(
    clock: Clock,
    curves: Mapping[float, Mapping[float, float]],
    envelope: Mapping[float, float],
) -> Figure:
    """Draws the inverse square root by alpha, all other settings equal.

    Source: the alpha-sensitivity figure of the paper.
    """
    figure, (left, right) = _subplots(10.0, 4.2, 2)
    shades = schedule_styles.shades(len(curves))
    for i, (alpha, losses) in enumerate(sorted(curves.items())):
        label = rf"$\alpha$ = {alpha:,g} ({alpha / clock.chinchilla_steps:.2g}×)"
        style = {"color": shades[i], "marker": schedule_styles.MARKERS[i % 8], "label": label}
        left.plot(*_xy(losses), **style)
        right.plot(*_xy({m: x - envelope[m] for m, x in losses.items()}), **style)
    right.axhline(0, color=figure_style.VERMILION, lw=1.5)
    multiples = {m for losses in curves.values() for m in losses}
    _finish(figure, clock, multiples, {left: _LOSS, right: _GAP}, legend_columns=4)
    return figure


def draw_averages(
    losses: Mapping[str, Mapping[float, Mapping[str, float]]], labels: Sequence[str]
) -> Figure:
    """Draws the gain over the live weights of each weight label, a panel for each schedule.

    `losses` are by kind of schedule, multiple and weight label.
    """
    figure, panels = _subplots(2.9 * len(losses) + 0.6, 3.9, len(losses))
    multiples = sorted({m for by_multiple in losses.values() for m in by_multiple})
    shades = schedule_styles.shades(len(multiples))
    for axes, (kind, by_multiple) in zip(panels, losses.items(), strict=True):
        for i, m in enumerate(multiples):
            if by_label := by_multiple.get(m):
                indices = [j for j, label in enumerate(labels) if label in by_label]
                gains = [by_label[labels[j]] - by_label[LIVE] for j in indices]
                style = {"color": shades[i], "marker": schedule_styles.MARKERS[i % 8], "ms": 5}
                axes.plot(indices, gains, label=f"{m:g}×", **style)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(labels)), labels, rotation=45)
        axes.set_title(schedule_styles.schedule_name(kind), fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss minus the live weights' loss (nats)")
    panels[(len(panels) - 1) // 2].set_xlabel("weights evaluated: the widest average first")
    schedule_styles.legend_below(figure, max(panels, key=lambda x: len(x.lines)), columns=8)
    return figure


def draw_decay_ends(clock: Clock, changes: Mapping[str, Mapping[float, float]]) -> Figure:
    """Draws changes of the loss by description, which starts with the kind of schedule."""
    figure, (axes,) = _subplots(5.4, 3.9)
    for name, losses in changes.items():
        axes.plot(*_xy(losses), label=name, **schedule_styles.schedule_style(name.split(",")[0]))
    axes.axhline(0, color="black", lw=0.8)
    multiples = {m for losses in changes.values() for m in losses}
    _finish(figure, clock, multiples, {axes: "change of the loss (nats)"}, legend_columns=2)
    return figure


def _subplots(width: float, height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _xy(losses: Mapping[float, float]) -> tuple[list[float], list[float]]:
    return sorted(losses), [losses[m] for m in sorted(losses)]


def _finish(
    figure: Figure,
    clock: Clock,
    multiples: Iterable[float],
    y_labels: Mapping[Axes, str],
    legend_columns: int,
) -> None:
    """Scales x in Chinchilla multiples, names the axes, and adds a legend to the first axes."""
    tokens = format_count(clock.tokens(clock.chinchilla_steps))
    for axes, y_label in y_labels.items():
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(multiples))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"training budget (1× = {tokens} tokens)")
        axes.set_ylabel(y_label)
        axes.grid(alpha=0.3)
    schedule_styles.legend_below(figure, next(iter(y_labels)), columns=legend_columns)
