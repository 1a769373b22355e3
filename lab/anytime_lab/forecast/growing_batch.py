"""Learning rates and averaging rules by update, for a run whose batch grows.

Laws of losses sum over updates, while a run has functions of time.
"""

import dataclasses
from typing import Any

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.config.clock import Clock
from anytime_jax.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class RateByUpdate(Schedule):
    """Learning rate of each update.

    Attributes:
      rate: the learning rate by time.
      clock: the clock of the run.
    """

    rate: Schedule
    clock: Clock

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The peak of the rate."""
        return self.rate.peak

    @property
    def end(self) -> int | None:
        """The update at which the rate ends."""
        return None if self.rate.end is None else self.clock.step_of(self.rate.end)

    @property
    def warmup_end(self) -> int:
        """The update at which the warmup ends."""
        return self.clock.step_of(self.rate.warmup_end)

    def _rate(self, t: Any, xp: Any) -> Any:
        return self.formula(t, xp)  # the rate includes the warmup

    def formula(self, t: Any, xp: Any) -> Any:
        """Returns the rate at the time of an update; `xp` must be NumPy."""
        times = times_of(self.clock, t)
        return self.rate.evaluate(
            times if self.rate.end is None else np.minimum(times, self.rate.end)
        )


@dataclasses.dataclass(frozen=True)
class RuleByUpdate(Rule):
    """Averaging rule whose t counts updates.

    Attributes:
      rule: the rule by time.
      clock: the clock of the run.

    Examples:
      The second update has a doubled batch, and two thirds of the tokens:

      >>> from anytime_jax.averaging import Uniform
      >>> clock = Clock(32, 128, 4096).grown(1, 64)
      >>> RuleByUpdate(Uniform(), clock).kernel(2).round(4)
      array([0.    , 0.3333, 0.6667])
    """

    rule: Rule
    clock: Clock

    @property
    def label(self) -> str:
        """The label of the rule."""
        return self.rule.label

    def newest(self, t: Any, xp: Any) -> Any:
        """Returns the weight of the newest iterate after `t` updates."""
        t = np.asarray(t)
        times, newest = times_of(self.clock, t), np.ones(t.shape)
        for phase in self.clock.phases:
            inside = t > phase.step
            newest[inside] = self.rule.evaluate(times[inside], phase.span)
        return newest

    def kernel_error(self, t: Any) -> float:
        """Returns the kernel error of the rule after `t` updates."""
        return self.rule.kernel_error(self.clock.times(t))


def times_of(clock: Clock, steps: Any) -> np.ndarray:
    """Returns the times after `steps` updates, int64[...]."""
    steps = np.asarray(steps).astype(np.int64)
    times = np.zeros(steps.shape, np.int64)
    for phase in clock.phases:
        times = np.where(steps >= phase.step, phase.time + (steps - phase.step) * phase.span, times)
    return times
