"""The question behind the paper, in the linear model: one anytime run against a cosine per length.

For lengths h, 2h, 4h, ... up to N the decaying rivals are tuned at every length: cosine and WSD,
down to a tenth of their peak as in the paper, and down to 0. The lowest risks of the paper's cosine
are the envelope. An anytime run is one trajectory for all lengths. Its gap at a length is its risk
over the envelope's there, minus 1.

Source: Section 4 (the rivals, their floors, the two ways to select an anytime run).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.averaging import LIVE, Uniform
from anytime_jax.checks import require_count
from anytime_jax.schedules import Schedule
from anytime_jax.theory.parallel import Report, in_parallel
from anytime_jax.theory.rates import gamma_star
from anytime_jax.theory.risk import Risks, excess_risk, largest_error
from anytime_jax.theory.spectrum import Problem
from anytime_jax.theory.tail_averages import Average

# Step sizes to try, in units of `Problem.step_unit`: factors of sqrt(2). A constant one diverges
# beyond 1 or 2; the first few of 1/sqrt(t) may be larger.
GRID = tuple(round(0.005 * 2 ** (k / 2), 6) for k in range(22))
WINDOWS = (6.25, 12.5, 25.0, 50.0, 100.0)
AVERAGES: tuple[Average, ...] = (Uniform(), *WINDOWS)
_BRANCH = 0.9  # WSD decays over the last tenth
ENVELOPE = "cosine"  # the rival that gaps are relative to

# Schedules for one length, from their peak and the length. Source: Section 4 (a floor of 0.1).
RIVALS: Mapping[str, Callable[[float, int], Schedule]] = {
    ENVELOPE: lambda peak, length: schedules.FixedHorizon(peak, length, floor=0.1),
    "cosine to 0": lambda peak, length: schedules.FixedHorizon(peak, length, floor=0.0),
    "WSD": lambda peak, length: _wsd(peak, length, floor=0.1),
    "WSD to 0": lambda peak, length: _wsd(peak, length, floor=0.0),
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Anytime step sizes `peak * (alpha / (t + alpha))^gamma`, up to their peak.

    Attributes:
      name: what to call it.
      gamma: exponent of the decay.
      alpha: updates over which the step size stays near its peak; 1 for 1/t^gamma.
    """

    name: str
    gamma: float
    alpha: float = 1.0

    def schedule(self, peak: float) -> Schedule:
        """Returns the schedule with a peak."""
        return schedules.Power(peak, self.gamma, self.alpha)


def families(problem: Problem, shortest: int) -> list[Family]:
    """Returns what is compared: constant, 1/sqrt(t) and its shifts, and the same at gamma*."""
    shifts = [float(max(1, round(shortest * factor))) for factor in (0.05, 0.25, 1, 4)]
    found = [Family("constant", 0.0), Family("1/sqrt(t)", 0.5)]
    found += [Family(f"sqrt, alpha {alpha:g}", 0.5, alpha) for alpha in shifts]
    best = gamma_star(problem.a, problem.b)
    if best not in (0.0, 0.5):
        found += [Family(f"1/t^{best:.3g}", best)]
        found += [Family(f"gamma {best:.3g}, alpha {x:g}", best, x) for x in shifts]
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One anytime trajectory and one of its averages.

    Attributes:
      family: its step sizes.
      multiplier: their peak in units of `Problem.step_unit`.
      average: label of the average.
      gaps: float64[lengths], relative to the envelope of the cosine.
    """

    family: Family
    multiplier: float
    average: str
    gaps: np.ndarray

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
class Comparison:
    """Every run of a comparison, at every noise level.

    Attributes:
      problem: the regression problem.
      lengths: the numbers of updates that are compared, each half the next, rounded down.
      families: the anytime step sizes.
      anytime: the risks of all anytime runs, family by family over `GRID`.
      rivals: by name, for each length the risks of schedules to there, over `GRID`.
    """

    problem: Problem
    lengths: tuple[int, ...]
    families: tuple[Family, ...]
    anytime: Risks
    rivals: Mapping[str, Sequence[Risks]]
    _runs: dict[float, list[Trajectory]] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def error(self) -> float:
        """The largest relative error of any part."""
        rivals = [risks for rival in self.rivals.values() for risks in rival]
        return largest_error([self.anytime, *rivals])

    def tuned(self, rival: str, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lowest risk at each length and the multiplier that has it."""
        ends = np.stack([risks.excess(noise, LIVE)[:, -1] for risks in self.rivals[rival]])
        return ends.min(axis=1), np.array(GRID)[ends.argmin(axis=1)]

    def rival_gaps(self, rival: str, noise: float) -> np.ndarray:
        """Returns the gap of a rival tuned at each length: float64[lengths]."""
        return self.tuned(rival, noise)[0] / self._envelope(noise) - 1

    def _envelope(self, noise: float) -> np.ndarray:
        envelope, _ = self.tuned(ENVELOPE, noise)
        if not (np.isfinite(envelope) & (envelope > 0)).all():
            raise ValueError(
                f"the tuned cosine's excess risks are {envelope.tolist()}: gaps relative to them "
                "mean nothing; choose more coordinates, more noise or fewer steps"
            )
        return envelope

    def runs(self, noise: float) -> list[Trajectory]:
        """Returns every trajectory with every average that stays finite."""
        if noise not in self._runs:
            self._runs[noise] = self._all_runs(noise)
        return self._runs[noise]

    def _all_runs(self, noise: float) -> list[Trajectory]:
        envelope = self._envelope(noise)
        found = []
        for row, label in enumerate(self.anytime.labels):
            with np.errstate(over="ignore"):  # of a run that is about to diverge
                gaps = self.anytime.excess(noise)[row] / envelope - 1
            for k, family in enumerate(self.families):
                for j, multiplier in enumerate(GRID):
                    gap = gaps[k * len(GRID) + j]
                    if np.isfinite(gap).all():
                        found.append(Trajectory(family, multiplier, label, gap))
        return found

    def best(
        self, noise: float, family: Family | None = None, average: str | None = None
    ) -> Trajectory:
        """Returns the run with the smallest mean gap over all lengths, as the paper selects.

        Args:
          noise: sigma^2.
          family: only these step sizes, if given.
          average: only this average, if given.
        """
        return min(self.of(noise, family, average), key=lambda run: run.mean)

    def tuned_at(self, noise: float, like: Trajectory, length: int) -> Trajectory:
        """Returns the run of a family and average that is best at one length."""
        at = self.lengths.index(length)
        runs = self.of(noise, like.family, like.average)
        return min(runs, key=lambda run: run.gaps[at])

    def of(self, noise: float, family: Family | None, average: str | None) -> list[Trajectory]:
        """Returns the runs of some step sizes and of an average; None for all."""
        return [
            run
            for run in self.runs(noise)
            if family in (None, run.family) and average in (None, run.average)
        ]


def compare(problem: Problem, steps: int, doublings: int, report: Report) -> Comparison:
    """Runs every rival and every anytime trajectory.

    Args:
      problem: the regression problem.
      steps: the longest run, N.
      doublings: how often the shortest length is doubled on the way to N.
      report: told the part that is done.

    Raises:
      ValueError: if the shortest length would be less than 100 updates.
    """
    require_count("steps", steps, least=1)
    require_count("doublings", doublings, least=1)
    if steps >> min(doublings, 32) < 100:
        raise ValueError(
            f"steps = {steps} with doublings = {doublings} starts at {steps >> min(doublings, 32)} "
            "updates: the shortest length must have 100 or more; ask for more steps or fewer "
            "doublings"
        )
    lengths = tuple(steps >> k for k in range(doublings, -1, -1))
    chosen = tuple(families(problem, lengths[0]))
    peaks = [multiplier * problem.step_unit for multiplier in GRID]

    def anytime(part: Sequence[Family]) -> Callable[[Report], Risks]:
        given = [family.schedule(peak) for family in part for peak in peaks]
        return lambda report: excess_risk(problem, given, AVERAGES, lengths, report=report)

    def rival(make: Callable[[float, int], Schedule], length: int) -> Callable[[Report], Risks]:
        given = [make(peak, length) for peak in peaks]
        return lambda report: excess_risk(problem, given, [], [length], report=report)

    halves = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    tasks = [anytime(part) for part in halves]
    tasks += [rival(make, length) for make in RIVALS.values() for length in lengths]
    sizes = [8.0 * steps * len(part) for part in halves] + [1.0 * x for x in lengths] * len(RIVALS)
    first, second, *rest = in_parallel(tasks, sizes, report)
    together = dataclasses.replace(
        first,
        bias=np.concatenate([first.bias, second.bias], axis=1),
        variance=np.concatenate([first.variance, second.variance], axis=1),
        error=largest_error([first, second]),
    )
    per_rival = [rest[k : k + len(lengths)] for k in range(0, len(rest), len(lengths))]
    return Comparison(problem, lengths, chosen, together, dict(zip(RIVALS, per_rival, strict=True)))


def _wsd(peak: float, length: int, floor: float) -> Schedule:
    trunk = schedules.Power(peak, gamma=0.0)
    return schedules.Decay(trunk, math.ceil(_BRANCH * length), length, floor=floor)


@dataclasses.dataclass(frozen=True)
class Advice:
    """What to run, by a comparison.

    Attributes:
      run: the trajectory and average with the smallest mean gap.
      tune_at: the first length at which tuning the peak finds a run whose worst gap from there on
        is within `TOLERANCE` of the best that the family can do there.
      tuned: the run found there.
    """

    run: Trajectory
    tune_at: int
    tuned: Trajectory


TOLERANCE = 0.02


def advise(comparison: Comparison, noise: float) -> Advice:
    """Returns which gamma, alpha and f did best, and when the peak can be tuned.

    Args:
      comparison: computed risks.
      noise: sigma^2.
    """
    run = comparison.best(noise)
    rivals = comparison.of(noise, run.family, run.average)
    for at, length in enumerate(comparison.lengths):
        tuned = comparison.tuned_at(noise, run, length)
        reachable = min(other.gaps[at:].max() for other in rivals)
        if tuned.gaps[at:].max() <= reachable + TOLERANCE:
            return Advice(run, length, tuned)
    raise AssertionError("at the last length the best run is the best run")
