"""Averages of the iterates, as the exact risk needs them: columns of newest weights over time.

Every rule of `anytime_jax.averaging` is an average here too. Two more end with the run they belong
to: `Tail`, the paper's w_{s:s+T}, and `LastFraction`, the mean of the last part of every run. Each
is a window of updates over which it is the plain mean; windows that do not overlap share a column.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from anytime_jax.averaging import LIVE, Rule, label_rules
from anytime_jax.checks import require_count
from anytime_jax.weights.post_hoc import LastFraction


@dataclasses.dataclass(frozen=True)
class Tail:
    """The mean of `length` iterates from that of update `start` on, at its last update alone.

        w_{s:s+T} = (1/T) * sum_{i=s}^{s+T-1} w_i,      s = start, T = length

    Attributes:
      start: the first update in the mean, from 1.
      length: number of iterates in the mean, from 1.

    Source: Section 3, "Setup and notation".
    """

    start: int
    length: int

    def __post_init__(self) -> None:
        """Checks both."""
        require_count("start", self.start, least=1)
        require_count("length", self.length, least=1)

    @property
    def label(self) -> str:
        """`tail100:300` for w_{100:300}, the mean of iterates 100 to 299."""
        return f"tail{self.start}:{self.start + self.length}"

    @property
    def end(self) -> int:
        """The last update in the mean."""
        return self.start + self.length - 1


Average = Rule | Tail | LastFraction | float


def _windows(average: Tail | LastFraction, checkpoints: Sequence[int]) -> dict[int, int]:
    """The number of updates before the mean, by the checkpoint at which the mean ends."""
    if isinstance(average, LastFraction):
        return {t: average.updates_before(t) for t in checkpoints}
    if average.end not in checkpoints:
        where = "after the last" if average.end > checkpoints[-1] else "which is no"
        raise ValueError(
            f"the tail w_{{{average.start}:{average.start + average.length}}} ends at update "
            f"{average.end}, {where} checkpoint ({checkpoints[-1]} is the last): ask for that "
            "checkpoint, or for a tail inside the run"
        )
    return {average.end: average.start - 1}


class _Column(Protocol):
    """Newest weights over time."""

    def evaluate(self, t: np.ndarray) -> np.ndarray: ...


class _Windows:
    """Plain means over windows of updates that do not overlap; the newest iterate elsewhere."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def evaluate(self, t: np.ndarray) -> np.ndarray:
        which = np.searchsorted(self.ends, t)
        start = np.append(self.starts, t[-1])[which]
        return 1 / np.maximum(t - start, 1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to keep during a run, and where each average is found at each checkpoint.

    Attributes:
      labels: names of the averages, "last" (the iterate itself) first.
      columns: what gives the newest weight of each thing kept.
      found: int[averages without "last", checkpoints]: the column, -1 where there is none.
    """

    labels: tuple[str, ...]
    columns: tuple[_Column, ...]
    found: np.ndarray

    @property
    def exists(self) -> np.ndarray:
        """bool[labels, checkpoints]: whether an average is there; the iterate always is."""
        return np.vstack([np.zeros((1, self.found.shape[1])), self.found]) >= 0

    def newest_weights(self, t: np.ndarray) -> np.ndarray:
        """Returns float64[len(t), columns], the weight of the newest iterate after update t."""
        if not self.columns:
            return np.zeros((len(t), 0))
        return np.stack([column.evaluate(t) for column in self.columns], axis=-1)


def plan(averages: Iterable[Average], checkpoints: Sequence[int]) -> Plan:
    """Returns how averages are kept over a run with these checkpoints, which are in order.

    Raises:
      ValueError: for something that is not an average, a label given twice, a tail that ends at no
        checkpoint.
    """
    averages = list(averages)
    rules = iter(label_rules(x for x in averages if not isinstance(x, Tail | LastFraction)).items())
    labels, columns, found = [LIVE], [], []
    for average in averages:
        if not isinstance(average, Tail | LastFraction):
            label, rule = next(rules)
            found.append([len(columns)] * len(checkpoints))
            columns.append(rule)
        else:
            label = average.label
            windows = _windows(average, checkpoints)
            own: list[_Windows] = []
            where = []
            for t in checkpoints:
                if t not in windows:
                    where.append(-1)
                    continue
                free = (k for k, x in enumerate(own) if x.ends[-1] <= windows[t])
                k = next(free, len(own))
                if k == len(own):
                    own.append(_Windows())
                own[k].starts.append(windows[t])
                own[k].ends.append(t)
                where.append(len(columns) + k)
            found.append(where)
            columns.extend(own)
        if label in labels:
            raise ValueError(f"the average {label!r} is given twice: every average once")
        labels.append(label)
    shape = (len(averages), len(checkpoints))
    return Plan(tuple(labels), tuple(columns), np.array(found, int).reshape(shape))
