"""Learning-rate schedules: constant, inverse square root, cosine, linear, WSD, with linear warmup.

A schedule is a frozen dataclass that maps a time `t` to a learning rate, as Optax's schedules do.
With a constant batch, time is the number of updates done, so that the first update sees t = 0. With
a batch that grows, time counts updates of the first size (`anytime_jax.config.clock`).

    >>> optimizer = optax.adam(schedules.inverse_sqrt(peak=3e-3, alpha=51_200, warmup=5_000))

A schedule of your own is a subclass of `Schedule` with a `formula`. All times, also the start of a
decay and the horizon, are counted from the beginning of the run. Shared fields:

    peak           largest learning rate
    warmup         time at which the linear warmup ends
    warmup_init    rate at t = 0, as a fraction of the rate at the end of the warmup
    alpha          time over which a power law stays near its peak
    start          time at which a decay starts
    horizon        time at which a decay and its schedule end
    floor          rate at the horizon, as a fraction of the peak

Source: Section 4 of the paper. Two things that the paper does not say are as in the authors' runs:
the warmup is from 0.1 of the peak, over 5,000 updates (500 at batch 4096), and the inverse square
root counts t from the end of the warmup.
"""

import abc
import dataclasses
import functools
import math
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from anytime_jax import checks

DecayShape = Literal["linear", "1-sqrt", "cosine"]
Time = Annotated[int, "time"]
"""A whole number of updates of the first batch size; in a configuration also a point like "2x"."""


class Schedule(abc.ABC):
    """A learning rate as a function of time.

    Schedules are frozen dataclasses: immutable, hashable and equal by value. Calling one computes
    float32, under jit or not; `evaluate` computes the same formula in NumPy float64.

    A subclass has a field `peak` and defines `formula`. With a field `warmup`, the rate rises
    linearly up to the end of the warmup, where it is the formula's. The rise begins at the fraction
    `warmup_init` of that rate, or at 0 without such a field. With a field `horizon` = N, the
    schedule is defined for 0 <= t <= N. Outside, a concrete time raises an error and a traced time
    gives NaN: a rate past the end of its schedule is a mistake and not a zero.

    Attributes:
      peak: largest learning rate.
      warmup: end of the linear warmup.
      warmup_init: learning rate at t = 0, as a fraction of the rate at the end of the warmup.
      horizon: end of the decay and of the schedule.

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
    horizon: Time | None
    warmup: Time
    warmup_init: float

    @abc.abstractmethod
    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the rate at integer times inside the domain; `xp` is numpy or jax.numpy."""

    def __post_init__(self) -> None:
        """Checks the shared fields; a `__post_init__` of a subclass calls this one first."""
        if not hasattr(self, "peak"):
            raise ValueError(f"the class {type(self).__name__} has no field peak: add one")
        checks.conform_to_types(self)
        checks.require_positive("peak", self.peak)
        end, warmup = self.end, self.warmup_end
        checks.require_count("warmup", warmup)
        checks.require_fraction("warmup_init", getattr(self, "warmup_init", 0.0))
        if end is not None:
            checks.require_count("horizon", end)
            allowed = f"at most the horizon, {end}"
            checks.require(warmup <= end, "warmup", warmup, allowed)

    @property
    def end(self) -> int | None:
        """The last time at which the schedule is defined; None if it never ends."""
        return getattr(self, "horizon", None)

    @property
    def warmup_end(self) -> int:
        """The time at which the warmup ends; 0 for a schedule without one."""
        return getattr(self, "warmup", 0)

    def __call__(self, time: jax.typing.ArrayLike) -> jax.Array:
        """Returns the float32 learning rate at times, integers of any shape."""
        if not isinstance(time, jax.core.Tracer):
            time = jnp.asarray(self._read_times(time), jnp.int32)
            return self._rate(time, jnp).astype(jnp.float32)
        is_whole = jnp.issubdtype(time.dtype, jnp.integer)
        checks.require(is_whole, "time", time.dtype, "a whole number")
        if time.dtype.itemsize < 4:  # the end may be no number of a narrower type
            time = time.astype(jnp.int32)
        last = checks.LARGEST_COUNT - 1 if self.end is None else self.end
        outside = (time < 0) | (time > last)  # compared before a wider type wraps around
        rate = self._rate(time.astype(jnp.int32), jnp).astype(jnp.float32)
        return jnp.where(outside, jnp.nan, rate)

    def evaluate(self, times: Any) -> np.ndarray:
        """Returns the float64 learning rates at times, integers of any shape."""
        return np.asarray(self._rate(self._read_times(times), np), dtype=np.float64)

    def remaining_fraction(self, times: Any) -> np.ndarray:
        """Returns the fraction of the rate that a decay to the horizon has left at times, float64.

        The fraction is 1 up to the start of the decay, and always for a schedule without a horizon.

        Examples:
          >>> schedules.wsd(3e-3, horizon=100, floor=0.0).remaining_fraction([0, 90, 95])
          array([1. , 1. , 0.5])
        """
        times = self._read_times(times)
        if self.end is None:
            return np.ones(times.shape)
        return np.where(times < self.warmup_end, 1.0, self.evaluate(times) / self.peak)

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        """The formula after the linear warmup."""
        warmup, first = self.warmup_end, getattr(self, "warmup_init", 0.0)
        rate = xp.broadcast_to(self.formula(xp.maximum(t, warmup), xp), xp.shape(t))
        if warmup == 0:
            return rate
        rise = self._warmed_rate * (first + (1 - first) * (t / warmup))
        return xp.where(t < warmup, rise, rate)

    @functools.cached_property
    def _warmed_rate(self) -> float:
        """The rate at the end of the warmup."""
        return float(self.formula(np.asarray(self.warmup_end, np.int64), np))

    def _read_times(self, times: Any) -> np.ndarray:
        """Returns times as int64; raises a ValueError if the schedule is not defined at one."""
        times, end = checks.read_times(times), self.end
        if times.size and end is not None and times.max() > end:
            raise ValueError(
                f"this {type(self).__name__} schedule ends at time {end}; got {times.max()}. Stop "
                "there, or choose a schedule with a later horizon or none"
            )
        return times


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """Constant rate after a linear warmup.

        eta_t = peak

    Examples:
      >>> schedules.constant(1.0, warmup=10).evaluate([0, 5, 10, 1_000_000])
      array([0.1 , 0.55, 1.  , 1.  ])

    Source: Section 4, "Choice of gamma".
    """

    peak: float
    warmup: Time = 0
    warmup_init: float = 0.1

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the peak."""
        return self.peak * xp.ones_like(t / 1)


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
    """Power law after a linear warmup.

        eta_t = peak * (alpha / (t - warmup + alpha))^gamma

    With alpha = 1 it is `peak / n^gamma`, where n = t + 1 counts updates from 1 (Theorem 1).

    Attributes:
      gamma: exponent of the decay, 0 or more.
      alpha: time over which the rate stays near its peak, in updates of the first batch size.

    Examples:
      >>> schedules.Power(peak=1.0, gamma=0.5).evaluate([0, 3, 99])
      array([1. , 0.5, 0.1])

    Source: Theorem 1 (alpha = 1); Section 4, "Architecture and Dataset" (gamma = 1/2).
    """

    peak: float
    gamma: float
    alpha: float = 1.0
    warmup: Time = 0
    warmup_init: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = checks.is_number(self.gamma) and 0 <= self.gamma < 1e6
        checks.require(ok, "gamma", self.gamma, "0 or more")
        checks.require_positive("alpha", self.alpha)

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the power law from the end of the warmup on, and the peak before it."""
        base = self.alpha / (xp.maximum(t - self.warmup, 0) + self.alpha)
        if self.gamma == 0:
            return self.peak * xp.ones_like(base)
        # A square root is correctly rounded; a general power is not.
        return self.peak * (xp.sqrt(base) if self.gamma == 0.5 else base**self.gamma)


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Schedule):
    """Inverse square root after a linear warmup: `Power` with gamma = 1/2.

        eta_t = peak * sqrt(alpha / (t - warmup + alpha))

    Attributes:
      alpha: time over which the rate stays near its peak, in updates of the first batch size.

    Examples:
      >>> schedules.inverse_sqrt(1.0, alpha=100, warmup=10).evaluate([0, 10, 310])
      array([0.1, 1. , 0.5])

    Source: Section 4, "Architecture and Dataset".
    """

    peak: float
    alpha: float
    warmup: Time = 0
    warmup_init: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.require_positive("alpha", self.alpha)

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the inverse square root from the end of the warmup on."""
        return self.peak * xp.sqrt(self.alpha / (xp.maximum(t - self.warmup, 0) + self.alpha))


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Cosine decay after a linear warmup: the baseline of the paper.

        eta_t = peak * (floor + (1 - floor) * (1 + cos(pi * u)) / 2)
        u = (t - warmup) / (horizon - warmup)

    Attributes:
      floor: learning rate at the horizon over the peak.

    Examples:
      >>> schedules.cosine(1.0, horizon=110, warmup=10).evaluate([10, 60, 110])
      array([1.  , 0.55, 0.1 ])

    Source: Section 4, "Training and evaluation details".
    """

    shape: ClassVar[DecayShape] = "cosine"

    peak: float
    horizon: Time  # pyright: ignore[reportIncompatibleVariableOverride]
    warmup: Time = 0
    warmup_init: float = 0.1
    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.require_fraction("floor", self.floor)
        allowed = f"later than the end of the warmup, {self.warmup}"
        checks.require(self.warmup < self.horizon, "horizon", self.horizon, allowed)

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the decay from the end of the warmup to the horizon."""
        factor = _decay_factor(self.shape, t, self.warmup, self.horizon, xp)
        return self.peak * (self.floor + (1 - self.floor) * factor)


@dataclasses.dataclass(frozen=True)
class Linear(Cosine):
    """Linear decay after a linear warmup.

        eta_t = peak * (floor + (1 - floor) * (1 - u))
        u = (t - warmup) / (horizon - warmup)

    Examples:
      >>> schedules.linear(1.0, horizon=100, floor=0.0).evaluate([0, 25, 100])
      array([1.  , 0.75, 0.  ])
    """

    shape: ClassVar[DecayShape] = "linear"


@dataclasses.dataclass(frozen=True)
class Decay(Schedule):
    """Any schedule, the trunk, up to time `start`, then a decay to `floor * peak` at `horizon`.

        eta_t = trunk(t)                                             for t <= start
        eta_t = end + (trunk(start) - end) * shape(u)                for start <= t <= horizon

    with `end = floor * trunk.peak`, `u = (t - start) / (horizon - start)` and shape(u) one of
    `1 - u` (linear), `1 - sqrt(u)` (1-sqrt) and `(1 + cos(pi u)) / 2` (cosine).

    Examples:
      An optimizer state holds nothing of a schedule but Optax's update count. So a run can be
      trained with `trunk`, and its optimizer state continued with `branch`:

      >>> trunk = schedules.inverse_sqrt(1.0, alpha=300)
      >>> branch = schedules.Decay(trunk, start=900, horizon=1_000, floor=0.0)
      >>> branch.evaluate([900, 950, 1_000])
      array([0.5 , 0.25, 0.  ])
    """

    trunk: Schedule
    start: Time
    horizon: Time  # pyright: ignore[reportIncompatibleVariableOverride]
    floor: float = 0.1
    shape: DecayShape = "linear"

    def __post_init__(self) -> None:
        checks.conform_to_types(self)
        checks.require(isinstance(self.trunk, Schedule), "trunk", self.trunk, "a schedule")
        checks.require_count("start", self.start)
        checks.require_count("horizon", self.horizon)
        checks.require_fraction("floor", self.floor)
        allowed = f"later than the start of the decay, {self.start}"
        checks.require(self.start < self.horizon, "horizon", self.horizon, allowed)
        end = self.trunk.end
        if end is not None and self.start > end:
            raise ValueError(f"the decay starts at {self.start}, after its trunk's end at {end}")
        if self._start_rate < self._end_rate * (1 - 1e-12):
            raise ValueError(
                f"the decay would rise: its trunk is at {self._start_rate:g} at time {self.start}, "
                f"under the floor of {self.floor:g} x peak = {self._end_rate:g}. Choose a lower "
                "floor"
            )

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The peak of the trunk."""
        return self.trunk.peak

    @property
    def warmup_end(self) -> int:
        """The time at which the warmup of the trunk ends."""
        return self.trunk.warmup_end

    @property
    def warmup_init(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The first rate of the trunk, as a fraction of the rate at the end of the warmup."""
        return getattr(self.trunk, "warmup_init", 0.0)

    @functools.cached_property
    def _start_rate(self) -> float:
        return float(self.trunk.evaluate(self.start))

    @property
    def _end_rate(self) -> float:
        return self.floor * self.trunk.peak

    def remaining_fraction(self, times: Any) -> np.ndarray:
        """Returns the rate over the rate at the start of the decay."""
        times = self._read_times(times)
        before = self.trunk.remaining_fraction(np.minimum(times, self.start))
        if not self._start_rate:
            return before
        return before * self.evaluate(np.maximum(times, self.start)) / self._start_rate

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        return self.formula(t, xp)  # the trunk has the warmup

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the rate of the trunk, then the decay."""
        # `where` computes both branches, so each gets times inside its own domain.
        before = self.trunk._rate(xp.minimum(t, self.start), xp)
        factor = _decay_factor(self.shape, t, self.start, self.horizon, xp)
        after = self._end_rate + (self._start_rate - self._end_rate) * factor
        return xp.where(t <= self.start, before, after)


@dataclasses.dataclass(frozen=True)
class WSD(Schedule):
    """Warmup-stable-decay: constant until `start`, then a decay to `floor * peak` at `horizon`.

    It is the `Decay` of a constant rate.

    Attributes:
      start: start of the decay; by default 90% of the horizon.
      floor: learning rate at the horizon over the peak.
      shape: shape of the decay.

    Examples:
      >>> schedules.wsd(1.0, horizon=100).evaluate([0, 90, 95, 100])
      array([1.  , 1.  , 0.55, 0.1 ])

    Source: Section 4, "Fixed run comparison" (linear to 10% of the peak over the last 10%).
    """

    peak: float
    horizon: Time  # pyright: ignore[reportIncompatibleVariableOverride]
    start: Time | None = None
    warmup: Time = 0
    warmup_init: float = 0.1
    floor: float = 0.1
    shape: DecayShape = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        start = self._decay.start
        allowed = f"over before the decay starts at {start}"
        checks.require(self.warmup <= start, "warmup", self.warmup, allowed)

    @functools.cached_property
    def _decay(self) -> Decay:
        start = -(-9 * self.horizon // 10) if self.start is None else self.start
        trunk = Constant(self.peak, self.warmup, self.warmup_init)
        return Decay(trunk, start, self.horizon, self.floor, self.shape)

    def remaining_fraction(self, times: Any) -> np.ndarray:
        """Returns the rate over the constant rate."""
        return self._decay.remaining_fraction(times)

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        return self.formula(t, xp)  # the constant rate has the warmup

    def formula(self, t: Any, xp: ModuleType) -> Any:
        """Returns the constant rate, then the decay."""
        return self._decay.formula(t, xp)


# The names of the schedules in a configuration, which are also constructors in Optax's style.
constant, power, inverse_sqrt = Constant, Power, InverseSqrt
cosine, linear, wsd = Cosine, Linear, WSD


def _decay_factor(shape: DecayShape, t: Any, start: int, horizon: int, xp: ModuleType) -> Any:
    """The decay from 1 at time `start` to 0 at time `horizon`.

    No float32 subtraction cancels digits: times are subtracted as integers, and near the horizon
    each shape is a function of the remaining time.
    """
    done = xp.clip(t - start, 0, horizon - start) / (horizon - start)
    remaining = xp.clip(horizon - t, 0, horizon - start) / (horizon - start)
    if shape == "cosine":
        return xp.sin(0.5 * math.pi * remaining) ** 2  # = (1 + cos(pi * done)) / 2
    if shape == "1-sqrt":
        return remaining / (1 + xp.sqrt(done))  # = 1 - sqrt(done)
    return remaining
