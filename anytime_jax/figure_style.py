"""Figure style: colors, dashes and saving.

Import this module only where a figure is drawn: Matplotlib takes half a second to import.
"""

import math
import zlib
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from anytime_jax.averaging import LIVE, GrowingWindow, is_label, parse_rule
from anytime_jax.storage.atomic import atomic_write

# Distinct for color-blind readers: Okabe and Ito, https://jfly.uni-koeln.de/color/
ORANGE, SKY_BLUE, GREEN, BLUE, PURPLE, VERMILION = PALETTE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#D55E00",
)  # fmt: skip
# Lines differ in dash too, so that they stay distinct in grey.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
LOSS = "validation loss (nats per token; lower is better)"


def weight_style(label: str) -> dict[str, Any]:
    """Returns the color and the dash of weights by their label, the same in every figure.

    The live weights are black. From f6.25 to f100, the colors go from dark to light in equal steps,
    which color-blind readers and gray keep. Other averages have a color of the palette.
    """
    if label == LIVE:
        return {"color": "black", "linestyle": "-"}
    rule = parse_rule(label) if is_label(label) else None
    if isinstance(rule, GrowingWindow):
        doublings = math.log2(rule.f / 6.25)
        color = matplotlib.colormaps["viridis"](0.2125 * min(max(doublings, 0.0), 4.0))
        return {"color": color, "linestyle": DASHES[(3, 2, 0, 4, 1)[round(doublings) % 5]]}
    number = zlib.crc32(label.encode())
    return {"color": PALETTE[number % 6], "linestyle": DASHES[number // 6 % 6]}


def save(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Writes a figure whole or not at all, as PNG or PDF by the suffix of `path`.

    The metadata hold no date and no version: the same numbers give the same file.
    """
    kind = path.suffix.removeprefix(".")
    metadata: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with atomic_write(path) as part:
        figure.savefig(part, dpi=dpi, format=kind, metadata=metadata)
    return path
