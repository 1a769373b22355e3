"""Events of a run, such as a save or an evaluation: values that tell at which steps one is due."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.schema import Config


class Event(Protocol):
    """Something that happens at some steps of a run."""

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        ...


@dataclasses.dataclass(frozen=True)
class Every:
    """Due at every multiple of a number of steps."""

    steps: int

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        return step > 0 and step % self.steps == 0


@dataclasses.dataclass(frozen=True)
class At:
    """Due at one step; at `math.inf` never."""

    step: float

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        return step == self.step


@dataclasses.dataclass(frozen=True)
class When:
    """Due at the steps from 1 that satisfy a condition, such as `clock.is_doubling`."""

    condition: Callable[[int], bool]

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        return step > 0 and self.condition(step)


@dataclasses.dataclass(frozen=True)
class AnyOf:
    """Due where one of several events is."""

    events: tuple[Event, ...]

    def due(self, step: int) -> bool:
        """Whether it is due after `step` updates."""
        return any(event.due(step) for event in self.events)


def saves(config: Config, stop: float) -> Event:
    """Returns when a run saves: at the interval, wherever a checkpoint is kept, at its stop."""
    kept = When(retention_policy(config).keeps_forever)
    return AnyOf((Every(config.checkpoint_steps), kept, At(stop)))


def evaluations(config: Config, stop: float) -> Event:
    """Returns when a run evaluates: at the interval, at 1x, 2x, 4x, ..., at its stop."""
    doublings = When(config.clock.is_doubling)
    return AnyOf((Every(config.eval_steps), doublings, At(stop)))
