"""Sums of learning rates up to some steps of a run, and the changes of the rate before them."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from anytime_jax.lab.forecast.update_blocks import RATIO, group
from anytime_jax.schedules import Schedule


@dataclasses.dataclass(frozen=True, eq=False)
class RateSums:
    """Sums of the learning rates of one run, at n steps, with k changes of the rate.

    Attributes:
      steps: float64[n], updates done.
      totals: float64[n], the sum of the rates of those updates.
      reductions: float64[k], the rate before each change minus that after it.
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
