"""Time of a run, and points in it: update steps, tokens, and multiples of the Chinchilla budget.

A *step* is a number of updates. The *time* of a step is the number of tokens seen by then, divided
by the tokens of the first update. Learning rates and windows of averages are functions of time.
A *phase* is a part of the run with one batch size. Each batch size is a multiple of the first, so
time is a whole number; while the batch keeps its first size, time and step are the same number.

A run with batches of 32 windows of 128 tokens, and a Chinchilla budget of 1,638,400 tokens:

1. An update of the first size takes 4,096 tokens, and the budget, 1x, takes 400 updates.

    >>> clock = Clock(batch_size=32, length=128, chinchilla_tokens=1_638_400)
    >>> clock.tokens_per_step, clock.chinchilla_time
    (4096, 400)

2. From 2x on the batch has 64 windows. An update then takes a time of 2, its *span*.

    >>> clock = read_growth((("2x", 64),), clock)
    >>> clock.phases
    (Phase(step=0, time=0, span=1), Phase(step=800, time=800, span=2))

3. So the second half of 4x has half as many updates: 4x is at step 800 + (1,600 - 800) / 2.

    >>> [(point, clock.step_at(point), clock.time_at(point)) for point in ("1x", "2x", "4x")]
    [('1x', 400, 400), ('2x', 800, 800), ('4x', 1200, 1600)]
    >>> clock.describe(1200)
    '1,200 steps (4x, 6.55M tokens)'

4. A WSD branch to 4x leaves its trunk at 90% of the time: 1,440, which is step 1,120.

    >>> clock.branch_step(1200), clock.horizon_of_branch(1120)
    (1120, 1200)

5. Permanent checkpoints are at 90% and at the end of every doubling.

    >>> list(itertools.islice(clock.milestones(), 6))
    [360, 400, 720, 800, 1120, 1200]

A point is written in exactly one of three units: `"12500 steps"`, `"3.2768e9 tokens"` (also
`"3.3B tokens"`) or `"4x"`, four times the budget. A point is the first whole update at or after
the number, where 1x is rounded up to whole updates of the first size before it is multiplied.

    >>> clock.step_at("5M tokens"), clock.tokens(1011)  # 5M is within update 1,011
    (1011, 5005312)
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from anytime_jax.checks import LARGEST_COUNT, reject, require, require_count
from anytime_jax.formatting import format_count

BRANCH_FRACTION = Fraction(9, 10)  # of the horizon, at which a WSD branch leaves its trunk
LARGEST_SPAN = 4096  # of an update: an average multiplies so many factors

_POINT = re.compile(
    r"(?P<number>\d+(_\d+)*(\.\d+)?(e\+?\d{1,2})?)\s*((?P<scale>[KMBT]?)\s*(?P<unit>steps?|tokens?)|x)",
    re.IGNORECASE | re.ASCII,
)
_SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_LENGTH = 100  # characters of a point
_ALLOWED = 'a point in a run such as "12500 steps", "3.3B tokens" or "4x"'
_STOPS = f'{_ALLOWED}, "4x+" (there, or once there the next doubling), "horizon" or "never"'


class Phase(NamedTuple):
    """Part of a run with one batch size.

    Attributes:
      step: updates before it.
      time: time at which it starts.
      span: time that one of its updates takes: its batch size over the first batch size.
    """

    step: int
    time: int
    span: int


@dataclasses.dataclass(frozen=True)
class Clock:
    """Conversion between steps, time, tokens and Chinchilla multiples.

    A clock does not check its counts: they come from `Settings`, which has checked them.

    Attributes:
      batch_size: windows in the first updates.
      length: tokens in a window at first.
      chinchilla_tokens: tokens of the budget "1x".
      phases: the parts of the run with one batch size, in order; the last phase has no end.

    Source: Section 4, "Training and evaluation details".
    """

    batch_size: int
    length: int
    chinchilla_tokens: int
    phases: tuple[Phase, ...] = (Phase(0, 0, 1),)

    def grown(self, step: int, size: int) -> "Clock":
        """Returns the clock whose batch has a larger size from a step on.

        Raises an InputError unless the step is in the last phase and the size is a larger multiple
        of the first size than the last one was.
        """
        last = self.phases[-1]
        require(step > last.step, "batch_growth", step, f"a later update than {last.step:,}")
        require_count("batch_growth", size, least=1)
        span, rest = divmod(size, self.batch_size)
        allowed = f"more than the {last.span * self.batch_size} before, and a multiple of "
        allowed += f"batch_size = {self.batch_size}, up to {LARGEST_SPAN:,} times"
        ok = last.span < span <= LARGEST_SPAN and rest == 0
        require(ok, "batch_growth", size, allowed)
        return dataclasses.replace(self, phases=(*self.phases, Phase(step, self.time(step), span)))

    @property
    def without_growth(self) -> "Clock":
        """The clock whose batch keeps its first size."""
        return dataclasses.replace(self, phases=self.phases[:1])

    @property
    def grows(self) -> bool:
        """Whether the batch grows."""
        return len(self.phases) > 1

    def phase_at(self, step: int) -> Phase:
        """Returns the phase of the update after `step` updates."""
        return next(x for x in reversed(self.phases) if x.step <= step)

    def time(self, step: int) -> int:
        """Returns the time after `step` updates."""
        phase = self.phase_at(step)
        return phase.time + (step - phase.step) * phase.span

    def times(self, step: int) -> np.ndarray:
        """Returns the time after each of the first `step` updates, int64[step]."""
        updates = np.arange(1, step + 1)
        times = np.zeros(step, np.int64)
        for phase in self.phases:
            inside = updates > phase.step
            times[inside] = phase.time + (updates[inside] - phase.step) * phase.span
        return times

    def span(self, step: int) -> int:
        """Returns the time that the update after `step` updates takes."""
        return self.phase_at(step).span

    def phase_of_batch(self, batch_size: int) -> Phase:
        """Returns the phase with a batch size; no two phases have the same, as sizes grow."""
        return next(x for x in self.phases if x.span * self.batch_size == batch_size)

    def steps_within(self, time: int) -> int:
        """Returns the number of whole updates up to a time."""
        phase = next(x for x in reversed(self.phases) if x.time <= time)
        return phase.step + (time - phase.time) // phase.span

    def step_of(self, time: Fraction | int) -> int:
        """Returns the first step at or after a time."""
        phase = next((x for x in reversed(self.phases) if x.time < time), self.phases[0])
        return phase.step - (phase.time - time) // phase.span

    @property
    def tokens_per_step(self) -> int:
        """Tokens in an update of the first batch size."""
        return self.batch_size * self.length

    @property
    def chinchilla_time(self) -> int:
        """The time of the budget "1x": its updates at the first batch size, rounded up."""
        return -(-self.chinchilla_tokens // self.tokens_per_step)

    @property
    def chinchilla_steps(self) -> int:
        """Updates in the budget "1x", rounded up."""
        return self.step_of(self.chinchilla_time)

    def step_at(self, point: str, name: str = "the point") -> int:
        """Returns the step of a point; raises an InputError with `name` if it is malformed."""
        match = _match(point)
        if match is None:
            reject(name, point, _ALLOWED)
        number = Fraction(match["number"].replace("_", "")) * _SCALE[(match["scale"] or "").upper()]
        allowed = "less than 2^31 updates away"
        if match["unit"] is None:
            time = number * self.chinchilla_time
            one = f"{self.chinchilla_steps:,} updates: chinchilla_tokens over a batch's"
            allowed += f" (1x is {one})"
        elif match["unit"].lower().startswith("t"):
            time = number / self.tokens_per_step
        else:
            time = self.time(math.ceil(number))
        steps = self.step_of(time)
        require(steps < LARGEST_COUNT, name, point, allowed)
        return steps

    def time_at(self, point: str | int, name: str = "the point") -> int:
        """Returns the time of a point, on a whole update; a number is a time already.

        Raises an InputError with `name` if the point is malformed.
        """
        if not isinstance(point, str):
            require_count(name, point)
            return point
        return self.time(self.step_at(point, name))

    def tokens(self, step: int) -> int:
        """Returns the number of tokens seen after `step` updates."""
        return self.time(step) * self.tokens_per_step

    def multiple(self, step: int) -> float:
        """Returns the Chinchilla multiple of a step."""
        return self.time(step) / self.chinchilla_time

    def doublings(self) -> Iterator[int]:
        """Yields the steps of 1x, 2x, 4x, ... without end."""
        time = self.chinchilla_time
        while True:
            yield self.step_of(time)
            time *= 2

    def next_doubling(self, step: int) -> int:
        """Returns the first of 1x, 2x, 4x, ... after a step."""
        return next(x for x in self.doublings() if x > step)

    def last_doubling(self, step: int) -> int:
        """Returns the last of 1x, 2x, 4x, ... up to a step; 0 before 1x."""
        return max(itertools.takewhile(lambda x: x <= step, self.doublings()), default=0)

    def is_doubling(self, step: int) -> bool:
        """Whether a step is one of 1x, 2x, 4x, ..."""
        return step > 0 and self.last_doubling(step) == step

    def branch_step(self, horizon: int) -> int:
        """Returns the step at 90% of a horizon, where a WSD branch leaves its trunk."""
        return self.step_of(BRANCH_FRACTION * self.time(horizon))

    def horizon_of_branch(self, step: int) -> int:
        """Returns the last horizon whose 90% is `step`."""
        return self.steps_within(int(self.time(step) / BRANCH_FRACTION))

    def milestones(self) -> Iterator[int]:
        """Yields the steps of permanent checkpoints: 90% of each doubling, then the doubling."""
        for doubling in self.doublings():
            yield from dict.fromkeys((self.branch_step(doubling), doubling))

    def is_milestone(self, step: int) -> bool:
        """Whether `step` is one of `milestones`."""
        return step in itertools.takewhile(lambda x: x <= step, self.milestones())

    def describe(self, step: int) -> str:
        """Formats a step in all three units: `12,500 steps (1x, 3.28B tokens)`."""
        tokens = format_count(self.tokens(step))
        return f"{step:,} steps ({self.multiple(step):.4g}x, {tokens} tokens)"


def read_growth(growth: tuple[tuple[str, int], ...], clock: Clock) -> Clock:
    """Returns a clock with the points and sizes of the setting `batch_growth`, in their order.

    Raises an InputError if they are malformed or out of order.
    """
    for point, size in growth:
        clock = clock.grown(clock.step_at(point, "batch_growth"), size)
    return clock


class Stop(NamedTuple):
    """End of a run: its step, and whether a run that has reached it goes on to the next doubling.

    The step is None for a run that never ends.
    """

    step: int | None
    doubles: bool

    def after(self, step: int, clock: Clock) -> int | None:
        """Returns the step at which a run that has reached `step` stops; None for never."""
        if self.step is not None and self.doubles and step >= self.step:
            return clock.next_doubling(step)
        return self.step


def read_stop(text: str, clock: Clock, horizon: int | None) -> Stop:
    """Parses the setting `stop`: a point, a point with "+" (then doublings), "horizon" or "never".

    `horizon` is the step at which the schedule ends, None if it has no horizon. Raises an
    InputError for malformed text, for "horizon" where there is none, and for "+" where there is a
    horizon.
    """
    if text == "never":
        return Stop(None, doubles=False)
    if text == "horizon":
        require(horizon is not None, "stop", text, "a point: this schedule has no horizon")
        return Stop(horizon, doubles=False)
    point = text.removesuffix("+")
    require(_match(point), "stop", text, _STOPS)
    step = clock.step_at(point, "stop")
    require(step >= 1, "stop", text, "at least one update")
    doubles = text.endswith("+")
    allowed = 'a point without "+", or "horizon": this schedule has a horizon'
    require(not doubles or horizon is None, "stop", text, allowed)
    return Stop(step, doubles)


def _match(point: Any) -> re.Match[str] | None:
    is_short_text = isinstance(point, str) and len(point) <= _MAX_LENGTH
    return _POINT.fullmatch(point.strip()) if is_short_text else None
