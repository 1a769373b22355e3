"""Which checkpoints stay, and the disk they need."""

import dataclasses
import itertools
import shutil
from pathlib import Path

from anytime_jax.config.clock import Clock
from anytime_jax.config.schema import Config

_OVERHEAD = 2**18  # bytes of a checkpoint that are not arrays, files' last blocks included


@dataclasses.dataclass(frozen=True)
class RetentionPolicy:
    """The policy of a run: milestones and multiples of a distance for ever, the last few besides.

    Attributes:
      clock: the run's clock; its milestones are each multiple 1x, 2x, 4x, ... and 90% of it.
      every: distance between other checkpoints kept for ever, in updates; None for none.
      rolling: number of latest checkpoints kept.
    """

    clock: Clock
    every: int | None
    rolling: int

    def keeps_forever(self, step: int) -> bool:
        """Whether the checkpoint of a step is kept whatever its age."""
        return self.clock.is_milestone(step) or (self.every is not None and step % self.every == 0)

    def count_kept(self, start: int, goal: int) -> int:
        """Returns how many checkpoints after `start`, up to `goal`, are kept for ever."""
        milestones = itertools.takewhile(lambda step: step <= goal, self.clock.milestones())
        new = [step for step in milestones if step > start]
        if self.every is None:
            return len(new)
        multiples = goal // self.every - start // self.every
        return multiples + sum(step % self.every != 0 for step in new)


def retention_policy(config: Config) -> RetentionPolicy:
    """Returns the policy of a configuration."""
    return RetentionPolicy(config.clock, config.keep_every_steps, config.checkpoint.keep)


def checkpoint_bytes(arrays: int) -> int:
    """Returns the space on disk of a checkpoint, given the bytes of its arrays; at most that."""
    return arrays + arrays // 50 + _OVERHEAD


def free_bytes(directory: Path) -> int:
    """Returns the free space on the disk of a directory, which need not be there yet."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free
