"""Figure style of the laboratory: the look of each kind of schedule, shades, ticks and legends."""

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from anytime_jax.figure_style import BLUE, GREEN, PURPLE, SKY_BLUE, VERMILION

MARKERS = "os^Dv<>p"

_STYLES: dict[str, dict[str, Any]] = {
    "cosine": {"color": VERMILION, "marker": "*", "linestyle": "-", "markersize": 10},
    "constant": {"color": BLUE, "marker": "o", "linestyle": "--", "markersize": 5},
    "inverse_sqrt": {"color": GREEN, "marker": "s", "linestyle": "-.", "markersize": 5},
    "wsd": {"color": PURPLE, "marker": "D", "linestyle": ":", "markersize": 5},
}
_OTHER_STYLE = {"color": SKY_BLUE, "marker": "v", "linestyle": "-", "markersize": 5}


def schedule_style(kind: str) -> dict[str, Any]:
    """Returns keyword arguments of `Axes.plot` for a kind of schedule."""
    return dict(_STYLES.get(kind, _OTHER_STYLE))


def schedule_name(kind: str, math: bool = True) -> str:
    """Returns the display name of a kind of schedule, as Matplotlib math or as plain text."""
    inverse_sqrt = r"$1/\sqrt{t}$" if math else "1/√t"
    return {"inverse_sqrt": inverse_sqrt, "wsd": "WSD"}.get(kind, kind)


def shades(number: int, lightest: float = 0.85) -> np.ndarray:
    """Returns RGBA colors from dark to light, `float64[number, 4]`."""
    return matplotlib.colormaps["viridis"](np.linspace(0, lightest, number))


def plain_log_ticks(axes: Axes) -> None:
    """Puts a few plain numbers on a logarithmic y axis and no minor ticks, which draw slowly."""
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    subs: tuple[float, ...] = (1, 1.1, 1.2, 1.4, 2, 3, 4, 5, 6, 7, 8, 9)
    for least, fewer in ((0.3, (1, 1.5, 2, 3, 5, 7)), (1.3, (1, 3)), (3, (1,))):
        subs = fewer if decades > least else subs
    locator = LogLocator(subs=subs) if decades > 0.15 else MaxNLocator(5, steps=[1, 2, 5, 10])
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """Puts the legend of `axes` under the figure, where it covers no line."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
