"""Events of a run, such as a save or an evaluation: values that tell at which steps one is due."""

import dataclasses
from collections.abc import Callable

from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.run_config import Config


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that is due at every multiple of `every` steps, at some others, and at the stop.

    Attributes:
      also: whether it is due at a step for another reason, such as `clock.is_doubling`.
      stop: the step at which the run ends, where it is due even after no update; `math.inf` for
        never.
    """

    every: int
    also: Callable[[int], bool]
    stop: float

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        return step == self.stop or (step > 0 and (step % self.every == 0 or self.also(step)))


def save_event(config: Config, stop: float) -> Event:
    """Returns when a run saves: at the interval, wherever a checkpoint is kept, at its stop."""
    return Event(config.checkpoint_steps, retention_policy(config).keeps_forever, stop)


def evaluation_event(config: Config, stop: float) -> Event:
    """Returns when a run evaluates: at the interval, at 1x, 2x, 4x, ..., at its stop."""
    return Event(config.eval_steps, config.clock.is_doubling, stop)
