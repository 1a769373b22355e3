"""Figure of a forecast: losses so far, and later ones with their intervals.

Separate from `forecast_report`: Matplotlib takes half a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE
from anytime_jax.commands.loss_figure import draw_frame
from anytime_jax.commands.loss_table import define
from anytime_jax.storage.paths import storage_path
from anytime_lab import schedule_styles
from anytime_lab.forecast.forecast_subject import Subject
from anytime_lab.forecast.run_forecast import FARTHEST, Estimate, RunForecast

FILE = "forecast.png"
_PAST_POINTS = 17  # points of a fitted curve
_PAST = 4  # the figure begins where the run was shorter by this factor


def draw(directory: str | Path, subject: Subject, forecast: RunForecast) -> Path:
    """Draws a forecast as `forecast.png`; returns its path."""
    return figure_style.save(
        make_figure(subject, forecast), storage_path(directory) / FILE, dpi=140
    )


def make_figure(subject: Subject, forecast: RunForecast) -> Figure:
    """Returns the figure of a forecast."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    figure.suptitle(f"{subject.name}: forecast with 80% intervals", parse_math=False)
    figure.supxlabel(define([forecast.label]), fontsize=9)
    _draw(figure.subplots(), subject, forecast)
    return figure


def _draw(axes: Axes, subject: Subject, forecast: RunForecast) -> None:
    def place(steps: np.ndarray) -> np.ndarray:
        if not subject.has_tokens:
            return np.asarray(steps, float)
        return np.array([subject.clock.tokens(int(step)) / 1e6 for step in steps])

    now = forecast.history.step
    best = forecast.label
    styles = {label: figure_style.weight_style(label) for label in (LIVE, best)}
    _draw_past(axes, forecast, styles, place)
    # The law need not pass through the last loss, so it is drawn beside the losses that it fits.
    past = np.unique(np.geomspace(max(now // _PAST, 1), now, _PAST_POINTS).astype(int))
    fitted = [
        {label: x.loss for label, x in row.items()} for row in forecast.losses_at(past.tolist())
    ]
    for label, style in styles.items():
        losses, low, high = forecast.path[label].T
        x = place(forecast.path_steps)
        fit = [row[label] for row in fitted]
        text = f"{forecast.name(label, now)}, fit and forecast"
        axes.plot([*place(past), *x], [*fit, *losses], label=text, **style)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    rows = [row for row in forecast.rows if row.step > now]
    percent = f"{100 * forecast.plan.fraction:.3g}%"
    for ends, kind, label, width in (
        ([row.decayed for row in rows], "wsd", f"if the last {percent} is a decay", 4),
        ([row.cosine for row in rows], "cosine", "a cosine run of that length", 1),
    ):
        points = [(row.step, x) for row, x in zip(rows, ends, strict=True) if x is not None]
        _draw_ends(axes, place, points, kind, label, width)
    axes.axvline(float(place(np.array([now]))[0]), color="0.5", linewidth=0.8)
    last = max(row.step for row in rows)
    first, farthest, end = place(np.array([now / _PAST, FARTHEST * now, last])) * [1 / 1.05, 1, 1.1]
    if last > FARTHEST * now:
        style = {"facecolor": "0.92", "edgecolor": "none", "zorder": 0}
        axes.axvspan(farthest, end, label="not calibrated", **style)
    axes.set_xlim(first, end)
    axes.set_ylabel("loss (nats per token; lower is better)")
    if subject.has_tokens:
        draw_frame(axes, columns=3, clock=None if subject.is_log else subject.clock)
    else:
        draw_frame(axes, "steps", columns=3)


def _draw_past(
    axes: Axes,
    forecast: RunForecast,
    styles: Mapping[str, Mapping[str, Any]],
    place: Callable[[np.ndarray], np.ndarray],
) -> None:
    history = forecast.history
    recent = history.last >= history.step / _PAST
    labels = np.array(history.labels)
    kinds: list[tuple[str, bool, dict[str, Any]]] = [
        (LIVE, True, {"color": "0.6", "linewidth": 0.8, "label": f"{LIVE}, training batches"}),
        *(
            (x, False, {**style, "linestyle": "none", "marker": ".", "label": f"{x}, measured"})
            for x, style in styles.items()
        ),
    ]
    for label, training, style in kinds:
        kept = recent & (labels == label) & (history.training == training)
        order = np.argsort(history.last[kept], kind="stable")
        if kept.any():
            axes.plot(place(history.last[kept][order]), history.losses[kept][order], **style)


def _draw_ends(
    axes: Axes,
    place: Callable[[np.ndarray], np.ndarray],
    points: list[tuple[int, Estimate]],
    kind: str,
    label: str,
    width: float,
) -> None:
    """Draws losses with their intervals, as bars of a width that keeps two kinds apart."""
    if not points:
        return
    style = schedule_styles.schedule_style(kind)
    style |= {"linestyle": "none", "elinewidth": width}
    style |= {"markerfacecolor": "none", "markersize": 11} if width > 1 else {}
    losses = np.array([x.loss for _, x in points])
    errors = [losses - [x.low for _, x in points], np.array([x.high for _, x in points]) - losses]
    x = place(np.array([step for step, _ in points]))
    axes.errorbar(x, losses, errors, label=label, **style)
