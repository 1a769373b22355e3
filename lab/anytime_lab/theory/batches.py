"""Batches: how many samples an update takes, as a function of the samples so far.

A batch is a whole number, for every update, or a `BatchSchedule`.
"""

import abc
import dataclasses

import numpy as np

from anytime_jax.checks import is_number, require, require_count, require_positive


class BatchSchedule(abc.ABC):
    """A batch that depends on the number of samples before the update.

    Examples:
      >>> class Doubled(theory.BatchSchedule):
      ...     def size(self, samples):
      ...         return 1 if samples < 3 else 2
      >>> theory.batches.sample_counts(Doubled(), end=8)
      array([1, 2, 3, 5, 7])
    """

    @abc.abstractmethod
    def size(self, samples: int) -> int:
        """Returns the batch, 1 or more, of the update that follows `samples` samples."""


@dataclasses.dataclass(frozen=True)
class GrowingBatch(BatchSchedule):
    """A batch that grows with a power of the samples so far, without a horizon.

        B(n) = ((n + alpha) / alpha)^power, rounded

    A rate over this batch, `eta / B(n)`, is `schedules.Power` with `gamma = power`.

    Attributes:
      power: exponent in samples. In updates t it is `power / (1 - power)`.
      alpha: samples over which the batch stays near 1.

    Examples:
      >>> theory.GrowingBatch(power=0.5, alpha=100).size(2_400)
      5
    """

    power: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        ok = is_number(self.power) and 0 <= self.power <= 1
        require(ok, "power", self.power, "a number from 0 to 1")
        require_positive("alpha", self.alpha)

    def size(self, samples: int) -> int:
        """See `BatchSchedule.size`."""
        return round((1 + samples / self.alpha) ** self.power)


Batch = int | BatchSchedule


def sample_counts(batch: Batch, end: int) -> np.ndarray:
    """Returns the samples after each update, int64[updates], as far as they are `end` or less.

    Examples:
      >>> theory.batches.sample_counts(theory.GrowingBatch(power=1.0, alpha=10), 25)
      array([ 1,  2,  3,  4,  5,  7,  9, 11, 13, 15, 17, 20, 23])
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
