"""Averaging rules that count tokens: an update of a doubled batch counts twice."""

import dataclasses
from typing import Any

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.checks import require
from anytime_jax.config.clock import Clock, Stage

_LARGEST_RATIO = 4096  # of a batch to the first: so many factors are multiplied in an update


@dataclasses.dataclass(frozen=True)
class TokenRule(Rule):
    """A rule on a clock of updates of the first batch size, of which a larger batch makes several.

    An update of k times the first batch multiplies the old average by the product of k factors of
    the rule, as those of k updates.

    Attributes:
      rule: the rule, whose t counts updates of the first batch size.
      stages: the parts of the run with constant batch size.

    Examples:
      The second update has a doubled batch, and two thirds of the tokens:

      >>> from anytime_jax.averaging import Uniform
      >>> rule = TokenRule(Uniform(), (Stage(0, 0, 32), Stage(1, 32, 64)))
      >>> rule.kernel(2).round(4)
      array([0.    , 0.3333, 0.6667])
    """

    rule: Rule
    stages: tuple[Stage, ...]

    @property
    def label(self) -> str:
        """That of the rule."""
        return self.rule.label

    def _newest(self, t: Any, xp: Any) -> Any:
        first = self.stages[0].batch_size
        newest = self.rule._newest(t, xp)
        for stage in self.stages[1:]:
            if xp is np and not np.any(t > stage.step):  # save the memory of many large batches
                break
            ratio = stage.batch_size // first
            seen = stage.samples // first + ratio * xp.maximum(t - stage.step, 1)
            newest = xp.where(t > stage.step, self.rule._newest_of(seen, ratio, xp), newest)
        return newest


def count_tokens(rule: Rule, clock: Clock) -> Rule:
    """Returns a rule that counts the tokens of a clock; the same one if the batch does not grow.

    Raises a ValueError if a batch is not a multiple of the first.
    """
    for stage in clock.stages[1:]:
        ratio, rest = divmod(stage.batch_size, clock.batch_size)
        allowed = (
            f"updates where a batch of {stage.batch_size} is not a multiple of batch_size = "
            f"{clock.batch_size}, up to {_LARGEST_RATIO:,} times"
        )
        require(not rest and ratio <= _LARGEST_RATIO, "average_clock", "tokens", allowed)
    return TokenRule(rule, clock.stages) if clock.growth else rule
