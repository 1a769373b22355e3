"""The empirical figures of the paper, each from the results of a study.

Every function returns a `Figure`; what is drawn is decided in `select.py`, how it looks in
`style.py`.
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
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_jax.study import published
from anytime_jax.study.results import LIVE, Line
from anytime_jax.study.selection import Gap


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of a comparison.

    Attributes:
      kind: of the schedule, for colour and mark.
      name: what the legend calls it.
      losses: validation loss in nats by multiple.
      gaps: difference to the cosine envelope by multiple.
    """

    kind: str
    name: str
    losses: Mapping[float, float]
    gaps: Mapping[float, Gap]


def draw_transfer_of_cosines(
    clock: Clock,
    envelope: Mapping[float, float],
    runs: Mapping[float, Mapping[float, float]],
) -> Figure:
    """Draws the envelope of cosines and, on the way to its own horizon, each cosine of it.

    Args:
      clock: of the study.
      envelope: loss at each horizon of the cosine tuned for it.
      runs: for each horizon the losses of its cosine at all multiples evaluated.

    Source: Figure 1 of the paper, and its twin at 300M.
    """
    figure = Figure(figsize=(5.4, 4.2), layout="constrained")
    axes = figure.subplots()
    shades = np.linspace(0.72, 0.25, max(len(runs), 1))
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
    on_the_way = {horizon: losses for horizon, losses in sorted(runs.items()) if len(losses) > 1}
    for i, (horizon, losses) in enumerate(on_the_way.items()):
        xs = sorted(losses)
        label = f"cosine tuned for {horizon:g}×"
        ys = [losses[m] for m in xs]
        axes.plot(xs, ys, ".", ls=dashes[i % 6], color=str(shades[i]), label=label)
    look = plotting.schedule_style("cosine")
    axes.plot(*_points(envelope), label="cosine envelope", zorder=5, **look)
    _multiple_axis(axes, sorted(envelope), clock)
    axes.set_ylabel("validation loss (nats per token)")
    plotting.legend_below(figure, axes, columns=2)
    return figure


def draw_comparison(
    clock: Clock,
    curves: Sequence[Curve],
    single: Mapping[float, float] | None = None,
    model: str = "",
    same: bool = False,
) -> Figure:
    """Draws losses (left) and differences to the cosine envelope (right) against the budget.

    Args:
      clock: of the study.
      curves: the envelope first, then what is compared with it.
      single: losses on the way of the one cosine tuned for the longest horizon.
      model: "150M" or "300M" to draw the published differences, thin, beside ours.
      same: whether the study is of that very model, so that its losses can be drawn too.

    Source: Figure 2, the large-batch figure, and their twins at optimal hyperparameters.
    """
    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    if single:
        left.plot(*_points(single), color="#D55E00", lw=1.0, alpha=0.6, label="the longest cosine")
    for curve in curves:
        look = plotting.schedule_style(curve.kind)
        if curve.kind == "cosine":
            look["linestyle"] = "none" if single else "-"
        left.plot(*_points(curve.losses), label=curve.name, **look)
    right.axhline(0, color="#D55E00", lw=1.5)
    every = sorted(curves[0].losses)
    for i, curve in enumerate(curves[1:]):
        shift = 2 ** (0.035 * (i - (len(curves) - 2) / 2))  # error bars side by side
        xs = [m * shift for m in sorted(curve.gaps)]
        found = [curve.gaps[m] for m in sorted(curve.gaps)]
        noise = [0.0 if math.isnan(x.noise) else x.noise for x in found]
        bars = noise if any(noise) else None
        right.errorbar(
            xs, [x.mean for x in found], bars, capsize=3, **plotting.schedule_style(curve.kind)
        )
    if model:
        _draw_published(right, published.differences(model), every, f"hollow: the paper, {model}")
    for axes in (left, right):
        _multiple_axis(axes, every, clock)
    left.set_ylabel("validation loss (nats per token)")
    right.set_ylabel("loss minus cosine envelope (nats)")
    plotting.legend_below(figure, left, columns=5)
    if model and same:
        _draw_published(left, published.losses()[model], every, f"hollow: the paper, {model}")
    return figure


def _draw_published(
    axes: Axes,
    kinds: Mapping[str, Mapping[float, float]],
    multiples: Sequence[float],
    label: str,
) -> None:
    """The paper's own numbers, thin and hollow."""
    for kind, numbers in kinds.items():
        there = {m: x for m, x in numbers.items() if m in multiples}
        look = plotting.schedule_style(kind) | {"lw": 0.8, "markerfacecolor": "none", "alpha": 0.7}
        axes.plot(*_points(there), **look)
    axes.plot([], [], color="0.3", lw=0.8, marker="o", markerfacecolor="none", label=label)
    axes.legend(loc="best", frameon=False, fontsize=8)


def draw_heatmaps(
    multiples: Sequence[float], rows: Mapping[str, Mapping[float, tuple[str, Mapping[float, Gap]]]]
) -> Figure:
    """Draws what settings selected early come to later, relative to the envelope.

    Args:
      multiples: the columns.
      rows: for each kind, by the multiple of selection: the settings, and their differences.

    Source: the hyperparameter-transfer figure of the paper.
    """
    count = max(len(x) for x in rows.values())
    size = (max(4.2, 0.85 * len(multiples) + 2.0) * len(rows) + 0.8, 0.55 * count + 1.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    values = [abs(g.first) for x in rows.values() for _, gs in x.values() for g in gs.values()]
    largest = max([*values, 1e-9])
    look = {"cmap": matplotlib.colormaps["PuOr_r"], "vmin": -largest, "vmax": largest}
    for axes, (kind, picked) in zip(panels, rows.items(), strict=True):
        grid = np.full((len(picked), len(multiples)), np.nan)
        for i, (_, found) in enumerate(picked.values()):
            for j, m in enumerate(multiples):
                grid[i, j] = found[m].first if m in found else np.nan
        axes.set_facecolor("0.92")  # nothing there
        axes.imshow(grid, aspect="auto", **look)
        for (i, j), value in np.ndenumerate(grid):
            if not math.isnan(value):
                ink = "white" if abs(value) > 0.6 * largest else "black"
                axes.text(j, i, f"{value:+.4f}", ha="center", va="center", color=ink, fontsize=9)
        axes.set_xticks(range(len(multiples)), [f"{m:g}×" for m in multiples])
        told = [f"{m:g}×: {text}" for m, (text, _) in picked.items()]
        axes.set_yticks(range(len(picked)), told, fontsize=9)
        axes.set_xlabel("evaluated at")
        axes.set_title(plotting.schedule_name(kind), fontsize=10)
    panels[0].set_ylabel("selected at")
    bar = figure.colorbar(panels[0].images[0], ax=list(panels), shrink=0.9)
    bar.set_label("loss minus envelope (nats)")
    return figure


def draw_alphas(
    clock: Clock,
    lines: Mapping[float, Mapping[float, float]],
    envelope: Mapping[float, float],
) -> Figure:
    """Draws the inverse square root at each alpha, all other settings the same.

    Args:
      clock: of the study.
      lines: losses by alpha and multiple.
      envelope: loss of the cosine tuned for each horizon.

    Source: the alpha-sensitivity figure of the paper.
    """
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    shades = plotting.shades(len(lines))
    marks = "os^Dv<>p"
    for i, (alpha, losses) in enumerate(sorted(lines.items())):
        label = rf"$\alpha$ = {alpha:,g} ({alpha / clock.chinchilla_steps:.2g}×)"
        look = {"color": shades[i], "marker": marks[i % 8], "label": label}
        left.plot(*_points(losses), **look)
        gaps = {m: x - envelope[m] for m, x in losses.items() if m in envelope}
        right.plot(*_points(gaps), **look)
    right.axhline(0, color="#D55E00", lw=1.5)
    multiples = sorted({m for losses in lines.values() for m in losses})
    for axes in (left, right):
        _multiple_axis(axes, multiples, clock)
    left.set_ylabel("validation loss (nats per token)")
    right.set_ylabel("loss minus cosine envelope (nats)")
    plotting.legend_below(figure, left)
    return figure


def draw_averages(lines: Sequence[Line], labels: Sequence[str]) -> Figure:
    """Draws what each average gains over the live weights, a panel for each line.

    Args:
      lines: one for each kind of schedule.
      labels: weight labels, the live weights first.
    """
    figure = Figure(figsize=(2.9 * len(lines) + 0.6, 3.9), layout="constrained")
    panels = figure.subplots(1, len(lines), squeeze=False)[0]
    order = [*[x for x in labels if x != LIVE], LIVE]
    multiples = sorted({m for line in lines for m in line.losses})
    shades = dict(zip(multiples, plotting.shades(len(multiples)), strict=True))
    marks = dict(zip(multiples, "os^Dv<>p" * 8, strict=False))
    for axes, line in zip(panels, lines, strict=True):
        for m, losses in sorted(line.losses.items()):
            there = [x for x in order if x in losses]
            gains = [losses[x] - losses[LIVE] for x in there]
            xs = [order.index(x) for x in there]
            axes.plot(xs, gains, color=shades[m], marker=marks[m], ms=5, label=f"{m:g}×")
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(order)), order, rotation=45)
        axes.set_title(plotting.schedule_name(line.kind), fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss minus that of the live weights (nats)")
    panels[(len(panels) - 1) // 2].set_xlabel("weights evaluated: the widest average first")
    plotting.legend_below(figure, max(panels, key=lambda x: len(x.lines)), columns=8)
    return figure


def draw_floors(clock: Clock, changes: Mapping[str, Mapping[float, float]]) -> Figure:
    """Draws what another end of the decay changes.

    Args:
      clock: of the study.
      changes: loss with it minus loss without, by kind of schedule and multiple.
    """
    figure = Figure(figsize=(5.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for name, losses in changes.items():
        axes.plot(*_points(losses), label=name, **plotting.schedule_style(name.split(",")[0]))
    axes.axhline(0, color="black", lw=0.8)
    _multiple_axis(axes, sorted({m for x in changes.values() for m in x}), clock)
    axes.set_ylabel("change of the loss (nats)")
    plotting.legend_below(figure, axes, columns=2)
    return figure


def _points(losses: Mapping[float, float]) -> tuple[list[float], list[float]]:
    xs = sorted(losses)
    return xs, [losses[m] for m in xs]


def _multiple_axis(axes: Axes, multiples: Sequence[float], clock: Clock) -> None:
    """Makes the x axis one of Chinchilla multiples: 1×, 2×, 4×, ..."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(multiples))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    tokens = format_count(clock.tokens(clock.chinchilla_steps))
    axes.set_xlabel(f"training budget (1× = {tokens} tokens)")
    axes.grid(alpha=0.3)
