"""Blocks of updates, over each of which the learning rate hardly changes.

A law of losses sums over all updates of a run. Blocks of half a percent of the run so far, about
140 in each doubling, keep such a sum as short for a million updates as for a thousand.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from anytime_jax.schedules import Schedule

RATIO = 0.005  # length of a block, relative to the run so far
_SAMPLES = 8  # of the learning rate in a block


@dataclasses.dataclass(frozen=True, eq=False)
class UpdateBlocks:
    """The updates of a run in consecutive blocks.

    Attributes:
      ends: int64[n], the number of updates done at the end of each block.
      lengths: float64[n], updates in each block.
      rates: float64[n], the mean learning rate of each block.
      square_rates: float64[n], the mean of its square.
    """

    ends: np.ndarray
    lengths: np.ndarray
    rates: np.ndarray
    square_rates: np.ndarray

    def shrinkage(self, weight_growth: float) -> np.ndarray:
        """Returns `1 / sqrt(1 + weight_growth * sum_{s<t} eta_s^2)` of each block: float64[n].

        An update of a normalised optimizer changes weights the less the larger they have grown.
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
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    # Evenly spaced counts of each block, none twice where it is short.
    fractions = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    counts = starts[:, None] + (lengths[:, None] * fractions).astype(int)
    rates = schedule.evaluate(counts)
    return UpdateBlocks(ends, lengths.astype(float), rates.mean(1), (rates**2).mean(1))
