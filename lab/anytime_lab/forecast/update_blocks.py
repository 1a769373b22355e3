"""Blocks of updates, over each of which the learning rate hardly changes.

A law of losses sums over all updates of a run. Blocks of half a percent of the run so far, about
140 in each doubling, keep such a sum as short for a million updates as for a thousand. They are
shorter where the rate changes quickly, down to one update at a jump. Their number is limited if the
rate changes everywhere, as recorded rates with noise do.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from anytime_jax.schedules import Schedule

RATIO = 0.005  # length of a block, relative to the run so far
# Change of the learning rate in a block, relative to the largest rate, at that ratio.
_CHANGE = 0.02
_SAMPLES = 8  # points of the learning rate in a block
_MOST = 4096  # blocks; the last halving leaves fewer than twice as many


@dataclasses.dataclass(frozen=True, eq=False)
class UpdateBlocks:
    """The updates of a run in consecutive blocks.

    Attributes:
      ends: int64[n], the number of updates done at the end of each block.
      lengths: float64[n], updates in each block.
      rates: float64[n], the mean learning rate of each block.
      square_rates: float64[n], the mean of its square.
      first_rates: float64[n], the learning rate of the first update of each block.
      last_rates: float64[n], the learning rate of the last update of each block.
    """

    ends: np.ndarray
    lengths: np.ndarray
    rates: np.ndarray
    square_rates: np.ndarray
    first_rates: np.ndarray
    last_rates: np.ndarray

    def shrinkage(self, weight_growth: float | np.ndarray) -> np.ndarray:
        """Returns `1 / sqrt(1 + weight_growth * sum_{s<t} eta_s^2)` of each block: float64[..., n].

        The larger the weights have grown, the less an update of a normalized optimizer changes
        them.
        """
        squares = self.lengths * self.square_rates
        return 1 / np.sqrt(1 + weight_growth * (np.cumsum(squares) - squares / 2))

    def index(self, steps: np.ndarray) -> np.ndarray:
        """Returns the blocks that end at `steps`, which must be among the marks."""
        return np.searchsorted(self.ends, steps)


def group(schedule: Schedule, marks: Iterable[int], ratio: float = RATIO) -> UpdateBlocks:
    """Returns the updates up to the last mark in blocks; each mark, 1 or more, ends a block."""
    required = sorted({int(mark) for mark in marks})
    grid, edge = [], 0
    while edge < required[-1]:
        edge += max(1, int(edge * ratio))
        grid.append(edge)
    ends = np.union1d(np.array([x for x in grid if x < required[-1]], int), required)
    rates = _sample(schedule, ends)
    largest = _CHANGE * ratio / RATIO * rates.max()
    while True:
        starts = np.concatenate([[0], ends[:-1]])
        split = (np.ptp(rates, axis=1) > largest) & (ends - starts > 1)
        if not split.any() or len(ends) > _MOST:
            break
        ends = np.union1d(ends, (starts + ends)[split] // 2)
        rates = _sample(schedule, ends)
    inner = rates[:, 1:-1]
    lengths = (ends - starts).astype(float)
    mean, square = inner.mean(1), (inner**2).mean(1)
    return UpdateBlocks(ends, lengths, mean, square, rates[:, 0], rates[:, -1])


def sample_counts(ends: np.ndarray) -> np.ndarray:
    """Returns evenly spaced counts of updates within each block: int64[n, 8]."""
    lengths = np.diff(ends, prepend=0)
    fractions = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    return (ends - lengths)[:, None] + (lengths[:, None] * fractions).astype(int)


def _sample(schedule: Schedule, ends: np.ndarray) -> np.ndarray:
    """Returns the rates of the first, of evenly spaced, and of the last update of each block."""
    starts = np.concatenate([[0], ends[:-1]])
    return schedule.evaluate(np.column_stack([starts, sample_counts(ends), ends - 1]))
