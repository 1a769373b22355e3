"""What a trainer can measure of the batch: branches with a multiple of it, and the noise scale.

A *trunk* has a constant rate and single samples. A *branch* leaves it after n samples and takes a
multiple of its batch up to 2n, at the same rate or at the rate times the multiple. It is compared
with the branch that changes nothing.

The noise scale of the gradient at weights w is the batch at which the variance of the mean gradient
is its squared mean. For normal x, over the distribution of w,

    1 + tr(H) (E ||w - w*||_H^2 + sigma^2) / E ||H (w - w*)||^2

Source: McCandlish et al. (2018), "An Empirical Model of Large-Batch Training" (the simple noise
scale); Merrill et al. (arXiv 2505.23971) for branches.
"""

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.checks import require_count, require_positive
from anytime_jax.errors import InputError
from anytime_jax.schedules import Constant, Schedule
from anytime_lab.theory.batches import BatchSchedule
from anytime_lab.theory.parallel_risks import Progress, RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.ramps import MULTIPLIERS, half_decades
from anytime_lab.theory.risk import Risks, excess_risk, largest_error, require_noise

MULTIPLES = tuple(2**k for k in range(11))
RATE_POWERS = {"kept": 0.0, "times the multiple": 1.0}
# Name of a rule, and the factors of the batch of which the one with the least risk is taken.
RULES = {"by trial": (1, 2), "never": (1,), "always": (2,)}
_SHORTEST = 1_000  # samples
_WINDOW = 25.0
LABEL = "f25"


@dataclasses.dataclass(frozen=True)
class SteppedBatch(BatchSchedule):
    """A batch that changes after given numbers of samples.

    Attributes:
      starts: the numbers of samples, from 0 on in rising order.
      sizes: the batch from each of them on.

    Examples:
      >>> SteppedBatch(starts=(0, 1_000), sizes=(1, 8)).size(1_000)
      8
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def size(self, samples: int) -> int:
        """See `BatchSchedule.size`."""
        return self.sizes[bisect_right(self.starts, samples) - 1]


@dataclasses.dataclass(frozen=True)
class _Stepped(Schedule):
    """A constant rate, which is multiplied by `factor` from sample `start` on."""

    peak: float
    start: int
    factor: float

    def formula(self, t: Any, xp: ModuleType) -> Any:
        return self.peak * xp.where(t >= self.start, self.factor, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchBranches:
    """What branches and noise scales say at each length of the trunk, n; arrays are of the lengths.

    Attributes:
      lengths: numbers of samples at which branches leave; they end at twice as many.
      excess: for each power of the multiple by which the rate is multiplied, the risk through f25
        at 2n by multiple, over that of the branch that changes nothing, minus 1.
      noise_scales: at n, of the live weights and of f25.
      error: the largest relative error of any risk.
    """

    lengths: tuple[int, ...]
    excess: dict[str, np.ndarray]  # float64[lengths, multiples]
    noise_scales: dict[str, np.ndarray]
    error: float

    def largest_free(self, rate: str, tolerance: float) -> np.ndarray:
        """Returns the largest multiple up to which each costs at most the tolerance."""
        costs = np.cumsum(~(self.excess[rate] <= tolerance), axis=1) > 0
        return np.array(MULTIPLES)[(~costs).sum(axis=1) - 1]


def lengths_up_to(samples: int) -> tuple[int, ...]:
    """Returns 1,000 samples and its doublings up to `samples`."""
    require_count("samples", samples, least=2 * _SHORTEST)
    return tuple(_SHORTEST * 2**k for k in range(int(np.log2(samples / _SHORTEST)) + 1))


def compare_branches(
    problem: Problem,
    multiplier: float,
    noise: float,
    samples: int,
    progress: Progress = lambda fraction: None,
) -> BatchBranches:
    """Computes branches that end at 2,000 samples and its doublings up to `samples`.

    Args:
      problem: the spectrum and the target.
      multiplier: the trunk's rate in units of 1/tr(H).
      noise: sigma^2.
      samples: of the longest branch, 2,000 or more.
      progress: takes the fraction that is done.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=20)
      >>> branches = compare_branches(problem, 0.2, noise=0.1, samples=2_000)
      >>> branches.excess["kept"].shape
      (1, 11)
    """
    require_noise(noise)
    require_positive("multiplier", multiplier)
    *starts, _ = lengths_up_to(samples)
    peak = multiplier / problem.trace
    trunk = [Constant(peak)]
    arguments = [RiskArguments(problem, trunk, [_WINDOW], starts, power=k) for k in (1, 2)]
    for start, rate_power in itertools.product(starts, RATE_POWERS.values()):
        runs = [_Stepped(peak, start, m**rate_power) for m in MULTIPLES]
        batches = [SteppedBatch((0, start), (1, m)) for m in MULTIPLES]
        arguments.append(RiskArguments(problem, runs, [_WINDOW], [2 * start], batches))
    of_risk, of_gradient, *of_branches = compute_risks(arguments, progress)
    if not np.isfinite(of_risk.excess(noise)).all():
        raise InputError(
            f"multiplier = {multiplier:g}: a constant rate of that many 1/tr(H) diverges with "
            "single samples: give a smaller one"
        )
    scales = {
        label: 1 + problem.trace * (2 * risk[0] + noise) / (2 * gradient[0])
        for label in (LIVE, LABEL)
        for risk, gradient in [(of_risk.excess(noise, label), of_gradient.excess(noise, label))]
    }
    ends = np.stack([x.excess(noise, LABEL)[:, 0] for x in of_branches])
    ends = ends.reshape(len(starts), len(RATE_POWERS), len(MULTIPLES))
    excess = ends / ends[..., :1] - 1
    by_rate = {name: excess[:, k] for k, name in enumerate(RATE_POWERS)}
    return BatchBranches(tuple(starts), by_rate, scales, largest_error([of_risk, *of_branches]))


@dataclasses.dataclass(frozen=True, eq=False)
class DoubledBatch:
    """A run whose batch may double at 1,000 samples and at each doubling.

    Attributes:
      lengths: numbers of samples at which branches ended.
      sizes: the batch up to each of them.
      risks: its risks at 10^3, 10^3.5, ... samples, of f25 and of averages with wider windows.
    """

    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    risks: Risks


def double(
    problem: Problem,
    multiplier: float,
    noise: float,
    samples: int,
    factors: Sequence[int] = RULES["by trial"],
) -> DoubledBatch:
    """Trains at a constant rate, with branches of which the one that is best goes on.

    At 1,000 samples and each of its doublings, n, a branch to 2n goes on with each of the factors
    of the batch, at the same rate. The one with the least risk through f25 at 2n becomes the trunk.
    Other arguments are those of `compare_branches`.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=20)
      >>> double(problem, 0.2, noise=0.1, samples=4_000).sizes
      (2, 4)
    """
    require_noise(noise)
    lengths = lengths_up_to(samples)
    run = Constant(multiplier / problem.trace)
    starts, sizes = (0,), (1,)
    for start, end in itertools.pairwise(lengths):
        starts = (*starts, start)
        tried = [(*sizes, factor * sizes[-1]) for factor in factors]
        best = 0
        if len(tried) > 1:
            batches = [SteppedBatch(starts, x) for x in tried]
            ends = excess_risk(problem, [run] * len(tried), [_WINDOW], [end], batches)
            best = int(ends.excess(noise, LABEL)[:, 0].argmin())
        sizes = tried[best]
    windows, checkpoints = [6.25, 12.5, _WINDOW], half_decades(lengths[-1])
    risks = excess_risk(problem, [run], windows, checkpoints, SteppedBatch(starts, sizes))
    return DoubledBatch(lengths[1:], sizes[1:], risks)


def best_multiplier(problem: Problem, noise: float) -> float:
    """Returns the peak over 1/tr(H) of the least risk through f25 at 1,000 single samples."""
    runs = [Constant(multiplier / problem.trace) for multiplier in MULTIPLIERS]
    risks = excess_risk(problem, runs, [_WINDOW], [_SHORTEST]).excess(noise, LABEL)[:, 0]
    return MULTIPLIERS[int(risks.argmin())]
