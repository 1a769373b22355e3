"""Anytime runs against schedules tuned at every length, in the linear model.

For lengths h, 2h, 4h, ... up to N the baselines are tuned at every length: cosine and WSD, down to
a tenth of their peak as in the paper, and down to 0. The lowest risks of the paper's cosine are the
envelope. An anytime run is one trajectory for all lengths. Its gap at a length is its risk relative
to the envelope there, minus 1.

Source: Section 4 (the baselines, their floors, the two ways to select an anytime run).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.averaging import LIVE, Rule, Uniform
from anytime_jax.checks import require_count
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule
from anytime_lab.theory.convergence_rates import gamma_star
from anytime_lab.theory.parallel_risks import Progress, RiskArguments, compute_risks
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import Risks, largest_error

# Peaks to try, in units of `Problem.step_unit`, a factor of sqrt(2) apart. A constant step size
# diverges beyond 1 or 2; the first few step sizes of 1/sqrt(t) may be larger.
MULTIPLIERS = tuple(round(0.005 * 2 ** (k / 2), 6) for k in range(22))
AVERAGES: tuple[Rule | float, ...] = (Uniform(), 6.25, 12.5, 25.0, 50.0, 100.0)
TOLERANCE = 0.02  # tolerance of `NoiseComparison.tune`
ENVELOPE = "cosine"  # the baseline that gaps are relative to

# Schedules for one length, from their peak and the length. Source: Section 4 (a floor of 0.1).
BASELINES: Mapping[str, Callable[[float, int], Schedule]] = {
    ENVELOPE: lambda peak, length: schedules.Cosine(peak, length, floor=0.1),
    "cosine to 0": lambda peak, length: schedules.Cosine(peak, length, floor=0.0),
    "WSD": lambda peak, length: _wsd(peak, length, floor=0.1),
    "WSD to 0": lambda peak, length: _wsd(peak, length, floor=0.0),
}


def _wsd(peak: float, length: int, floor: float) -> Schedule:
    trunk = schedules.Power(peak, gamma=0.0)
    return schedules.Decay(trunk, math.ceil(0.9 * length), length, floor=floor)


@dataclasses.dataclass(frozen=True)
class Family:
    """Anytime step sizes `peak * (alpha / (t + alpha))^gamma`, up to their peak."""

    name: str
    gamma: float
    alpha: float = 1.0  # 1 for 1/t^gamma


def _families(problem: Problem, shortest: int) -> list[Family]:
    """The families to compare: constant, 1/sqrt(t) with and without a shift, and gamma*."""
    shifts = [float(max(1, round(shortest * factor))) for factor in (0.05, 0.25, 1, 4)]
    result = [Family("constant", 0.0), Family("1/sqrt(t)", 0.5)]
    result += [Family(f"sqrt, alpha {alpha:g}", 0.5, alpha) for alpha in shifts]
    best = gamma_star(problem.a, problem.b)
    if best not in (0.0, 0.5):
        result += [Family(f"1/t^{best:.3g}", best)]
        result += [Family(f"gamma {best:.3g}, alpha {alpha:g}", best, alpha) for alpha in shifts]
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One anytime run, read out through one average."""

    family: Family
    multiplier: float  # peak in units of `Problem.step_unit`
    average: str
    gaps: np.ndarray  # float64[lengths], relative to the envelope

    @property
    def worst(self) -> float:
        """The largest gap at any length."""
        return float(self.gaps.max())

    @property
    def mean(self) -> float:
        """The mean gap over all lengths."""
        return mean_gap(self.gaps)


def mean_gap(gaps: np.ndarray) -> float:
    """Returns the geometric mean of risks over the envelope, minus 1."""
    return float(np.expm1(np.log1p(gaps).mean()))


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseComparison:
    """A comparison at one noise level; arrays are float64[lengths]."""

    comparison: "Comparison"
    noise: float
    envelope: np.ndarray  # risks of the cosine tuned at each length
    baseline_gaps: Mapping[str, np.ndarray]  # by name, tuned at each length
    baseline_multipliers: Mapping[str, np.ndarray]  # the best peaks
    trajectories: Sequence[Trajectory]  # every anytime run and average that stays finite

    def select(self, family: Family | None, average: str | None) -> list[Trajectory]:
        """Returns the trajectories of a family and an average; None for all."""
        return [
            run
            for run in self.trajectories
            if family in (None, run.family) and average in (None, run.average)
        ]

    def best(self, family: Family | None = None, average: str | None = None) -> Trajectory:
        """Returns the trajectory with the smallest mean gap over all lengths, as the paper does."""
        return min(self.select(family, average), key=lambda run: run.mean)

    def tune(self, run: Trajectory) -> tuple[int, Trajectory]:
        """Returns the length at which a run's peak can be tuned, and the best run there.

        It is the first length at which the best run's worst gap, from there on, is within
        `TOLERANCE` of the smallest worst gap of any peak.
        """
        rivals = self.select(run.family, run.average)
        for at, length in enumerate(self.comparison.lengths):
            tuned = min(rivals, key=lambda rival: rival.gaps[at])
            reachable = min(rival.gaps[at:].max() for rival in rivals)
            if tuned.gaps[at:].max() <= reachable + TOLERANCE:
                return length, tuned
        raise AssertionError("at the last length the tuned run is the best run")


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The risks of every run of a comparison, over `MULTIPLIERS`."""

    problem: Problem
    batch_size: int
    lengths: tuple[int, ...]  # numbers of samples, each half the next, rounded down
    families: tuple[Family, ...]
    anytime: Sequence[Risks]  # family by family, in parts
    baselines: Mapping[str, Sequence[Risks]]  # for each length, by name

    @property
    def unit(self) -> float:
        """The step size that a multiplier of 1 stands for."""
        return self.problem.step_unit(self.batch_size)

    @property
    def error(self) -> float:
        """The largest relative error of any part."""
        parts = [risks for baseline in self.baselines.values() for risks in baseline]
        return largest_error([*self.anytime, *parts])

    def at_noise(self, noise: float) -> NoiseComparison:
        """Returns the gaps at a noise level sigma^2."""
        ends = {
            name: np.stack([risks.excess(noise, LIVE)[:, -1] for risks in baseline])
            for name, baseline in self.baselines.items()
        }
        envelope = ends[ENVELOPE].min(axis=1)
        if not (np.isfinite(envelope) & (envelope > 0)).all():
            raise InputError(
                f"the tuned cosine's excess risks are {envelope.tolist()}: gaps relative to them "
                "mean nothing; choose more coordinates, more noise or fewer steps"
            )
        with np.errstate(over="ignore"):  # of a run that is about to diverge
            anytime = np.concatenate([risks.excess(noise) for risks in self.anytime], axis=1)
            gaps = anytime / envelope - 1
        settings = list(itertools.product(self.families, MULTIPLIERS))
        trajectories = [
            Trajectory(family, multiplier, label, gaps[row, k])
            for row, label in enumerate(self.anytime[0].labels)
            for k, (family, multiplier) in enumerate(settings)
            if np.isfinite(gaps[row, k]).all()
        ]
        return NoiseComparison(
            self,
            noise,
            envelope,
            {name: risks.min(axis=1) / envelope - 1 for name, risks in ends.items()},
            {name: np.array(MULTIPLIERS)[x.argmin(axis=1)] for name, x in ends.items()},
            trajectories,
        )


def compare(
    problem: Problem,
    samples: int,
    doublings: int,
    batch_size: int = 1,
    progress: Progress = lambda fraction: None,
) -> Comparison:
    """Computes the risks of every baseline and every anytime run.

    The shortest length, doubled `doublings` times, is `samples`; it must be 100 updates or more.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=2.5, dimension=20)
      >>> comparison = theory.comparison.compare(problem, samples=200, doublings=1)
      >>> comparison.at_noise(0.1).best().worst < 0.5
      True
    """
    require_count("samples", samples, least=1)
    require_count("doublings", doublings, least=1)
    require_count("batch_size", batch_size, least=1)
    if (shortest := samples >> min(doublings, 32)) < 100 * batch_size:
        raise InputError(
            f"samples = {samples} with doublings = {doublings} starts at {shortest} samples: the "
            f"shortest length must have 100 updates of {batch_size} or more; choose more samples, "
            "fewer doublings or a smaller batch"
        )
    lengths = tuple(samples >> k for k in range(doublings, -1, -1))
    families = _families(problem, lengths[0])
    peaks = [multiplier * problem.step_unit(batch_size) for multiplier in MULTIPLIERS]
    arguments = []
    for half in (families[: len(families) // 2], families[len(families) // 2 :]):  # for two cores
        runs = [schedules.Power(peak, x.gamma, x.alpha) for x in half for peak in peaks]
        arguments.append(RiskArguments(problem, runs, AVERAGES, lengths, batch_size))
    for baseline, length in itertools.product(BASELINES.values(), lengths):
        runs = [baseline(x, length) for x in peaks]
        arguments.append(RiskArguments(problem, runs, [], [length], batch_size))
    first, second, *rest = compute_risks(arguments, progress)
    by_name = {name: rest[k * len(lengths) :][: len(lengths)] for k, name in enumerate(BASELINES)}
    return Comparison(problem, batch_size, lengths, tuple(families), (first, second), by_name)
