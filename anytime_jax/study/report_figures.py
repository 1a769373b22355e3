"""Figures of a study: the empirical figures of the paper.

Which curves are drawn is decided in `selection` and `report_items`; their look in `plotting`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from anytime_jax import plotting
from anytime_jax.averaging import LIVE
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_jax.study import published
from anytime_jax.study.results import COSINE, LossCurve
from anytime_jax.study.selection import Gap

_LOSS = "validation loss (nats per token)"
_GAP = "loss minus cosine envelope (nats)"


@dataclasses.dataclass(frozen=True)
class Series:
    """Losses of one kind of schedule in a comparison.

    Attributes:
      kind: kind of schedule.
      label: weight label of the read-out.
      losses: validation loss in nats by multiple.
      gaps: difference to the cosine envelope by multiple; empty for the envelope itself.
    """

    kind: str
    label: str
    losses: Mapping[float, float]
    gaps: Mapping[float, Gap]

    def name(self, math: bool = True) -> str:
        """Returns the name for a legend or, without `math`, for a table."""
        if self.kind == COSINE:
            return "cosine envelope"
        average = "" if self.label == LIVE else f" + {self.label}"
        return plotting.schedule_name(self.kind, math) + average


def draw_comparison(
    clock: Clock,
    series: Sequence[Series],
    longest_cosine: Mapping[float, float] | None = None,
    model: str = "",
    same_model: bool = False,
) -> Figure:
    """Draws losses (left) and differences to the cosine envelope (right) against the budget.

    Args:
      clock: converts multiples to tokens.
      series: the envelope first.
      longest_cosine: losses on the way of the cosine tuned for the longest horizon.
      model: "150M" or "300M" to draw the paper's published differences too.
      same_model: whether the study is of that model: draws its published losses as well.

    Source: Figure 2, the large-batch figure, and their counterparts at optimal hyperparameters.
    """
    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    if longest_cosine:
        style = {"color": plotting.VERMILION, "lw": 1.0, "alpha": 0.6}
        left.plot(*_xy(longest_cosine), label="the longest cosine", **style)
    for each in series:
        style = plotting.schedule_style(each.kind)
        if each.kind == COSINE:
            style["linestyle"] = "none" if longest_cosine else "-"
        left.plot(*_xy(each.losses), label=each.name(), **style)
    right.axhline(0, color=plotting.VERMILION, lw=1.5)
    multiples = sorted(series[0].losses)
    for i, each in enumerate(series[1:]):
        shift = 2 ** (0.035 * (i - (len(series) - 2) / 2))  # error bars side by side
        gaps = [each.gaps[m] for m in sorted(each.gaps)]
        stderr = [0.0 if math.isnan(gap.stderr) else gap.stderr for gap in gaps]
        right.errorbar(
            [m * shift for m in sorted(each.gaps)],
            [gap.mean for gap in gaps],
            stderr if any(stderr) else None,
            capsize=3,
            **plotting.schedule_style(each.kind),
        )
    if model:
        _draw_published(right, published.differences(model), multiples, model)
    for axes in (left, right):
        _multiple_axis(axes, multiples, clock)
    left.set_ylabel(_LOSS)
    right.set_ylabel(_GAP)
    plotting.legend_below(figure, left, columns=5)
    if model and same_model:
        _draw_published(left, published.losses()[model], multiples, model)
    return figure


def _draw_published(
    axes: Axes,
    numbers: Mapping[str, Mapping[float, float]],
    multiples: Sequence[float],
    model: str,
) -> None:
    """Draws the paper's numbers by kind and multiple, thin and hollow."""
    for kind, by_multiple in numbers.items():
        style = plotting.schedule_style(kind) | {"lw": 0.8, "markerfacecolor": "none", "alpha": 0.7}
        axes.plot(*_xy({m: x for m, x in by_multiple.items() if m in multiples}), **style)
    style = {"color": "0.3", "lw": 0.8, "marker": "o", "markerfacecolor": "none"}
    axes.plot([], [], label=f"hollow: the paper, {model}", **style)
    axes.legend(loc="best", frameon=False, fontsize=8)


def draw_cosine_transfer(
    clock: Clock,
    envelope: Mapping[float, float],
    cosines: Mapping[float, Mapping[float, float]],
) -> Figure:
    """Draws the envelope and, by horizon, each of its cosines at all evaluated multiples.

    Source: Figure 1 of the paper and its counterpart at 300M.
    """
    figure = Figure(figsize=(5.4, 4.2), layout="constrained")
    axes = figure.subplots()
    greys = np.linspace(0.72, 0.25, max(len(cosines), 1))
    dashes = (*plotting.DASHES[:4], (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
    longer = [(horizon, losses) for horizon, losses in sorted(cosines.items()) if len(losses) > 1]
    for i, (horizon, losses) in enumerate(longer):
        style = {"ls": dashes[i % 6], "color": str(greys[i])}
        axes.plot(*_xy(losses), ".", label=f"cosine tuned for {horizon:g}×", **style)
    style = plotting.schedule_style(COSINE)
    axes.plot(*_xy(envelope), label="cosine envelope", zorder=5, **style)
    _multiple_axis(axes, sorted(envelope), clock)
    axes.set_ylabel(_LOSS)
    plotting.legend_below(figure, axes, columns=2)
    return figure


def draw_setting_transfer(
    multiples: Sequence[float], rows: Mapping[str, Mapping[float, tuple[str, Mapping[float, Gap]]]]
) -> Figure:
    """Draws heatmaps of settings selected at one budget and evaluated at later ones.

    `rows` has the settings and their gaps by kind of schedule and multiple of selection.

    Source: the hyperparameter-transfer figure of the paper.
    """
    count = max(len(x) for x in rows.values())
    size = (max(4.2, 0.85 * len(multiples) + 2.0) * len(rows) + 0.8, 0.55 * count + 1.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    grids = {kind: _gap_grid(selected, multiples) for kind, selected in rows.items()}
    largest = max([np.nanmax(np.abs(grid)) for grid in grids.values()] + [1e-9])
    style = {"cmap": matplotlib.colormaps["PuOr_r"], "vmin": -largest, "vmax": largest}
    for axes, (kind, grid) in zip(panels, grids.items(), strict=True):
        axes.set_facecolor("0.92")  # budgets before the selection
        axes.imshow(grid, aspect="auto", **style)
        for (i, j), value in np.ndenumerate(grid):
            if not math.isnan(value):
                ink = "white" if abs(value) > 0.6 * largest else "black"
                axes.text(j, i, f"{value:+.4f}", ha="center", va="center", color=ink, fontsize=9)
        axes.set_xticks(range(len(multiples)), [f"{m:g}×" for m in multiples])
        names = [f"{m:g}×: {settings}" for m, (settings, _) in rows[kind].items()]
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_xlabel("evaluated at")
        axes.set_title(plotting.schedule_name(kind), fontsize=10)
    panels[0].set_ylabel("selected at")
    bar = figure.colorbar(panels[0].images[0], ax=list(panels), shrink=0.9)
    bar.set_label("loss minus envelope (nats)")
    return figure


def _gap_grid(
    selected: Mapping[float, tuple[str, Mapping[float, Gap]]], multiples: Sequence[float]
) -> np.ndarray:
    """Gaps with the selecting seed, `float64[selected at, evaluated at]`, NaN where none is."""
    return np.array(
        [
            [gaps[m].first if m in gaps else np.nan for m in multiples]
            for _, gaps in selected.values()
        ]
    )


def draw_alphas(
    clock: Clock,
    curves: Mapping[float, Mapping[float, float]],
    envelope: Mapping[float, float],
) -> Figure:
    """Draws the inverse square root by alpha, all other settings equal.

    Source: the alpha-sensitivity figure of the paper.
    """
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    shades = plotting.shades(len(curves))
    for i, (alpha, losses) in enumerate(sorted(curves.items())):
        label = rf"$\alpha$ = {alpha:,g} ({alpha / clock.chinchilla_steps:.2g}×)"
        style = {"color": shades[i], "marker": plotting.MARKERS[i % 8], "label": label}
        left.plot(*_xy(losses), **style)
        right.plot(*_xy({m: x - envelope[m] for m, x in losses.items() if m in envelope}), **style)
    right.axhline(0, color=plotting.VERMILION, lw=1.5)
    multiples = sorted({m for losses in curves.values() for m in losses})
    for axes in (left, right):
        _multiple_axis(axes, multiples, clock)
    left.set_ylabel(_LOSS)
    right.set_ylabel(_GAP)
    plotting.legend_below(figure, left)
    return figure


def draw_averages(curves: Sequence[LossCurve], labels: Sequence[str]) -> Figure:
    """Draws the gain over the live weights of each weight label, a panel for each curve."""
    figure = Figure(figsize=(2.9 * len(curves) + 0.6, 3.9), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    multiples = sorted({m for curve in curves for m in curve.losses})
    shades = plotting.shades(len(multiples))
    for axes, curve in zip(panels, curves, strict=True):
        for i, m in enumerate(multiples):
            losses = curve.losses.get(m, {})
            points = [(j, losses[x] - losses[LIVE]) for j, x in enumerate(labels) if x in losses]
            if points:
                style = {"color": shades[i], "marker": plotting.MARKERS[i % 8], "ms": 5}
                axes.plot(*zip(*points, strict=True), label=f"{m:g}×", **style)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(labels)), labels, rotation=45)
        axes.set_title(plotting.schedule_name(curve.kind), fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss minus that of the live weights (nats)")
    panels[(len(panels) - 1) // 2].set_xlabel("weights evaluated: the widest average first")
    plotting.legend_below(figure, max(panels, key=lambda x: len(x.lines)), columns=8)
    return figure


def draw_decay_ends(clock: Clock, changes: Mapping[str, Mapping[float, float]]) -> Figure:
    """Draws changes of the loss by description, which starts with the kind of schedule."""
    figure = Figure(figsize=(5.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for name, losses in changes.items():
        axes.plot(*_xy(losses), label=name, **plotting.schedule_style(name.split(",")[0]))
    axes.axhline(0, color="black", lw=0.8)
    _multiple_axis(axes, sorted({m for x in changes.values() for m in x}), clock)
    axes.set_ylabel("change of the loss (nats)")
    plotting.legend_below(figure, axes, columns=2)
    return figure


def _xy(losses: Mapping[float, float]) -> tuple[list[float], list[float]]:
    multiples = sorted(losses)
    return multiples, [losses[m] for m in multiples]


def _multiple_axis(axes: Axes, multiples: Sequence[float], clock: Clock) -> None:
    """Scales the x axis in Chinchilla multiples: 1×, 2×, 4×, ..."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(multiples))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    tokens = format_count(clock.tokens(clock.chinchilla_steps))
    axes.set_xlabel(f"training budget (1× = {tokens} tokens)")
    axes.grid(alpha=0.3)
