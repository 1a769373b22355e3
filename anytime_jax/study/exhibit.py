"""What an exhibit is, and what all of them need: the lines they show, what is missing, cells."""

import dataclasses
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax.study import style
from anytime_jax.study.results import Line, Results
from anytime_jax.study.select import Reading, closest, envelope, on_edge

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


def kinds(results: Results) -> list[str]:
    """The kinds that are compared with the envelope, in the order of the legend."""
    there = {line.kind for line in results.lines}
    return [kind for kind in style.STYLES if kind in there and kind != "cosine"]


def selected(results: Results, reading: Reading) -> dict[str, Line]:
    """For each kind the single line that is closest to the envelope on average."""
    of = envelope(results)
    found = {k: closest(results.main(k), reading.label(k), of) for k in kinds(results)}
    return {kind: line for kind, line in found.items() if line is not None}


def notes(results: Results, kinds: Sequence[str], lines: Sequence[Line] = ()) -> list[str]:
    """What is missing of some kinds, and which lines lie on the edge of the grid they are from."""
    notes = []
    if missing := results.missing(kinds):
        shown = "; ".join(missing[:6]) + (f"; and {len(missing) - 6} more" if missing[6:] else "")
        notes.append(f"Missing, and left out: {shown}.")
    edges = [
        f"{style.PLAIN_NAMES.get(x.kind, x.kind)} ({x.text}: {', '.join(found)})"
        for x in dict.fromkeys(lines)
        if (found := on_edge(results, x))
    ] if lines else []  # fmt: skip
    if edges:
        notes.append(f"On the edge of the grid, which ought to be widened: {'; '.join(edges)}.")
    return notes


def times(multiples: Sequence[float]) -> list[str]:
    """Returns multiples as the heads of columns."""
    return [f"{m:g}x" for m in multiples]


def cells(losses: Mapping[float, float], multiples: Sequence[float], sign: str = "") -> list[str]:
    """Returns losses in nats as cells, empty where there is none; `sign` is "+" for differences."""
    return [f"{losses[m]:{sign}.4f}" if m in losses else "" for m in multiples]
