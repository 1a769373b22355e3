"""Rates that fall and batches that grow without a horizon, against pairs tuned for every length.

Let the rate fall as n^-g and the batch grow as n^q with the samples n, and G = g + q. The sum of
step sizes is then of the order of n^(1-G), and the rate over the batch of n^-G. Theorem 1 has its
terms from these two alone. So a run should have the exponents of `power_law_exponent` at gamma = G,
whichever of rate and batch does it. At G = gamma* these are the minimax ones, with n^(1-q) updates.
This module computes whether that is so, and what it costs at finite lengths.

The *pair* at a length is the rate and batch tuned for it: a constant rate with an average, or a
cosine, with single samples, which no larger batch beats at equal samples. A *ramp* is one run for
all lengths. Its regret at a length is its risk relative to the pair's, minus 1.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.averaging import LIVE
from anytime_jax.checks import require_count, require_fraction
from anytime_lab.theory.batches import Batch, GrowingBatch
from anytime_lab.theory.comparison import AVERAGES, BASELINES, mean_gap
from anytime_lab.theory.convergence_rates import gamma_star
from anytime_lab.theory.parallel_risks import Progress, RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import Risks, largest_error

MULTIPLIERS = tuple(0.0125 * 2**k for k in range(-4, 8))  # peaks over 1/tr(H)
BATCHES = (1, 4, 16, 64, 256, 1024)
ALPHAS = (1.0, 100.0, 10_000.0)  # samples
# Name of a ramp, and the part of its growth that the batch takes.
SHARES = {"rate falls": 0.0, "both": 0.5, "batch grows": 1.0}
CONSTANT = "constant"
_SHORTEST = 1_000  # samples
_TUNED = ("cosine", "cosine to 0")


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A rate `(alpha / (n + alpha))^(growth (1 - share))` and a batch of the inverse with `share`.

    Attributes:
      name: which of rate and batch changes.
      growth: G, the exponent of the batch over the rate.
      share: of the growth that the batch takes.
      alpha: samples over which both stay near their first value.
    """

    name: str
    growth: float = 0.0
    share: float = 0.0
    alpha: float = 1.0

    def schedule(self, peak: float) -> schedules.Power:
        """Returns the rate."""
        return schedules.Power(peak, self.growth * (1 - self.share), self.alpha)

    @property
    def batch(self) -> Batch:
        """The batch."""
        power = self.growth * self.share
        return GrowingBatch(power, self.alpha) if power else 1


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A ramp with its best peak and average at a noise level; arrays are of the lengths."""

    ramp: Ramp
    multiplier: float
    average: str
    risks: np.ndarray
    regrets: np.ndarray
    updates: np.ndarray

    @property
    def mean(self) -> float:
        """The geometric mean of risks over the pairs', minus 1."""
        return mean_gap(self.regrets)


@dataclasses.dataclass(frozen=True, eq=False)
class RampComparison:
    """Risks of ramps and of what is tuned for each length, at every noise level."""

    problem: Problem
    lengths: tuple[int, ...]  # numbers of samples
    ramps: tuple[Ramp, ...]
    of_ramps: Sequence[Risks]  # for each ramp, over `MULTIPLIERS`
    tuned: Sequence[Sequence[Risks]]  # for each length and each of `_TUNED`, over `MULTIPLIERS`

    @property
    def error(self) -> float:
        """The largest relative error of any risk."""
        return largest_error([*self.of_ramps, *itertools.chain(*self.tuned)])

    def pairs(self, noise: float) -> np.ndarray:
        """Returns the risks of the pairs, float64[lengths]."""
        return self._of_pairs(noise).min(axis=(0, 1))

    def pair_multipliers(self, noise: float) -> list[float]:
        """Returns the peaks of the pairs over 1/tr(H), a number for each length."""
        return [MULTIPLIERS[k] for k in self._of_pairs(noise).min(axis=0).argmin(axis=0)]

    def _of_pairs(self, noise: float) -> np.ndarray:
        """Risks of each candidate, float64[candidates, multipliers, lengths]."""
        cosines = [
            np.stack([at[k].excess(noise, LIVE)[:, 0] for at in self.tuned], axis=-1)
            for k in range(len(_TUNED))
        ]
        constant = self.of_ramps[self.ramps.index(Ramp(CONSTANT))]
        return np.concatenate([cosines, constant.excess(noise)])

    def runs(self, noise: float) -> list[Run]:
        """Returns every ramp with the peak and average of the lowest mean regret."""
        pairs, found = self.pairs(noise), []
        for ramp, risks in zip(self.ramps, self.of_ramps, strict=True):
            excess = risks.excess(noise)
            with np.errstate(over="ignore"):  # of a run that is about to diverge
                mean = np.log(excess / pairs).mean(axis=-1)
            at, peak = np.unravel_index(mean.argmin(), mean.shape)
            best, label, updates = excess[at, peak], risks.labels[at], risks.updates[peak]
            found.append(Run(ramp, MULTIPLIERS[peak], label, best, best / pairs - 1, updates))
        return found


def half_decades(samples: int) -> tuple[int, ...]:
    """Returns 10^3, 10^3.5, ... samples up to `samples`."""
    require_count("samples", samples, least=_SHORTEST)
    number = int(2 * np.log10(samples / _SHORTEST) + 1e-9) + 1
    return tuple(round(_SHORTEST * 10 ** (k / 2)) for k in range(number))


def compare_ramps(
    problem: Problem,
    samples: int,
    growths: Sequence[float] = (),
    progress: Progress = lambda fraction: None,
) -> RampComparison:
    """Computes the risks of ramps and of pairs at 10^3, 10^3.5, ... samples.

    Args:
      problem: the spectrum and the target.
      samples: of the longest length, 1,000 or more.
      growths: values of G to try; by default gamma*, a half of it and one and a half.
      progress: takes the fraction that is done.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=20)
      >>> comparison = theory.ramps.compare_ramps(problem, samples=1_000, growths=[0.5])
      >>> comparison.lengths, len(comparison.runs(noise=0.1))
      ((1000,), 10)
    """
    lengths = half_decades(samples)
    for growth in growths:
        require_fraction("growths", growth)
    star = gamma_star(problem.a, problem.b) or 0.25
    growths = growths or (star / 2, star, 1.5 * star)
    ramps = [Ramp(CONSTANT)]
    for (name, share), growth, alpha in itertools.product(SHARES.items(), growths, ALPHAS):
        ramps.append(Ramp(name, growth, share, alpha))
    peaks = [x / problem.trace for x in MULTIPLIERS]
    groups = [[x for x in ramps if x.batch == 1]]  # side by side
    groups += [[x] for x in ramps if x.batch != 1]
    halves = [groups[0][::2], groups[0][1::2]]  # for two cores
    arguments = []
    for group in (*halves, *groups[1:]):
        runs = [ramp.schedule(peak) for ramp in group for peak in peaks]
        batches = [ramp.batch for ramp in group for _ in peaks]
        arguments.append(RiskArguments(problem, runs, AVERAGES, lengths, batches))
    for length, name in itertools.product(lengths, _TUNED):
        runs = [BASELINES[name](peak, length) for peak in peaks]
        arguments.append(RiskArguments(problem, runs, [], [length]))
    results = iter(compute_risks(arguments, progress))
    of_ramps = {}
    for group in (*halves, *groups[1:]):
        risks = next(results)
        for k, ramp in enumerate(group):
            of_ramps[ramp] = risks.select(slice(k * len(peaks), (k + 1) * len(peaks)))
    tuned = [[next(results) for _ in _TUNED] for _ in lengths]
    return RampComparison(problem, lengths, tuple(ramps), [of_ramps[ramp] for ramp in ramps], tuned)


@dataclasses.dataclass(frozen=True, eq=False)
class TunedBatches:
    """Risks of constant rates and batches, of which the best is taken for each length."""

    problem: Problem
    lengths: tuple[int, ...]  # numbers of samples
    batches: tuple[int, ...]
    risks: Sequence[Risks]  # for each batch, over `MULTIPLIERS`

    @property
    def error(self) -> float:
        """The largest relative error of any risk."""
        return largest_error(self.risks)

    def least(self, noise: float) -> np.ndarray:
        """Returns the least risk over peaks and averages, float64[batches, lengths]."""
        return np.stack([x.excess(noise).min(axis=(0, 1)) for x in self.risks])


def tune_batches(
    problem: Problem, samples: int, progress: Progress = lambda fraction: None
) -> TunedBatches:
    """Computes constant batches at 10^3, 10^3.5, ... samples, with all peaks and averages.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=20)
      >>> theory.ramps.tune_batches(problem, samples=1_000).least(noise=0.1).shape
      (6, 1)
    """
    lengths = half_decades(samples)
    runs = [schedules.Power(x / problem.trace, 0.0) for x in MULTIPLIERS]
    arguments = [RiskArguments(problem, runs, AVERAGES, lengths, batch) for batch in BATCHES]
    return TunedBatches(problem, lengths, BATCHES, compute_risks(arguments, progress))
