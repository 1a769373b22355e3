"""Figure of what the layers of one run did, from the rows that `log.layers` records.

Separate from `loss_table`, which every start of a run imports: Matplotlib takes half a second.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.checkpoints.metric_records import LAYERS, Row
from anytime_jax.commands.loss_figure import training_losses
from anytime_jax.config.run_config import Config
from anytime_jax.storage.paths import storage_path

FILE = "layers.png"
_TITLES = {
    "weights": "weights",
    "gradients": "gradients, before the clip",
    "residual": "residual stream after the layer",
    "attention": "added to the stream by attention",
    "mlp": "added to the stream by the MLP",
    "logit": "largest attention logit",
}
_COLUMNS, _COLORS = 4, "viridis"
_OTHERS = {"embedding": ":", "head": "--"}

Curve = list[tuple[int, float]]


def draw(
    directory: str | Path, config: Config, rows: Sequence[Row], trunk: Sequence[Row] = ()
) -> Path | None:
    """Draws the records of the layers as `layers.png`; returns its path, None without any."""
    figure = make_figure(config, [*trunk, *rows])
    if figure is None:
        return None
    return figure_style.save(figure, storage_path(directory) / FILE, dpi=140)


def make_figure(config: Config, rows: Sequence[Row]) -> Figure | None:
    """Returns the figure of the records of the layers, None without any.

    The first panel has the training loss, and each other panel a measure: one curve for each layer,
    from the first layer in dark to the last in light. Infinite values, NaN and, on a logarithmic
    axis, zeros are not shown but counted.
    """
    curves = read_curves(rows)
    if not curves:
        return None
    names = [*(x for x in _TITLES if x in curves), *sorted(curves.keys() - _TITLES.keys())]
    lines = math.ceil((1 + len(names)) / _COLUMNS)
    figure = Figure(figsize=(3.6 * _COLUMNS, 3 * lines + 0.7), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, sharex=True, squeeze=False).flat
    figure.suptitle(f"{config.name}: what each layer does", parse_math=False)
    losses = [(row.step, loss) for row, loss in training_losses(rows)]
    panels[0].plot(*zip(*losses, strict=True), color="black", linewidth=1)
    panels[0].set_title("training loss (nats per token)", fontsize=10)
    layers = 1 + max(int(x) for of in curves.values() for x in of if x not in _OTHERS)
    for axes, name in zip(panels[1:], names, strict=False):
        _draw_measure(axes, _TITLES.get(name, name), curves[name], layers)
    for axes in panels[1 + len(names) :]:
        axes.remove()
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.tick_params(labelbottom=True)
    scale = ScalarMappable(Normalize(0, layers), _COLORS)
    ticks = range(0, layers, math.ceil(layers / 12))
    figure.colorbar(scale, ax=figure.axes, label="layer", aspect=40, ticks=ticks)
    text = "root mean squares, except of the loss and the logit"
    figure.supxlabel(f"update\n{text}; dotted: the embedding, dashed: the head", fontsize=9)
    return figure


def read_curves(rows: Sequence[Row]) -> dict[str, dict[str, Curve]]:
    """Returns the curve of every measure of the layers, by measure and by layer.

    A curve has pairs of an update and a value. Layers are "0", "1", ..., "embedding" and "head".
    """
    curves: dict[str, dict[str, Curve]] = {}
    for row in rows:
        for name, value in row.values.items():
            parts = name.split("/", 2)
            if parts[0] == LAYERS and len(parts) == 3:
                curve = curves.setdefault(parts[2], {}).setdefault(parts[1], [])
                curve.append((row.step, value))
    return curves


def _draw_measure(axes: Axes, title: str, curves: dict[str, Curve], layers: int) -> None:
    for layer, curve in curves.items():
        steps, values = zip(*curve, strict=True)
        color = "0.4" if layer in _OTHERS else matplotlib.colormaps[_COLORS](int(layer) / layers)
        style = {"color": color, "linestyle": _OTHERS.get(layer, "-")}
        axes.plot(steps, values, marker=".", markersize=3, linewidth=1, **style)
    values = [x for curve in curves.values() for _, x in curve]
    shown = [x for x in values if math.isfinite(x)]
    if min(shown, default=0) >= 0 and any(shown):
        axes.set_yscale("log")
        shown = [x for x in shown if x > 0]
    hidden = len(values) - len(shown)
    what = "zero, infinite or NaN" if axes.get_yscale() == "log" else "infinite or NaN"
    axes.set_title(f"{title}\n(not shown, {what}: {hidden})" if hidden else title, fontsize=10)
