"""Retention of checkpoints, and the space that they need."""

import dataclasses
import itertools

from anytime_jax.config.clock import Clock
from anytime_jax.config.run_config import Config

_OVERHEAD = 2**18  # bytes in addition to the arrays, including partly filled file blocks


@dataclasses.dataclass(frozen=True)
class RetentionPolicy:
    """Policy that keeps milestones and every k-th update forever, and the latest checkpoints.

    The milestones of `clock` are the multiples 1x, 2x, 4x, ... and 90% of each. `every` is k, or
    None to keep milestones alone. `rolling` is how many of the latest checkpoints are kept.
    """

    clock: Clock
    every: int | None
    rolling: int

    def keeps_forever(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is never deleted."""
        return self.clock.is_milestone(step) or (self.every is not None and step % self.every == 0)

    def count_kept(self, start: int, goal: int) -> int:
        """Returns the number of checkpoints kept forever after `start` and up to `goal`."""
        milestones = itertools.takewhile(lambda step: step <= goal, self.clock.milestones())
        new = [step for step in milestones if step > start]
        if self.every is None:
            return len(new)
        periodic = goal // self.every - start // self.every
        return periodic + sum(step % self.every != 0 for step in new)


def retention_policy(config: Config) -> RetentionPolicy:
    """Returns the retention policy of a configuration."""
    return RetentionPolicy(config.clock, config.keep_steps, config.checkpoint.keep)


def checkpoint_bytes(array_bytes: int) -> int:
    """Returns an upper bound in bytes on the disk space of a checkpoint."""
    return array_bytes + array_bytes // 50 + _OVERHEAD
