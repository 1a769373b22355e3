"""Averages of SGD iterates, and the running means that a run tracks to compute them.

`Tail` (the paper's w_{s:s+T}) and `LastFraction` extend the rules of `anytime_jax.averaging`. Both
are plain means over windows of samples; windows that do not overlap share one running mean. With
batches of one sample, samples are updates. An update that takes several counts as often.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anytime_jax.averaging import LIVE, Rule, label_rules
from anytime_jax.checks import require_count
from anytime_jax.errors import InputError
from anytime_jax.weights.post_hoc_averages import LastFraction


@dataclasses.dataclass(frozen=True)
class Tail:
    """The mean of the iterates after the `length` samples from sample `start` on.

        w_{s:s+T} = (1/T) * sum_{i=s}^{s+T-1} w_i,      s = start, T = length

    It exists at one checkpoint: its last sample.

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
        """The last sample in the mean."""
        return self.start + self.length - 1


Average = Rule | Tail | LastFraction | float  # a number f is `GrowingWindow(f)`


class TrackedAverages(NamedTuple):
    """Running means to update during a run, and which of them is each average."""

    labels: tuple[str, ...]  # of the averages, "last" (the iterate itself) first
    means: tuple[Rule, ...]
    # int[labels, checkpoints], what an average is at a checkpoint: 0 the iterate, k the k-th
    # running mean, counted from 1; -1 where the average does not exist
    source: np.ndarray


def track(averages: Iterable[Average], checkpoints: Sequence[int]) -> TrackedAverages:
    """Returns what a run tracks to compute averages at its checkpoints, which are in order."""
    labels, source = [LIVE], [[0] * len(checkpoints)]
    means: list[Rule] = []
    for average in averages:
        if isinstance(average, Tail | LastFraction):
            label, (own, mean_at) = average.label, _window_means(average, checkpoints)
        else:
            ((label, rule),) = label_rules([average]).items()
            own, mean_at = [rule], dict.fromkeys(checkpoints, 1)
        if label in labels:
            raise InputError(f"the average {label!r} is repeated: give every average once")
        labels.append(label)
        source.append([len(means) + mean_at[t] if t in mean_at else -1 for t in checkpoints])
        means += own
    return TrackedAverages(tuple(labels), tuple(means), np.array(source))


def _window_means(
    average: Tail | LastFraction, checkpoints: Sequence[int]
) -> tuple[list[Rule], dict[int, int]]:
    """Returns an average's running means, and which of them, from 1, it is at each checkpoint."""
    if isinstance(average, LastFraction):
        starts = {t: average.updates_before(t) for t in checkpoints}
    elif average.end in checkpoints:
        starts = {average.end: average.start - 1}
    else:
        raise InputError(
            f"{average.label} ends at sample {average.end}, which is none of the checkpoints (the "
            f"last is {checkpoints[-1]}): add that checkpoint, or choose a tail that ends at one"
        )
    means: list[list[tuple[int, int]]] = []  # (start, end) of the windows of each
    mean_at = {}
    for end, start in starts.items():
        mean = next((windows for windows in means if windows[-1][1] <= start), None)
        if mean is None:
            means.append(mean := [])
        mean.append((start, end))
        mean_at[end] = 1 + means.index(mean)
    return [_Windows(tuple(windows)) for windows in means], mean_at


@dataclasses.dataclass(frozen=True)
class _Windows(Rule):
    """Plain means over windows (start, end), one after the other; elsewhere the iterate alone."""

    windows: tuple

    @property
    def label(self) -> str:
        return f"windows{self.windows}"

    def newest(self, t: Any, xp: Any) -> Any:
        starts, ends = np.array(self.windows).T
        start = xp.append(starts, t.max())[xp.searchsorted(ends, t)]
        return 1 / xp.maximum(t - start, 1)
