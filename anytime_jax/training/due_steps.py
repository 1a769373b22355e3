"""Events of a run, such as its saves: values that know when one is due."""

import dataclasses
from collections.abc import Callable

from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.checks import LARGEST_COUNT
from anytime_jax.config.run_config import Config


@dataclasses.dataclass(frozen=True)
class Event:
    """Something due at every multiple of `every` steps, at some other steps, and at the stop.

    Attributes:
      also: a function that says of other steps whether the event is due, as `clock.is_doubling`.
      stop: the step at which the run ends, `math.inf` for never. There the event is due even if no
        update was made.
    """

    every: int
    also: Callable[[int], bool]
    stop: float

    def due(self, step: int) -> bool:
        """Whether the event is due after `step` updates."""
        return step == self.stop or (step > 0 and (step % self.every == 0 or self.also(step)))


def task_event(config: Config, stop: float) -> Event:
    """Returns when a run scores its tasks: at the interval or points, and at its stop."""
    if isinstance(config.task_steps, int):
        return Event(config.task_steps, lambda step: False, stop)
    return Event(LARGEST_COUNT, config.task_steps.__contains__, stop)


def save_event(config: Config, stop: float) -> Event:
    """Returns when a run saves: at the interval, wherever a checkpoint is kept, at its stop."""
    return Event(config.checkpoint_steps, retention_policy(config).keeps_forever, stop)


def evaluation_event(config: Config, stop: float) -> Event:
    """Returns when a run evaluates: at the interval, at 1x, 2x, 4x, ..., at its stop."""
    return Event(config.eval_steps, config.clock.is_doubling, stop)
