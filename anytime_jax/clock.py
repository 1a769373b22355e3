"""One clock for a run: update steps, tokens, and multiples of the Chinchilla budget.

A point in a run is written in exactly one of three units: `"12500 steps"`, `"3.2768e9 tokens"`
(also `"3.3B tokens"`) or `"4x"`, four times the configuration's Chinchilla budget. Points fall on
whole updates, rounded up. Lists of points are never typed; they are computed, without end.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import cast

from anytime_jax.checks import LARGEST_COUNT, require, require_count
from anytime_jax.units import human

_POINT = re.compile(
    r"(?P<number>\d+(_\d+)*(\.\d+)?(e\+?\d{1,2})?)\s*((?P<scale>[KMBT]?)\s*(?P<unit>steps?|tokens?)|x)",
    re.IGNORECASE | re.ASCII,
)
_SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LONGEST = 100  # characters of a point
_ALLOWED = 'a point in a run such as "12500 steps", "3.3B tokens" or "4x"'
_STOPS = f'{_ALLOWED}, "4x+" (there, or once there the next doubling), "horizon" or "never"'
BRANCH = Fraction(9, 10)  # a WSD branch leaves its trunk at 90% of the horizon


@dataclasses.dataclass(frozen=True)
class Clock:
    """Converts between steps, tokens and Chinchilla multiples.

    Attributes:
      batch_size: sequences in an update.
      length: tokens in a sequence.
      chinchilla_tokens: tokens of the budget "1x".

    Source: Section 4, "Training and evaluation details".
    """

    batch_size: int
    length: int
    chinchilla_tokens: int

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("batch_size", self.batch_size, least=1)
        require_count("length", self.length, least=1)
        tokens = self.chinchilla_tokens
        ok = type(tokens) is int and 0 < tokens < 2**63
        require(ok, "chinchilla_tokens", tokens, "a whole number of tokens above 0, below 2^63")

    @property
    def tokens_per_step(self) -> int:
        """Tokens in an update."""
        return self.batch_size * self.length

    @property
    def chinchilla_steps(self) -> int:
        """Updates in the budget "1x", rounded up."""
        return -(-self.chinchilla_tokens // self.tokens_per_step)

    def steps(self, point: str, name: str = "the point") -> int:
        """Returns the update at which a point falls.

        Args:
          point: as the module's docstring describes.
          name: what to call the setting in an error.

        Raises:
          ValueError: if the point cannot be read.
        """
        match = _match(point)
        require(match is not None, name, point, _ALLOWED)
        match = cast(re.Match[str], match)
        number = Fraction(match["number"].replace("_", ""))
        if match["unit"] is None:
            number *= self.chinchilla_steps
        else:
            number *= _SCALE[match["scale"].upper()]
            if match["unit"].lower().startswith("t"):
                number /= self.tokens_per_step
        steps = -(-number.numerator // number.denominator)
        near = "less than 2^31 updates away"
        if match["unit"] is None:
            near += f" (1x is {self.chinchilla_steps:,} updates: chinchilla_tokens over a batch's)"
        require(steps < LARGEST_COUNT, name, point, near)
        return steps

    def tokens(self, step: int) -> int:
        """Returns the tokens seen after `step` updates."""
        return step * self.tokens_per_step

    def multiple(self, step: int) -> float:
        """Returns the Chinchilla multiple reached after `step` updates."""
        return step / self.chinchilla_steps

    def next_doubling(self, step: int) -> int:
        """Returns the first of 1x, 2x, 4x, ... that lies after `step`, in updates."""
        doubling = self.chinchilla_steps
        while doubling <= step:
            doubling *= 2
        return doubling

    def is_doubling(self, step: int) -> bool:
        """Whether `step` is one of 1x, 2x, 4x, ..."""
        return step > 0 and self.next_doubling(step - 1) == step

    def branch_step(self, horizon: int) -> int:
        """Returns the update at 90% of a horizon, where a WSD branch leaves its trunk."""
        return -(-BRANCH.numerator * horizon // BRANCH.denominator)

    def horizon_of_branch(self, step: int) -> int:
        """Returns the horizon whose 90% is `step`; of several, the last."""
        return step * BRANCH.denominator // BRANCH.numerator

    def landmarks(self) -> Iterator[int]:
        """Yields the steps of checkpoints kept for ever: each doubling, and before it its 90%."""
        doubling = self.chinchilla_steps
        while True:
            yield from dict.fromkeys((self.branch_step(doubling), doubling))
            doubling *= 2

    def is_landmark(self, step: int) -> bool:
        """Whether `step` is one of `landmarks`."""
        return step in itertools.takewhile(lambda landmark: landmark <= step, self.landmarks())

    def describe(self, step: int) -> str:
        """Returns a step in all three units, for people: `12,500 steps (1x, 3.28B tokens)`."""
        tokens = human(self.tokens(step))
        return f"{step:,} steps ({self.multiple(step):.4g}x, {tokens} tokens)"


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


def _match(point: object) -> re.Match[str] | None:
    """The parts of a point in a run; None if it cannot be read."""
    if not isinstance(point, str) or len(point) > _LONGEST:
        return None
    return _POINT.fullmatch(point.strip())
