"""Which settings to show: the envelope, the closest single line, the best at each budget.

The paper selects with the weights that it reports: an average for horizon-free runs, the live
weights for runs that decay. Selection looks at the study's first seed alone; other seeds of what
was selected say how large the noise is.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from anytime_jax.study.results import LIVE, Line, Results

ENVELOPE = "cosine"
HORIZON_FREE = ("constant", "inverse_sqrt", "power")


@dataclasses.dataclass(frozen=True)
class Gap:
    """A difference to the cosine envelope at one multiple.

    Attributes:
      first: with the seed that selected, in nats.
      mean: over the seeds that have both, in nats.
      noise: standard error of that mean; NaN with one seed.
      seeds: how many seeds have both.
    """

    first: float
    mean: float
    noise: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """Which weights are read out.

    Attributes:
      average: label for horizon-free runs.
    """

    average: str = "f25"

    def label(self, kind: str) -> str:
        """Returns the weight label of a kind of schedule."""
        return self.average if kind in HORIZON_FREE else LIVE


def envelope(results: Results) -> dict[float, Line]:
    """Returns the best cosine of each horizon: the lowest loss of its live weights there."""
    lines = results.main(ENVELOPE)
    found = {m: best_at(lines, m, LIVE) for m in results.multiples}
    return {m: line for m, line in found.items() if line is not None}


def best_at(lines: Sequence[Line], multiple: float, label: str) -> Line | None:
    """Returns the line with the lowest loss at a multiple; None if no line has one there."""
    there = [x for x in lines if multiple in x.at(label)]
    return min(there, key=lambda x: x.at(label)[multiple], default=None)


def differences(line: Line, label: str, of: Mapping[float, Line]) -> dict[float, float]:
    """Returns the losses of a line minus those of the envelope, in nats, by multiple."""
    return {m: x - of[m].at(LIVE)[m] for m, x in line.at(label).items() if m in of}


def closest(lines: Sequence[Line], label: str, of: Mapping[float, Line]) -> Line | None:
    """Returns the line with the least mean difference to the envelope over all multiples.

    Only lines that have all the multiples of the envelope take part, if there is one.

    Source: Section 4 and Table 2 of the paper.
    """
    gaps = {i: differences(x, label, of) for i, x in enumerate(lines)}
    longest = max((len(x) for x in gaps.values()), default=0)
    if not longest:
        return None
    whole = [i for i, x in gaps.items() if len(x) == longest]
    return lines[min(whole, key=lambda i: statistics.fmean(gaps[i].values()))]


def gaps(results: Results, line: Line, label: str, of: Mapping[float, Line]) -> dict[float, Gap]:
    """Returns the differences of a line to the envelope, with their noise over seeds.

    The envelope of another seed is made of the settings that the first seed selected.
    """
    found: dict[float, Gap] = {}
    first = differences(line, label, of)
    for m, gap in first.items():
        cosines = {x.seed: x.at(LIVE) for x in results.replicates(of[m])}
        each = [
            x.at(label)[m] - cosines[x.seed][m]
            for x in results.replicates(line)
            if m in x.at(label) and m in cosines.get(x.seed, {})
        ]
        noise = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        found[m] = Gap(gap, statistics.fmean(each), noise, len(each))
    return found


def on_edge(results: Results, line: Line) -> list[str]:
    """Returns the settings of a line that are the least or largest value its kind was tried at.

    A value that no other was tried beside is no choice, and on no edge.
    """
    lines = results.main(line.kind)
    found = []
    for name, value in line.settings.items():
        rest = {k: v for k, v in line.settings.items() if k != name}
        tried = {
            x.settings[name]
            for x in lines
            if {k: v for k, v in x.settings.items() if k != name} == rest
        }
        if isinstance(value, float) and len(tried) > 1 and value in (min(tried), max(tried)):
            found.append(name)
    return found
