"""Averages of SGD iterates, and the running means that a run tracks to have them.

Beside the rules of `anytime_jax.averaging`: `Tail`, the paper's w_{s:s+T}, and `LastFraction`. Both
are plain means over windows of updates; windows that do not overlap share one running mean.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from anytime_jax.averaging import LIVE, Rule, label_rules
from anytime_jax.checks import require_count
from anytime_jax.weights.post_hoc_averages import LastFraction


@dataclasses.dataclass(frozen=True)
class Tail:
    """The mean of the `length` iterates from update `start` on.

        w_{s:s+T} = (1/T) * sum_{i=s}^{s+T-1} w_i,      s = start, T = length

    It exists at one checkpoint: its last update.

    Examples:
      >>> tail = theory.Tail(start=51, length=50)
      >>> tail.label, tail.end
      ('tail51:101', 100)

    Source: Section 3, "Setup and notation".
    """

    start: int
    length: int

    def __post_init__(self) -> None:
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


Average = Rule | Tail | LastFraction | float  # a number f is `GrowingWindow(f)`


class _Windows:
    """Plain means over windows of updates that do not overlap; the newest iterate elsewhere."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def evaluate(self, t: np.ndarray) -> np.ndarray:
        window = np.searchsorted(self.ends, t)
        start = np.append(self.starts, t[-1])[window]
        return 1 / np.maximum(t - start, 1)


@dataclasses.dataclass(frozen=True)
class TrackedAverages:
    """Running means to update during a run, and which of them is each average."""

    labels: tuple[str, ...]  # of the averages, "last" (the iterate itself) first
    means: tuple[Rule | _Windows, ...]
    # int[averages without "last", checkpoints], index of the running mean that is the average at
    # the checkpoint; -1 where the average does not exist
    mean_of: np.ndarray

    @property
    def exists(self) -> np.ndarray:
        """bool[labels, checkpoints]: whether an average exists; the iterate always does."""
        return np.vstack([np.zeros((1, self.mean_of.shape[1])), self.mean_of]) >= 0

    def newest_weights(self, t: np.ndarray) -> np.ndarray:
        """Returns float64[len(t), means], the weight of the newest iterate after update t."""
        if not self.means:
            return np.zeros((len(t), 0))
        return np.stack([mean.evaluate(t) for mean in self.means], axis=-1)


def track(averages: Iterable[Average], checkpoints: Sequence[int]) -> TrackedAverages:
    """Returns what a run tracks to have some averages at its checkpoints, which are in order."""
    averages = list(averages)
    rules = iter(label_rules(x for x in averages if not isinstance(x, Tail | LastFraction)).items())
    labels, means, rows = [LIVE], [], []
    for average in averages:
        if isinstance(average, Tail | LastFraction):
            label, (own, row) = average.label, _windows(average, checkpoints)
        else:
            label, rule = next(rules)
            own, row = [rule], [0] * len(checkpoints)
        rows.append([len(means) + k if k >= 0 else -1 for k in row])
        means += own
        if label in labels:
            raise ValueError(f"the average {label!r} is repeated: give every average once")
        labels.append(label)
    mean_of = np.array(rows, int).reshape(len(averages), len(checkpoints))
    return TrackedAverages(tuple(labels), tuple(means), mean_of)


def _windows(
    average: Tail | LastFraction, checkpoints: Sequence[int]
) -> tuple[list[_Windows], list[int]]:
    """The windows of an average, and for each checkpoint the index of its own; -1 if none."""
    if isinstance(average, LastFraction):
        starts = {t: average.updates_before(t) for t in checkpoints}
    elif average.end in checkpoints:
        starts = {average.end: average.start - 1}
    else:
        raise ValueError(
            f"{average.label} ends at update {average.end}, which is none of the checkpoints (the "
            f"last is {checkpoints[-1]}): add that checkpoint, or choose a tail that ends at one"
        )
    windows: list[_Windows] = []
    row = {}
    for t, start in starts.items():
        free = (k for k, x in enumerate(windows) if x.ends[-1] <= start)
        row[t] = next(free, len(windows))
        if row[t] == len(windows):
            windows.append(_Windows())
        windows[row[t]].starts.append(start)
        windows[row[t]].ends.append(t)
    return windows, [row.get(t, -1) for t in checkpoints]
