"""Seesaw: where a schedule would halve the rate, the batch doubles and the rate falls by sqrt(2).

The noise of Adam's updates is in proportion to rate / sqrt(batch size). If the rate is halved, the
noise is halved. If the rate is divided by sqrt(2) and the batch is doubled, the noise is halved as
well. So, at equal tokens, the loss should be that of a schedule that halves its rate, in fewer
updates, as long as the batch is smaller than the critical batch size.

    changes = seesaw.follow(schedules.cosine(1e-2, 1920), clock, "4x")

Source: Meterez et al. 2025, "Seesaw: Accelerating Training by Balancing Learning Rate and Batch
Size Scheduling", arXiv 2510.14717.
"""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from anytime_jax.config.clock import Clock
from anytime_jax.schedules import Schedule, Time


@dataclasses.dataclass(frozen=True)
class Seesaw(Schedule):
    """Seesaw's rate, which falls by sqrt(2) at each cut, after a linear warmup.

    Attributes:
      cuts: times at which the rate falls.

    Examples:
      >>> Seesaw(peak=1.0, cuts=(30, 50)).evaluate([29, 30, 50])
      array([1.        , 0.70710678, 0.5       ])
    """

    peak: float
    cuts: tuple[int, ...]
    warmup: Time = 0
    warmup_init: float = 0.1

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the peak, divided by sqrt(2) for every cut."""
        fallen = xp.sum(xp.asarray(t)[..., None] >= xp.asarray(self.cuts), axis=-1)
        return self.peak * 2 ** (-fallen / 2)


def follow(schedule: Schedule, clock: Clock, stop: str) -> dict[str, Any]:
    """Returns the settings of a run to "4x", say, whose batch doubles where the schedule halves.

    A cut is the first whole update of the growing batch at which the rate would have halved again,
    from the end of the warmup on. Raises an InputError for two cuts at one update, as near the end
    of a decay to zero.
    """
    clock = clock.without_growth
    times = np.arange(schedule.warmup_end, clock.time_at(stop, "stop"))
    fallen = -np.log2(schedule.evaluate(times) / schedule.peak) + 1e-9
    for number in range(1, int(fallen.max(initial=0.0)) + 1):
        step = clock.step_of(int(times[fallen >= number][0]))
        clock = clock.grown(step, clock.batch_size * 2**number)
    doubled = clock.phases[1:]
    return {
        "schedule.kind": f"{__name__}:Seesaw",
        "schedule.cuts": tuple(x.time for x in doubled),
        "batch_growth": {
            f"{x.time * clock.tokens_per_step} tokens": clock.batch_size * x.span for x in doubled
        },
    }
