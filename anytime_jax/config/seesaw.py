"""Seesaw: where a schedule would halve the rate, the batch doubles and the rate falls by sqrt(2).

The noise of Adam's updates is in proportion to rate / sqrt(batch size). To halve the rate halves
this ratio. To divide the rate by sqrt(2) and double the batch halves it as well. So, at equal
tokens, the loss should be that of a schedule that halves its rate, in fewer updates, as long as the
batch is smaller than the critical batch size. A time at which the batch doubles is a *cut*.

Source: Meterez et al. 2025, "Seesaw: Accelerating Training by Balancing Learning Rate and Batch
Size Scheduling", arXiv 2510.14717.
"""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from anytime_jax import checks
from anytime_jax.config.clock import LARGEST_SPAN, Clock
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule, Time

MOST_CUTS = LARGEST_SPAN.bit_length() - 1
_TOLERANCE = 1e-12  # relative, of the schedules' own rounding
_SLACK = 1e-9  # of the peak, by which a rate may rise
_LOOKS = 4096  # at the first updates, and as many evenly and by ratios up to the end


@dataclasses.dataclass(frozen=True)
class Staircase(Schedule):
    """A rate that falls by sqrt(2) at each cut, after a linear warmup.

        eta_t = peak / sqrt(2)^(number of cuts <= t)

    Examples:
      >>> Staircase(peak=1.0, cuts=(30, 50)).evaluate([29, 30, 50])
      array([1.        , 0.70710678, 0.5       ])
    """

    peak: float
    cuts: tuple[int, ...]
    horizon: Time | None = None
    warmup: Time = 0
    warmup_init: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(0 < a < b for a, b in zip((1, *self.cuts), (*self.cuts, np.inf), strict=True))
        checks.require(rising or not self.cuts, "cuts", self.cuts, "times, each above the last")

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the peak, divided by sqrt(2) for every cut."""
        rate = xp.full_like(t, self.peak, dtype=float)
        for number, cut in enumerate(self.cuts, 1):
            rate = xp.where(t >= cut, self.peak * 2 ** (-number / 2), rate)
        return rate


def halvings(schedule: Schedule) -> list[int]:
    """Returns the first times after the warmup at which a rate is at most peak/2, peak/4, ...

    The list has at most `MOST_CUTS` times, and ends at the horizon of the schedule; a schedule
    without a horizon is searched up to 2^31. Raises an InputError for a rate that rises after the
    warmup or is above the peak, at one of some thousands of times.

    Examples:
      >>> from anytime_jax import schedules
      >>> halvings(schedules.inverse_sqrt(1.0, alpha=100, warmup=10))[:3]
      [310, 1510, 6310]
    """
    end = checks.LARGEST_COUNT - 1 if schedule.end is None else schedule.end
    _check_falls(schedule, end)
    rates = schedule.peak / 2.0 ** np.arange(1, MOST_CUTS + 1) * (1 + _TOLERANCE)
    rates = rates[rates >= schedule.evaluate(end)]
    before, after = np.full(len(rates), schedule.warmup_end), np.full(len(rates), end)
    while np.any(after - before > 1):
        middle = (before + after) // 2
        has_fallen = schedule.evaluate(middle) <= rates
        before, after = np.where(has_fallen, before, middle), np.where(has_fallen, middle, after)
    return after.tolist()


def _check_falls(schedule: Schedule, end: int) -> None:
    left = end - schedule.warmup_end
    looks = np.arange(_LOOKS + 1), np.linspace(0, left, _LOOKS), np.geomspace(1, left + 1, _LOOKS)
    after = np.unique(np.concatenate(looks).astype(np.int64).clip(0, left))
    times = schedule.warmup_end + after
    rates = schedule.evaluate(times)
    allowed = np.minimum.accumulate([schedule.peak, *rates[:-1]]) + _SLACK * schedule.peak
    if np.any(rises := rates > allowed):
        at = int(np.argmax(rises))
        raise InputError(
            f"it needs a rate that falls from its peak, and this {type(schedule).__name__} is "
            f"{rates[at]:.6g} at {times[at]:,}, above {allowed[at]:.6g} before: choose another "
            "schedule.kind, or give the points and sizes",
            "batch_growth",
            "seesaw",
        )


def grow(clock: Clock, rate: Schedule) -> tuple[Clock, Schedule]:
    """Returns the clock whose batch doubles where a rate would halve, and the rate on this clock.

    `clock` has no growth. A cut is the first whole update at or after the time of a halving. There
    is no further cut when less than an update is left to the next cut or to the horizon.

    Raises an InputError if there is no cut.
    """
    grown, end = clock, rate.end
    for number, time in enumerate(halvings(rate), 1):
        size, last = clock.batch_size * 2**number, grown.phases[-1]
        if size >= checks.LARGEST_COUNT or time - last.time < last.span:
            break
        further = grown.grown(grown.step_of(time), size)
        if end is not None and end - further.phases[-1].time < 2**number:
            break
        grown = further
    if not grown.grows:
        raise InputError(
            f"it needs a rate that falls to half of its peak, and this {type(rate).__name__} does "
            "not, or not a whole update before its end: choose another schedule.kind, or give the "
            "points and sizes",
            "batch_growth",
            "seesaw",
        )
    cuts = tuple(phase.time for phase in grown.phases[1:])
    horizon = None if end is None else grown.time(grown.step_of(end))
    warmup, init = rate.warmup_end, getattr(rate, "warmup_init", 0.0)
    return grown, Staircase(rate.peak, cuts, horizon, warmup, init)
