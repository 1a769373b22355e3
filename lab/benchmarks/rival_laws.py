"""Power law and multi-power law of the loss, which are compared with the functional law.

    >>> law = PowerLaw(floor=2.0, scale=3.0, exponent=0.5)
    >>> law.losses(schedules.constant(1.0), [1, 9])
    array([5., 3.])

Losses are in nats per token, steps count updates done.
"""

import abc
import dataclasses
from collections.abc import Iterable

import numpy as np

from anytime_jax.schedules import Schedule
from anytime_lab.forecast.update_blocks import RATIO, group

_LEAST_RATE = 1e-100  # least rate after a reduction, since a power of 0 is infinite


@dataclasses.dataclass(frozen=True, eq=False)
class RateSums:
    """Sums of the learning rates of one run, at n steps, with k changes of the rate.

    Attributes:
      steps: float64[n], updates done.
      totals: float64[n], the sum of the rates of those updates.
      reductions: float64[k], the rate before each change minus the rate after it.
      rates: float64[k], the rate after each change.
      since: float64[n, k], the sum of the rates from each change to each step, 0 before the change.
    """

    steps: np.ndarray
    totals: np.ndarray
    reductions: np.ndarray
    rates: np.ndarray
    since: np.ndarray


def sum_rates(schedule: Schedule, steps: Iterable[int], ratio: float = RATIO) -> RateSums:
    """Returns the sums at `steps`, 1 or more; the changes within a block of updates count as one.

    `ratio` is the length of a block, relative to the run so far.
    """
    marks = np.fromiter(steps, np.int64)
    blocks = group(schedule, marks, ratio)
    ends = np.cumsum(blocks.lengths * blocks.rates)
    reductions = -np.diff(blocks.last_rates, prepend=0.0)
    (changes,) = np.nonzero(reductions)
    totals = ends[blocks.index(marks)]
    # The first update of a block changes the rate where it begins, the others on average in its
    # middle. It begins exactly where another ends, so that no rounding error is divided by a rate
    # that is nearly 0.
    begins = np.concatenate([[0.0], ends[:-1]])[changes]
    inside = (blocks.first_rates - blocks.last_rates)[changes] / reductions[changes]
    middles = (blocks.lengths * blocks.rates)[changes] / 2
    places = begins + np.clip(inside, 0.0, 1.0) * middles
    since = np.maximum(totals[:, None] - places, 0.0)
    return RateSums(marks.astype(float), totals, reductions[changes], blocks.rates[changes], since)


class RateSumLaw(abc.ABC):
    """A law that is a closed formula of sums of rates, with its derivatives."""

    @abc.abstractmethod
    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and their derivatives by each parameter: float64 [n], [n, parameters]."""

    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the losses; the changes of the rate within a block of updates count as one."""
        steps = np.asarray(steps)
        return self.evaluate(sum_rates(schedule, steps.ravel()))[0].reshape(steps.shape)

    def gradients(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the derivatives of the losses by each parameter, in the order of the fields."""
        steps = np.asarray(steps)
        _, gradients = self.evaluate(sum_rates(schedule, steps.ravel()))
        return gradients.reshape(*steps.shape, -1)


@dataclasses.dataclass(frozen=True)
class PowerLaw(RateSumLaw):
    """Baseline: power law of the number of updates, whatever their rates.

    L(t) = floor + scale * t^-exponent
    """

    floor: float
    scale: float
    exponent: float

    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the losses; the schedule makes no difference."""
        del schedule
        return _power(np.asarray(steps, float), self.floor, self.scale, self.exponent)[0]

    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and derivatives."""
        return _power(sums.steps, self.floor, self.scale, self.exponent)


@dataclasses.dataclass(frozen=True)
class MultiPowerLaw(RateSumLaw):
    """Multi-power law: a power of the sum of rates, minus the gain of each rate reduction.

        L(t) = floor + scale * S(t)^-exponent
               - drop * sum_{k <= t} (eta_{k-1} - eta_k) * G(eta_k^-rate_exponent * S_k(t))
        G(x) = 1 - (1 + drop_scale * x)^-drop_exponent

    S(t) is the sum of the rates up to t, S_k(t) the sum from k to t. The sum over reductions
    includes the warmup, with negative terms: `floor` is the loss at a rate of zero.

    Source: arXiv 2503.12811, equation 1.
    """

    floor: float
    scale: float
    exponent: float
    drop: float
    drop_scale: float
    drop_exponent: float
    rate_exponent: float

    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and derivatives; the loss is infinite before the first rate above 0."""
        power, power_gradients = _power(sums.totals, self.floor, self.scale, self.exponent)
        logs = np.log(np.maximum(sums.rates, _LEAST_RATE))
        x = self.drop_scale * np.exp(-self.rate_exponent * logs) * sums.since
        grown = np.log1p(x)
        left = np.exp(-self.drop_exponent * grown)
        share = x / (1 + x) * left  # the derivative of G by log(x), over drop_exponent
        gain = -np.expm1(-self.drop_exponent * grown) @ sums.reductions
        by_log_x = self.drop * self.drop_exponent * share * sums.reductions
        gradients = np.column_stack(
            [
                power_gradients,
                -gain,
                -by_log_x.sum(1) / self.drop_scale,
                -self.drop * ((grown * left) @ sums.reductions),
                by_log_x @ logs,
            ]
        )
        return power - self.drop * gain, gradients


def _power(
    x: np.ndarray, floor: float, scale: float, exponent: float
) -> tuple[np.ndarray, np.ndarray]:
    """`floor + scale * x^-exponent`, and its derivatives: [n], [n, 3]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(x)
        power = np.exp(-exponent * logs)
        gradients = np.column_stack([np.ones_like(x), power, -scale * logs * power])
        return floor + scale * power, gradients
