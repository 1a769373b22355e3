"""Learning-rate schedules: constant, inverse square root, cosine, linear, WSD, with linear warmup.

A schedule maps `t`, the number of updates done, to a learning rate, as Optax's schedules do: the
first update sees t = 0.

    >>> optimizer = optax.adam(schedules.inverse_sqrt(peak=3e-3, alpha=51_200, warmup_steps=5_000))

The functions at the top build the schedules of the paper out of the dataclasses below them, which
nest in other ways too. Counts are absolute: nothing is subtracted twice. Shared arguments:

    peak           largest learning rate
    warmup_steps   updates of the linear warmup
    warmup_init    rate at t = 0, as a fraction of the rate at the end of the warmup
    alpha          updates over which a power law stays near its peak
    start          update count at which a decay starts
    horizon        update count at which a decay and its schedule end
    floor          rate at the horizon, as a fraction of the peak

Source: Section 4 of the paper. What its text leaves out is as in the authors' runs: warmup from 0.1
of the peak, over 5,000 updates (500 at batch 4096), and t of the inverse square root counted from
the end of the warmup.
"""

import abc
import dataclasses
import functools
import math
from types import ModuleType
from typing import Any, Literal, get_args

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from anytime_jax import checks

DecayShape = Literal["linear", "1-sqrt", "cosine"]


class Schedule(abc.ABC):
    """A learning rate as a function of the number of updates done.

    Schedules are frozen dataclasses: immutable, hashable and equal by value. Calling one computes
    float32, under jit or not; `evaluate` computes the same formula in NumPy float64.

    A schedule with a horizon N is defined for 0 <= t <= N. Outside, a concrete count raises and a
    traced one gives NaN, because a rate past the end of its schedule is a mistake and not a zero.

    Examples:
      >>> schedule = schedules.cosine(peak=1.0, horizon=100, floor=0.0)
      >>> schedule(jnp.array([0, 100]))
      Array([1., 0.], dtype=float32)
      >>> schedule.evaluate([0, 50, 100])
      array([1. , 0.5, 0. ])
      >>> jax.jit(schedule)(101)
      Array(nan, dtype=float32)
    """

    peak: float

    @property
    def horizon_steps(self) -> int | None:
        """The last count at which the schedule is defined; None if it never ends."""
        return getattr(self, "horizon", None)

    @abc.abstractmethod
    def _rate(self, t: Any, xp: ModuleType) -> Any:
        """The formula, at integer counts `t` inside the domain; `xp` is numpy or jax.numpy."""

    def __call__(self, count: jax.typing.ArrayLike) -> jax.Array:
        """Returns the float32 learning rate after `count` updates, integers of any shape."""
        count = jnp.asarray(count)
        _require_integers(count)
        count = count.astype(jnp.int32)  # narrower and unsigned types would wrap around
        if not isinstance(count, jax.core.Tracer):
            self._require_defined(np.asarray(count))
        rate = self._rate(count, jnp).astype(jnp.float32)
        outside = count < 0
        if self.horizon_steps is not None:
            outside |= count > self.horizon_steps
        return jnp.where(outside, jnp.nan, rate)

    def evaluate(self, counts: Any) -> np.ndarray:
        """Returns the float64 learning rates after `counts` updates, integers of any shape."""
        counts = np.asarray(counts)
        _require_integers(counts)
        counts = counts.astype(np.int64)
        self._require_defined(counts)
        return np.asarray(self._rate(counts, np), dtype=np.float64)

    def _require_defined(self, counts: np.ndarray) -> None:
        end = self.horizon_steps
        if counts.size and counts.min() < 0:
            raise ValueError(f"a schedule starts at update count 0; got {counts.min()}")
        if counts.size and end is not None and counts.max() > end:
            raise ValueError(
                f"this {type(self).__name__} schedule ends at update count {end}; got "
                f"{counts.max()}. Stop there, or choose a schedule with a later horizon or none"
            )


def constant(peak: float, warmup_steps: int = 0, warmup_init: float = 0.1) -> Schedule:
    """Constant rate after a linear warmup: `power` with gamma = 0.

        eta_t = peak

    Examples:
      >>> schedules.constant(1.0, warmup_steps=10).evaluate([0, 5, 10, 1_000_000])
      array([0.1 , 0.55, 1.  , 1.  ])

    Source: Section 4, "Choice of gamma".
    """
    return power(peak, 0.0, warmup_steps=warmup_steps, warmup_init=warmup_init)


def inverse_sqrt(
    peak: float, alpha: float, warmup_steps: int = 0, warmup_init: float = 0.1
) -> Schedule:
    """Inverse square root after a linear warmup: `power` with gamma = 1/2.

        eta_t = peak * sqrt(alpha / (t - warmup_steps + alpha))

    Examples:
      >>> schedules.inverse_sqrt(1.0, alpha=100, warmup_steps=10).evaluate([0, 10, 310])
      array([0.1, 1. , 0.5])

    Source: Section 4, "Architecture and Dataset".
    """
    return power(peak, 0.5, alpha, warmup_steps, warmup_init)


def power(
    peak: float, gamma: float, alpha: float = 1.0, warmup_steps: int = 0, warmup_init: float = 0.1
) -> Schedule:
    """Power law after a linear warmup.

        eta_t = peak * (alpha / (t - warmup_steps + alpha))^gamma

    Examples:
      >>> schedules.power(1.0, gamma=1.0, alpha=100).evaluate([0, 100, 300])
      array([1.  , 0.5 , 0.25])

    Source: Theorem 1 (alpha = 1); Section 4, "Architecture and Dataset" (gamma = 1/2).
    """
    trunk = Power(peak=peak, gamma=gamma, alpha=alpha, start=warmup_steps)
    return Warmup(trunk, warmup_steps, warmup_init)


def cosine(
    peak: float, horizon: int, warmup_steps: int = 0, warmup_init: float = 0.1, floor: float = 0.1
) -> Schedule:
    """Cosine decay after a linear warmup: the baseline of the paper.

        eta_t = peak * (floor + (1 - floor) * (1 + cos(pi * u)) / 2)
        u = (t - warmup_steps) / (horizon - warmup_steps)

    Examples:
      >>> schedules.cosine(1.0, horizon=110, warmup_steps=10).evaluate([10, 60, 110])
      array([1.  , 0.55, 0.1 ])

    Source: Section 4, "Training and evaluation details".
    """
    return Warmup(FixedHorizon(peak, horizon, warmup_steps, floor), warmup_steps, warmup_init)


def linear(
    peak: float, horizon: int, warmup_steps: int = 0, warmup_init: float = 0.1, floor: float = 0.1
) -> Schedule:
    """Linear decay after a linear warmup.

        eta_t = peak * (floor + (1 - floor) * (1 - u))
        u = (t - warmup_steps) / (horizon - warmup_steps)

    Examples:
      >>> schedules.linear(1.0, horizon=100, floor=0.0).evaluate([0, 25, 100])
      array([1.  , 0.75, 0.  ])
    """
    decay = FixedHorizon(peak, horizon, warmup_steps, floor, "linear")
    return Warmup(decay, warmup_steps, warmup_init)


def wsd(
    peak: float,
    start: int,
    horizon: int,
    warmup_steps: int = 0,
    warmup_init: float = 0.1,
    floor: float = 0.1,
    shape: DecayShape = "linear",
) -> Schedule:
    """Warmup-stable-decay: constant until `start`, then a decay to `floor * peak` at `horizon`.

    Examples:
      >>> schedules.wsd(1.0, start=90, horizon=100).evaluate([0, 90, 95, 100])
      array([1.  , 1.  , 0.55, 0.1 ])

    Source: Section 4, "Fixed run comparison" (linear to 10% of the peak over the last 10%).
    """
    return Decay(constant(peak, warmup_steps, warmup_init), start, horizon, floor, shape)


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
    """Power law from update count `start` on, and `peak` before it.

        eta_t = peak * (alpha / (t - start + alpha))^gamma

    With alpha = 1 it is `peak / n^gamma`, where n = t + 1 counts updates from 1 (Theorem 1).

    Examples:
      >>> schedules.Power(peak=1.0, gamma=0.5).evaluate([0, 3, 99])
      array([1. , 0.5, 0.1])
    """

    peak: float
    gamma: float
    alpha: float = 1.0
    start: int = 0

    def __post_init__(self) -> None:
        checks.require_positive("peak", self.peak)
        ok = checks.is_number(self.gamma) and 0 <= self.gamma < 1e6
        checks.require(ok, "gamma", self.gamma, "0 or more")
        checks.require_positive("alpha", self.alpha)
        checks.require_count("start", self.start)

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        base = self.alpha / (xp.maximum(t - self.start, 0) + self.alpha)
        if self.gamma == 0:
            return self.peak * xp.ones_like(base)
        # A square root is correctly rounded; a general power is not.
        return self.peak * (xp.sqrt(base) if self.gamma == 0.5 else base**self.gamma)


@dataclasses.dataclass(frozen=True)
class FixedHorizon(Schedule):
    """A decay over a whole run, from `peak` at count `start` to `floor * peak` at `horizon`.

        eta_t = peak * (floor + (1 - floor) * shape(u)),    u = (t - start) / (horizon - start)

    with the shapes of `Decay`.

    Examples:
      >>> schedule = schedules.FixedHorizon(peak=1.0, horizon=100, floor=0.0, shape="1-sqrt")
      >>> schedule.evaluate([0, 25, 100])
      array([1. , 0.5, 0. ])
    """

    peak: float
    horizon: int
    start: int = 0
    floor: float = 0.1
    shape: DecayShape = "cosine"

    def __post_init__(self) -> None:
        checks.require_positive("peak", self.peak)
        _require_decay(self.start, self.horizon, self.floor, self.shape)

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        factor = _decay_factor(self.shape, t, self.start, self.horizon, xp)
        return self.peak * (self.floor + (1 - self.floor) * factor)


@dataclasses.dataclass(frozen=True)
class Decay(Schedule):
    """Any schedule, the trunk, up to count `start`, then a decay to `floor * peak` at `horizon`.

        eta_t = trunk(t)                                             for t <= start
        eta_t = end + (trunk(start) - end) * shape(u)                for start <= t <= horizon

    with `end = floor * trunk.peak`, `u = (t - start) / (horizon - start)` and shape(u) one of
    `1 - u` (linear), `1 - sqrt(u)` (1-sqrt) and `(1 + cos(pi u)) / 2` (cosine).

    Examples:
      Optax saves no more of a schedule than its update count, so the optimizer state of a run with
      `trunk` continues with a branch of it:

      >>> trunk = schedules.inverse_sqrt(1.0, alpha=300)
      >>> branch = schedules.Decay(trunk, start=900, horizon=1_000, floor=0.0)
      >>> branch.evaluate([900, 950, 1_000])
      array([0.5 , 0.25, 0.  ])
    """

    trunk: Schedule
    start: int
    horizon: int
    floor: float = 0.1
    shape: DecayShape = "linear"

    def __post_init__(self) -> None:
        checks.require(isinstance(self.trunk, Schedule), "trunk", self.trunk, "a schedule")
        _require_decay(self.start, self.horizon, self.floor, self.shape)
        end = self.trunk.horizon_steps
        if end is not None and self.start > end:
            raise ValueError(f"the decay starts at {self.start}, after its trunk's end at {end}")
        if self._start_rate < self._end_rate * (1 - 1e-12):
            raise ValueError(
                f"the decay would rise: its trunk is at {self._start_rate:g} at update "
                f"{self.start}, under the floor of {self.floor:g} x peak = {self._end_rate:g}. "
                "Choose a lower floor"
            )

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The peak of the trunk."""
        return self.trunk.peak

    @functools.cached_property
    def _start_rate(self) -> float:
        return float(self.trunk.evaluate(self.start))

    @property
    def _end_rate(self) -> float:
        return self.floor * self.trunk.peak

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        # `where` computes both branches, so each gets counts inside its own domain.
        before = self.trunk._rate(xp.minimum(t, self.start), xp)
        factor = _decay_factor(self.shape, t, self.start, self.horizon, xp)
        after = self._end_rate + (self._start_rate - self._end_rate) * factor
        return xp.where(t <= self.start, before, after)


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise to a schedule's rate at count `steps`, then that schedule.

        eta_t = schedule(steps) * (init + (1 - init) * t / steps)    for t < steps

    Examples:
      >>> trunk = schedules.Power(peak=1.0, gamma=0.7, alpha=100, start=10)
      >>> schedules.Warmup(trunk, steps=10, init=0.0).evaluate([0, 5, 10])
      array([0. , 0.5, 1. ])
    """

    schedule: Schedule
    steps: int
    init: float = 0.1

    def __post_init__(self) -> None:
        checks.require(isinstance(self.schedule, Schedule), "schedule", self.schedule, "a schedule")
        checks.require_count("steps", self.steps)
        checks.require_fraction("init", self.init)
        end = self.schedule.horizon_steps
        if end is not None and self.steps > end:
            raise ValueError(f"warmup of {self.steps} updates is longer than the schedule's {end}")

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The peak of the schedule after the warmup."""
        return self.schedule.peak

    @property
    def horizon_steps(self) -> int | None:
        """The last count at which the schedule is defined; None if it never ends."""
        return self.schedule.horizon_steps

    @functools.cached_property
    def _final_rate(self) -> float:
        return float(self.schedule.evaluate(self.steps))

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        if self.steps == 0:
            return self.schedule._rate(t, xp)
        rise = self._final_rate * (self.init + (1 - self.init) * (t / self.steps))
        return xp.where(t < self.steps, rise, self.schedule._rate(xp.maximum(t, self.steps), xp))


def _decay_factor(shape: DecayShape, t: Any, start: int, horizon: int, xp: ModuleType) -> Any:
    """The decay from 1 at count `start` to 0 at count `horizon`.

    Written so that no float32 subtraction cancels: counts are subtracted as integers, and near the
    horizon each shape is a function of the updates that remain.
    """
    done = xp.clip(t - start, 0, horizon - start) / (horizon - start)
    remaining = xp.clip(horizon - t, 0, horizon - start) / (horizon - start)
    if shape == "cosine":
        return xp.sin(0.5 * math.pi * remaining) ** 2  # = (1 + cos(pi * done)) / 2
    if shape == "1-sqrt":
        return remaining / (1 + xp.sqrt(done))  # = 1 - sqrt(done)
    return remaining


def _require_integers(counts: Any) -> None:
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f"an update count is a whole number; got one of type {counts.dtype}")


def _require_decay(start: int, horizon: int, floor: float, shape: str) -> None:
    checks.require_count("start", start)
    checks.require_count("horizon", horizon)
    checks.require_fraction("floor", floor)
    checks.require_choice("shape", shape, get_args(DecayShape))
    if start >= horizon:
        raise ValueError(
            f"the decay starts at update {start} and ends at {horizon}: the horizon must be later"
        )
