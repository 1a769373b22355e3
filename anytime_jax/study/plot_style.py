"""How the pictures of a study look: colours, marks, names, axes, and where they are saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from anytime_jax.atomic import atomic_write
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_jax.study.loss_table import LIVE

# Colours that stay apart for colour-blind readers (Okabe and Ito), each with a mark and a dash of
# its own so that they stay apart in grey too.
STYLES: dict[str, dict[str, Any]] = {
    "cosine": {"color": "#D55E00", "marker": "*", "linestyle": "-", "markersize": 10},
    "constant": {"color": "#0072B2", "marker": "o", "linestyle": "--", "markersize": 5},
    "inverse_sqrt": {"color": "#009E73", "marker": "s", "linestyle": "-.", "markersize": 5},
    "wsd": {"color": "#CC79A7", "marker": "D", "linestyle": ":", "markersize": 5},
}
_OTHER = {"color": "#56B4E9", "marker": "v", "linestyle": "-", "markersize": 5}
_NAMES = {"inverse_sqrt": r"$1/\sqrt{t}$", "wsd": "WSD"}
_PLAIN_NAMES = {**_NAMES, "inverse_sqrt": "1/√t"}

_DPI = 160


def style(kind: str) -> dict[str, Any]:
    """Returns how lines of a kind of schedule are drawn."""
    return dict(STYLES.get(kind, _OTHER))


def name(kind: str, label: str = LIVE) -> str:
    """Returns what a legend calls a kind of schedule, with the average if it is one."""
    return _NAMES.get(kind, kind) + ("" if label == LIVE else f" + {label}")


def plain_name(kind: str) -> str:
    """Returns what a table or a sentence calls a kind of schedule."""
    return _PLAIN_NAMES.get(kind, kind)


def multiple_axis(axes: Axes, multiples: Sequence[float], clock: Clock) -> None:
    """Makes the x axis one of Chinchilla multiples: 1×, 2×, 4×, ..."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(multiples))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    tokens = format_count(clock.tokens(clock.chinchilla_steps))
    axes.set_xlabel(f"training budget (1× = {tokens} tokens)")
    axes.grid(alpha=0.3)


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """Puts the legend of some axes under the figure, where it covers no line."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Figure, out: Path, stem: str) -> list[Path]:
    """Writes a figure as `OUT/STEM.png` and `OUT/STEM.pdf`, each whole or not at all."""
    files = []
    for kind in ("png", "pdf"):
        path = out / f"{stem}.{kind}"
        # Without the moment it was made: the same numbers give the same file.
        about: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Software": None}
        with atomic_write(path) as part:
            figure.savefig(part, dpi=_DPI, format=kind, metadata=about)
        files.append(path)
    return files
