"""Runs of the paper's synthetic figures: step sizes swept on each problem, the best selected early.

Source: Figure 1 and its version with little noise in the appendix.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytime_jax.averaging import Uniform
from anytime_jax.checks import is_number, require, require_choice, require_count, require_directory
from anytime_jax.schedules import Power
from anytime_jax.theory.parallel import Progress, run_in_parallel
from anytime_jax.theory.problem import Problem
from anytime_jax.theory.rates import fitted_exponent
from anytime_jax.theory.risk import Risks, excess_risk, require_noise
from anytime_jax.theory.tracked_averages import Average, track
from anytime_jax.weights.post_hoc import LastFraction

# Exponents of the decay of horizon-free schedules, by name. Update t uses count t - 1, so that
# `Power(peak, gamma)`, whose alpha is 1, is peak / t^gamma.
GAMMAS: Mapping[str, float] = {"constant": 0.0, "inverse_sqrt": 0.5}


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """Settings of the figures."""

    out_dir: str  # for the pictures and numbers
    capacity: tuple  # exponents a, one column of panels each
    source_ratio: tuple  # b / a, one row of panels each
    dimension: int  # number of coordinates; 0 for infinity
    noise: tuple  # values of sigma^2, one picture each
    steps: int  # updates of every run, N
    select_at: int  # the update at which the step size is selected
    multipliers: tuple  # step sizes to try, in units of 1/tr(H)
    schedules: tuple  # names of horizon-free schedules, of `GAMMAS`
    windows: tuple  # the f of growing-window averages
    last_fraction: float  # part of the run that the tail average covers

    def __post_init__(self) -> None:
        require_directory("out_dir", self.out_dir)
        require_count("dimension", self.dimension)
        require_count("steps", self.steps, least=2)
        require_count("select_at", self.select_at, least=1)
        within = self.select_at <= self.steps
        require(within, "select_at", self.select_at, f"at most steps = {self.steps}")
        for name in ("capacity", "source_ratio", "noise", "multipliers", "schedules"):
            values = getattr(self, name)
            require(len(values) > 0, name, values, "one value or more")
            require(len(set(values)) == len(values), name, values, "values that differ")
        for name in ("capacity", "source_ratio", "multipliers"):
            for value in getattr(self, name):
                require(is_number(value) and value > 0, name, value, "numbers above 0")
        for value in self.noise:
            require_noise(value)
        for name in self.schedules:
            require_choice("schedules", name, tuple(GAMMAS))
        self.problems  # noqa: B018  (each checks its exponents)
        track(self.averages, [1])  # checks each

    @property
    def problems(self) -> list[Problem]:
        """One for each panel, row by row."""
        dimension = self.dimension or math.inf
        return [Problem(a, a * r, dimension) for r in self.source_ratio for a in self.capacity]

    @property
    def averages(self) -> list[Average]:
        """The running average, the tail, and the growing windows."""
        return [Uniform(), LastFraction(self.last_fraction), *self.windows]


@dataclasses.dataclass(frozen=True)
class SelectedRun:
    """The run of a panel that was best at the update of selection, for one average."""

    noise: float
    a: float
    b: float
    schedule: str
    average: str  # its label
    multiplier: float  # step size, in units of 1/tr(H)
    steps: np.ndarray  # int[T], checkpoints
    risks: np.ndarray  # float64[T], exact excess risks

    @property
    def exponent(self) -> float:
        """The p of risk ~ N^-p, fitted over the last factor of 10 of the run."""
        late = self.steps >= self.steps[-1] / 10
        return fitted_exponent(self.steps[late], self.risks[late])


def sweep(config: FigureConfig, progress: Progress) -> list[Risks]:
    """Returns the risks of every schedule at every multiplier, for each problem."""
    checkpoints = checkpoints_through(config.select_at, config.steps)

    def task(problem: Problem) -> Callable[[Progress], Risks]:
        runs = [
            Power(multiplier / problem.trace, GAMMAS[name])
            for name in config.schedules
            for multiplier in config.multipliers
        ]
        averages = config.averages
        return lambda report: excess_risk(problem, runs, averages, checkpoints, progress=report)

    tasks = [task(problem) for problem in config.problems]
    return run_in_parallel(tasks, [1.0] * len(tasks), progress)


def select(config: FigureConfig, results: Sequence[Risks]) -> list[SelectedRun]:
    """Returns the run with the lowest risk at the update of selection.

    One for each noise level, problem, schedule and average, in this order.
    """
    number = len(config.multipliers)
    selected = []
    for noise in config.noise:
        for problem, risks in zip(config.problems, results, strict=True):
            for k, name in enumerate(config.schedules):
                for label in risks.labels:
                    rows = risks.excess(noise, label)[k * number : (k + 1) * number]
                    best = lowest(rows, risks.checkpoints, config.select_at)
                    curve = config.multipliers[best], risks.checkpoints, rows[best]
                    selected.append(SelectedRun(noise, problem.a, problem.b, name, label, *curve))
    return selected


def lowest(risks: np.ndarray, checkpoints: np.ndarray, at: int) -> int:
    """Returns the index of the run with the lowest of risks float64[S, T] at a checkpoint."""
    column = risks[:, list(checkpoints).index(at)]
    if not np.isfinite(column).any():
        raise ValueError(f"every run of the sweep has diverged by update {at}: try smaller rates")
    return int(np.argmin(np.where(np.isfinite(column), column, np.inf)))


def checkpoints_through(through: int, steps: int, per_octave: float = 2.0) -> list[int]:
    """Returns about `per_octave` numbers of updates a doubling, through `through` to `steps`."""
    ok = 1 <= through <= steps
    require(ok, "through", through, f"a number of updates from 1 to {steps}")
    above = max(1, int(per_octave * np.log2(steps / through)))
    later = through * (steps / through) ** (np.arange(above) / above)
    ratio = max(2 ** (1 / per_octave), (steps / through) ** (1 / above))
    earlier = through * ratio ** np.arange(-int(np.log(through) / np.log(ratio)), 0.0)
    return sorted({*(round(float(x)) for x in (*earlier, *later)), through, steps})
