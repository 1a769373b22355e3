"""Batches: how many samples an update takes, as a function of the samples so far.

A batch is a whole number, for every update, or a `BatchSchedule`.
"""

import abc
import dataclasses

import numpy as np

from anytime_jax.checks import is_number, require, require_count, require_positive


class BatchSchedule(abc.ABC):
    """A batch that depends on the number of samples before the update."""

    @abc.abstractmethod
    def size(self, samples: int) -> int:
        """Returns the batch, 1 or more, of the update that follows `samples` samples."""


@dataclasses.dataclass(frozen=True)
class GrowingBatch(BatchSchedule):
    """A batch that grows with a power of the samples so far, without a horizon.

        B(n) = (n / start)^power, rounded, and 1 up to n = start

    Attributes:
      power: exponent in samples; in updates it is power / (1 - power).
      start: samples after which the batch begins to grow.

    Examples:
      >>> theory.GrowingBatch(power=0.5, start=100).size(2_500)
      5
    """

    power: float
    start: float = 1.0

    def __post_init__(self) -> None:
        ok = is_number(self.power) and 0 <= self.power <= 1
        require(ok, "power", self.power, "a number from 0 to 1")
        require_positive("start", self.start)

    def size(self, samples: int) -> int:
        """See `BatchSchedule.size`."""
        return max(1, round((samples / self.start) ** self.power))


Batch = int | BatchSchedule


def sample_counts(batch: Batch, end: int) -> np.ndarray:
    """Returns the samples after each update, int64[updates], as far as they are `end` or less.

    Examples:
      >>> theory.batches.sample_counts(theory.GrowingBatch(power=1.0, start=10), 60)
      array([ 1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 17, 19,
             21, 23, 25, 27, 30, 33, 36, 40, 44, 48, 53, 58])
    """
    if not isinstance(batch, BatchSchedule):
        require_count("a batch", batch, least=1)
        return np.arange(batch, end + 1, batch)
    counts, samples = [], 0
    while True:
        size = batch.size(samples)
        require_count(f"a batch of {type(batch).__name__}", size, least=1)
        samples += size
        if samples > end:
            return np.array(counts, np.int64)
        counts.append(samples)
