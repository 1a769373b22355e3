"""Figure style: colors, dashes and saving.

Import this module only where a figure is drawn: Matplotlib takes half a second to import.
"""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anytime_jax.storage.atomic import atomic_write

# Distinct for color-blind readers: Okabe and Ito, https://jfly.uni-koeln.de/color/
ORANGE, SKY_BLUE, GREEN, BLUE, PURPLE, VERMILION = PALETTE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#D55E00",
)  # fmt: skip
# Lines differ in dash too, so that they stay distinct in grey.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))


def save(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Writes a figure whole or not at all, as PNG or PDF by the suffix of `path`.

    The metadata hold no date and no version: the same numbers give the same file.
    """
    kind = path.suffix.removeprefix(".")
    metadata: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with atomic_write(path) as part:
        figure.savefig(part, dpi=dpi, format=kind, metadata=metadata)
    return path
