"""One clock for a run: update steps, tokens, and multiples of the Chinchilla budget.

A point in a run is written in exactly one of three units: `"12500 steps"`, `"3.2768e9 tokens"`
(also `"3.3B tokens"`) or `"4x"`, four times the configuration's Chinchilla budget. Points fall on
whole updates, rounded up. Lists of points are never typed; they are computed, without end.

The batch may grow on the way. Everything is counted in samples then: the budget of a point in
tokens or multiples is that of the same run with its first batch throughout.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

from anytime_jax.checks import LARGEST_COUNT, require, require_count
from anytime_jax.formatting import format_count

_POINT = re.compile(
    r"(?P<number>\d+(_\d+)*(\.\d+)?(e\+?\d{1,2})?)\s*((?P<scale>[KMBT]?)\s*(?P<unit>steps?|tokens?)|x)",
    re.IGNORECASE | re.ASCII,
)
_SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LONGEST = 100  # characters of a point
_ALLOWED = 'a point in a run such as "12500 steps", "3.3B tokens" or "4x"'
_STOPS = f'{_ALLOWED}, "4x+" (there, or once there the next doubling), "horizon" or "never"'
BRANCH = Fraction(9, 10)  # a WSD branch leaves its trunk at 90% of the horizon


class Stage(NamedTuple):
    """A part of a run with a batch of one size.

    Attributes:
      step: updates done where it begins.
      samples: sequences seen there.
      batch_size: sequences in each of its updates.
    """

    step: int
    samples: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Clock:
    """Converts between steps, samples, tokens and Chinchilla multiples.

    Attributes:
      batch_size: sequences in an update, the first ones at least.
      length: tokens in a sequence.
      chinchilla_tokens: tokens of the budget "1x".
      growth: where the batch grows, and to what: `(("2x", 512), ("8x", 1024))`, in order.

    Source: Section 4, "Training and evaluation details".
    """

    batch_size: int
    length: int
    chinchilla_tokens: int
    growth: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("batch_size", self.batch_size, least=1)
        require_count("length", self.length, least=1)
        tokens = self.chinchilla_tokens
        ok = type(tokens) is int and 0 < tokens < 2**63
        require(ok, "chinchilla_tokens", tokens, "a whole number of tokens above 0, below 2^63")
        for each in self.growth:
            ok = isinstance(each, tuple | list) and len(each) == 2
            require(ok, "batch_growth", each, 'pairs such as (("2x", 512), ("8x", 1024))')
            require_count("batch_growth", each[1], least=1)
        previous = Stage(0, 0, self.batch_size)
        for (point, size), stage in zip(self.growth, self.stages[1:], strict=True):
            later = stage.step > previous.step and size > previous.batch_size
            allowed = (
                f"later points and larger batches than {previous.batch_size} one after another"
            )
            require(later, "batch_growth", (point, size), allowed)
            previous = stage

    @functools.cached_property
    def stages(self) -> tuple["Stage", ...]:
        """The parts of a run with a batch of one size each, in order; the last has no end."""
        stages = [Stage(0, 0, self.batch_size)]
        for point, size in self.growth:
            samples = self._samples_of(point, "batch_growth", stages)
            step = _first_step(samples, stages)
            stages.append(Stage(step, _samples(step, stages), size))
        return tuple(stages)

    def batch_at(self, step: int) -> int:
        """Returns the sequences in the update that is made after `step` updates."""
        return _stage_at(step, self.stages).batch_size

    def batches(self, step: int) -> Iterator[tuple[int, int | None]]:
        """Yields how large the batches are from an update on, and how many; None for no end."""
        ends = [*(stage.step for stage in self.stages[1:]), None]
        for stage, end in zip(self.stages, ends, strict=True):
            if end is None or end > step:
                yield stage.batch_size, None if end is None else end - max(step, stage.step)

    def samples(self, step: int) -> int:
        """Returns the sequences seen after `step` updates."""
        return _samples(step, self.stages)

    def steps_within(self, samples: int) -> int:
        """Returns how many updates can be made of a number of sequences."""
        stage = next(x for x in reversed(self.stages) if x.samples <= samples)
        return stage.step + (samples - stage.samples) // stage.batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens in an update, the first ones at least."""
        return self.batch_size * self.length

    @property
    def chinchilla_steps(self) -> int:
        """Updates in the budget "1x", rounded up."""
        return _first_step(self._chinchilla_samples, self.stages)

    @property
    def _chinchilla_samples(self) -> int:
        return -(-self.chinchilla_tokens // self.tokens_per_step) * self.batch_size

    def steps(self, point: str, name: str = "the point") -> int:
        """Returns the update at which a point falls.

        Args:
          point: as the module's docstring describes.
          name: what to call the setting in an error.

        Raises:
          ValueError: if the point cannot be read.
        """
        steps = _first_step(self._samples_of(point, name, self.stages), self.stages)
        near = "less than 2^31 updates away"
        if str(point).strip()[-1:] in "xX":
            near += f" (1x is {self.chinchilla_steps:,} updates: chinchilla_tokens over a batch's)"
        require(steps < LARGEST_COUNT, name, point, near)
        return steps

    def _samples_of(self, point: str, name: str, stages: Sequence["Stage"]) -> Fraction:
        """The sequences seen at a point."""
        match = _match(point)
        require(match is not None, name, point, _ALLOWED)
        match = cast(re.Match[str], match)
        number = Fraction(match["number"].replace("_", ""))
        if match["unit"] is None:
            return number * self._chinchilla_samples
        number *= _SCALE[match["scale"].upper()]
        if match["unit"].lower().startswith("t"):
            return number / self.length
        return Fraction(_samples(math.ceil(number), stages))

    def tokens(self, step: int) -> int:
        """Returns the tokens seen after `step` updates."""
        return self.samples(step) * self.length

    def multiple(self, step: int) -> float:
        """Returns the Chinchilla multiple reached after `step` updates."""
        return self.samples(step) / self._chinchilla_samples

    def next_doubling(self, step: int) -> int:
        """Returns the first of 1x, 2x, 4x, ... that lies after `step`, in updates."""
        samples, seen = self._chinchilla_samples, self.samples(step)
        while samples <= seen:
            samples *= 2
        return _first_step(samples, self.stages)

    def last_doubling(self, step: int) -> int:
        """Returns the last of 1x, 2x, 4x, ... up to `step`, in updates; 0 before 1x."""
        last = 0
        while (following := self.next_doubling(last)) <= step:
            last = following
        return last

    def is_doubling(self, step: int) -> bool:
        """Whether `step` is one of 1x, 2x, 4x, ..."""
        return step > 0 and self.next_doubling(step - 1) == step

    def branch_step(self, horizon: int) -> int:
        """Returns the update at 90% of a horizon, where a WSD branch leaves its trunk."""
        return _first_step(BRANCH * self.samples(horizon), self.stages)

    def horizon_of_branch(self, step: int) -> int:
        """Returns the horizon whose 90% is `step`; of several, the last."""
        return self.steps_within(int(self.samples(step) / BRANCH))

    def milestones(self) -> Iterator[int]:
        """Yields the steps of checkpoints kept for ever: each doubling, and before it its 90%."""
        samples = self._chinchilla_samples
        while True:
            doubling = _first_step(samples, self.stages)
            yield from dict.fromkeys((self.branch_step(doubling), doubling))
            samples *= 2

    def is_milestone(self, step: int) -> bool:
        """Whether `step` is one of `milestones`."""
        return step in itertools.takewhile(lambda milestone: milestone <= step, self.milestones())

    def describe(self, step: int) -> str:
        """Returns a step in all three units, for people: `12,500 steps (1x, 3.28B tokens)`."""
        tokens = format_count(self.tokens(step))
        return f"{step:,} steps ({self.multiple(step):.4g}x, {tokens} tokens)"


def read_clock(settings: Mapping[str, Any]) -> Clock:
    """Returns the clock of a run from the settings that it wrote down.

    Raises:
      KeyError, TypeError, ValueError: if they are not a run's.
    """
    growth = tuple((point, size) for point, size in settings.get("batch_growth", ()))
    batch_size, length = settings["batch_size"], settings["model"]["length"]
    return Clock(batch_size, length, settings["chinchilla_tokens"], growth)


@dataclasses.dataclass(frozen=True)
class Stop:
    """When a run ends.

    Attributes:
      step: number of updates; None for never.
      doubles: whether a run that is already there goes on to the next doubling.
    """

    step: int | None
    doubles: bool

    def after(self, step: int, clock: Clock) -> int | None:
        """Returns the update at which a run that stands at `step` will stop; None for never."""
        if self.step is not None and self.doubles and step >= self.step:
            return clock.next_doubling(step)
        return self.step


def read_stop(text: str, clock: Clock, horizon: int | None) -> Stop:
    """Reads when a run ends: a point, a point with "+", "horizon" or "never".

    Args:
      text: `"4x"`; `"4x+"`, there, or once there the next doubling; `"horizon"`; `"never"`.
      clock: the run's clock.
      horizon: the end of its schedule in updates, if it has one.

    Raises:
      ValueError: if it cannot be read, or goes on past the schedule's end.
    """
    if text == "never":
        return Stop(None, doubles=False)
    if text == "horizon":
        require(horizon is not None, "stop", text, "a point: this schedule has no horizon")
        return Stop(horizon, doubles=False)
    point = text.removesuffix("+")
    require(_match(point) is not None, "stop", text, _STOPS)
    step = clock.steps(point, "stop")
    require(step >= 1, "stop", text, "at least one update")
    endless = not text.endswith("+") or horizon is None
    require(endless, "stop", text, 'a point without "+": this schedule has a horizon')
    return Stop(step, doubles=text.endswith("+"))


def _stage_at(step: int, stages: Sequence[Stage]) -> Stage:
    return next(x for x in reversed(stages) if x.step <= step)


def _samples(step: int, stages: Sequence[Stage]) -> int:
    stage = _stage_at(step, stages)
    return stage.samples + (step - stage.step) * stage.batch_size


def _first_step(samples: Fraction | int, stages: Sequence[Stage]) -> int:
    """The first update after which so many sequences were seen."""
    stage = next((x for x in reversed(stages) if x.samples < samples), stages[0])
    return stage.step - (stage.samples - samples) // stage.batch_size


def _match(point: object) -> re.Match[str] | None:
    """The parts of a point in a run; None if it cannot be read."""
    if not isinstance(point, str) or len(point) > _LONGEST:
        return None
    return _POINT.fullmatch(point.strip())
