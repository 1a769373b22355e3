"""What an exhibit is, and what all of them need: the lines they show, what is missing, cells."""

import dataclasses
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax import plotting
from anytime_jax.study.results import Results
from anytime_jax.study.selection import Picked, Reading, on_edge

Table = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """A figure or a table, or both.

    Attributes:
      stem: of its files' names.
      title: one line.
      caption: what is shown, and from which runs.
      table: rows of cells, the head first; what the figure draws, or the table itself.
      figure: the picture; None for a table alone.
      notes: what a reader must know besides: what is missing, what lies on the edge of a grid.
    """

    stem: str
    title: str
    caption: str
    table: Table
    figure: Figure | None = None
    notes: Sequence[str] = ()


def notes(
    results: Results,
    reading: Reading,
    picked: Mapping[str, Picked],
    among: Sequence[str] = (),
) -> list[str]:
    """Returns what a reader must know of the lines that are shown.

    Args:
      results: of the study.
      reading: which weights are read out.
      picked: by kind, the line shown at each multiple.
      among: other kinds that the exhibit stands on.
    """
    found = []
    every = [*among, *picked]
    if missing := results.missing(every):
        shown = "; ".join(missing[:6]) + (f"; and {len(missing) - 6} more" if missing[6:] else "")
        found.append(f"Not finished: {shown}.")
    edges = {}
    for kind, lines in picked.items():
        for m, line in lines.items():
            if names := on_edge(results, line, reading.label(kind), [m]):
                told = f"{line.text}: {', '.join(names)}"
                edges.setdefault((plotting.schedule_name(kind, math=False), told), []).append(m)
    if edges:
        each = [f"{kind} at {', '.join(times(at))} ({told})" for (kind, told), at in edges.items()]
        found.append(f"On the edge of the grid, which ought to be widened: {'; '.join(each)}.")
    return found


def times(multiples: Sequence[float]) -> list[str]:
    """Returns multiples as the heads of columns."""
    return [f"{m:g}x" for m in multiples]


def cells(losses: Mapping[float, float], multiples: Sequence[float], sign: str = "") -> list[str]:
    """Returns losses in nats as cells, empty where there is none; `sign` is "+" for differences."""
    return [f"{losses[m]:{sign}.4f}" if m in losses else "" for m in multiples]
