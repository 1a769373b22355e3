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
      first: with the seed that selected, in nats: a little too low, for having been selected.
      others: mean over the other seeds that have both, in nats; NaN if there is none.
      mean: over all seeds that have both, in nats.
      noise: standard error of that mean; NaN with one seed.
      seeds: how many seeds have both.
    """

    first: float
    others: float
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


Picked = Mapping[float, Line]  # the line that is shown at each multiple


def read_out(picked: Picked, label: str) -> dict[float, float]:
    """Returns the losses in nats of the lines that are shown, one at each multiple."""
    return {m: line.at(label)[m] for m, line in picked.items()}


def kinds(results: Results) -> list[str]:
    """Returns the kinds that are compared with the envelope."""
    return [kind for kind in results.kinds if kind != ENVELOPE]


def pick_single(results: Results, reading: Reading) -> dict[str, Picked]:
    """Returns what the paper's main comparison shows.

    For a horizon-free kind the one line that is closest to the envelope; for a kind with a horizon,
    such as WSD, the best at each multiple.

    Source: Section 4, "Training and evaluation details".
    """
    of, picked = envelope(results), pick_best(results, reading)
    for kind in picked:
        if kind in HORIZON_FREE:
            label = reading.label(kind)
            line = closest(results.main(kind), label, of)
            picked[kind] = {} if line is None else dict.fromkeys(differences(line, label, of), line)
    return {kind: lines for kind, lines in picked.items() if lines}


def pick_best(results: Results, reading: Reading) -> dict[str, Picked]:
    """Returns for every kind the line that is best at each multiple of the envelope."""
    picked: dict[str, Picked] = {}
    for kind in kinds(results):
        lines, label = results.main(kind), reading.label(kind)
        best = {m: best_at(lines, m, label) for m in envelope(results)}
        picked[kind] = {m: line for m, line in best.items() if line is not None}
    return {kind: lines for kind, lines in picked.items() if lines}


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
    """Returns the line with the least mean difference to the envelope.

    The lines that are to reach the end of the envelope take part, on the multiples that all of them
    have so far (`common`).

    Source: Section 4 and Table 2 of the paper.
    """
    lines = _long(lines, of)
    shared = common(lines, label, of)
    if not shared:
        return None

    def mean(line: Line) -> float:
        found = differences(line, label, of)
        return statistics.fmean(found[m] for m in shared)

    return min(lines, key=mean)


def common(lines: Sequence[Line], label: str, of: Mapping[float, Line]) -> list[float]:
    """Returns the multiples of the envelope that all lines have which are to reach its end."""
    there = [set(differences(x, label, of)) for x in _long(lines, of)]
    return sorted(set.intersection(*there)) if there else []


def _long(lines: Sequence[Line], of: Mapping[float, Line]) -> list[Line]:
    """The lines that are to reach the end of the envelope; all of them if none is."""
    return [x for x in lines if of and x.goal >= max(of)] or list(lines)


def gaps(results: Results, line: Line, label: str, of: Mapping[float, Line]) -> dict[float, Gap]:
    """Returns the differences of a line to the envelope, with their noise over seeds.

    The envelope of another seed is made of the settings that the first seed selected.
    """
    found: dict[float, Gap] = {}
    for m, first in differences(line, label, of).items():
        cosines = {x.seed: x.at(LIVE) for x in results.replicates(of[m])}
        each = [
            x.at(label)[m] - cosines[x.seed][m]
            for x in results.replicates(line)
            if m in x.at(label) and m in cosines.get(x.seed, {})
        ]
        several = len(each) > 1
        others = statistics.fmean(each[1:]) if several else math.nan
        noise = statistics.stdev(each) / math.sqrt(len(each)) if several else math.nan
        found[m] = Gap(first, others, statistics.fmean(each), noise, len(each))
    return found


def on_edge(results: Results, line: Line, label: str, multiples: Sequence[float]) -> list[str]:
    """Returns the settings of a line that are the least or largest value tried beside it.

    What was tried counts if it has a loss at all of the multiples. A value that no other was tried
    beside is no choice, and on no edge.
    """
    lines = [x for x in results.main(line.kind) if set(multiples) <= x.at(label).keys()]
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
