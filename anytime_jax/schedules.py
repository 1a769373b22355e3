"""Learning-rate schedules: horizon-free power laws, their decaying rivals, and WSD.

One clock: every schedule takes `t`, the number of updates already made (Optax's count: the first
update sees 0), and every position in it (`start`, `horizon`, warmup `steps`) is on that same
absolute clock. So parts can be nested in any order and nothing is subtracted twice.

A schedule is a frozen dataclass that Optax can call, under jit or not, in float32:

    optimizer = optax.adam(schedules.inverse_sqrt(peak=3e-3, alpha=51_200, warmup_steps=5_000))

and that `schedule.evaluate(counts)` computes in NumPy float64. The same formula serves both.

A schedule with a horizon N is defined on 0..N. Beyond it (and before 0) a concrete count raises and
a traced one gives NaN: a rate past the end of its schedule is a mistake, not a zero.

Source: Section 4 of the paper (constant, inverse square root, WSD) and its authors' runs (warmup,
floors, and `t` of the inverse square root measured from the end of warmup).
"""

import abc
import dataclasses
import functools
import math
from types import ModuleType
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from anytime_jax.checks import (
    is_number,
    require,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)

DecayShape = Literal["linear", "1-sqrt", "cosine"]


class Schedule(abc.ABC):
    """A learning rate as a function of the number of updates done."""

    peak: float

    @property
    def horizon_steps(self) -> int | None:
        """The last count at which the schedule is defined; None if it never ends."""
        return None

    @abc.abstractmethod
    def _rate(self, t: Any, xp: ModuleType) -> Any:
        """The formula, on integer counts `t` within the domain; `xp` is numpy or jax.numpy."""

    def __call__(self, count: jax.typing.ArrayLike) -> jax.Array:
        """Returns the learning rate at `count` updates done, for use as an Optax schedule.

        Args:
          count: integer number of updates done, any shape, concrete or traced.

        Returns:
          float32 learning rates of the same shape; NaN where a traced count is out of the domain.

        Raises:
          ValueError: if a concrete count is negative or beyond the horizon.
        """
        count = jnp.asarray(count)
        _check_whole(count.dtype)
        count = count.astype(jnp.int32)  # narrower and unsigned counts would wrap round
        if not isinstance(count, jax.core.Tracer):
            self._check(np.asarray(count))
        rate = self._rate(count, jnp).astype(jnp.float32)
        outside = count < 0
        if self.horizon_steps is not None:
            outside |= count > self.horizon_steps
        return jnp.where(outside, jnp.nan, rate)

    def evaluate(self, counts: Any) -> np.ndarray:
        """Returns the learning rates at `counts` in NumPy float64.

        Args:
          counts: integer numbers of updates done, any shape.

        Returns:
          float64 array of the same shape.

        Raises:
          ValueError: if a count is negative or beyond the horizon.
        """
        counts = np.asarray(counts)
        _check_whole(counts.dtype if counts.size else np.dtype(int))
        counts = counts.astype(np.int64)
        self._check(counts)
        return np.asarray(self._rate(counts, np), dtype=np.float64)

    def _check(self, counts: np.ndarray) -> None:
        end = self.horizon_steps
        if counts.size and counts.min() < 0:
            raise ValueError(f"a schedule starts at update count 0; got {counts.min()}")
        if counts.size and end is not None and counts.max() > end:
            raise ValueError(
                f"this {type(self).__name__} schedule ends at update count {end}; got "
                f"{counts.max()}. Stop there, or choose a schedule with a later horizon or none"
            )


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
    r"""The horizon-free power family.

        eta_t = peak * (alpha / (t - start + alpha))^gamma        for t >= start, else peak

    gamma = 0 is the constant rate and gamma = 1/2 the paper's inverse square root. With alpha = 1
    it is `peak / n^gamma`, n = t + 1 counting updates from one: the form of Theorem 1.

    Attributes:
      peak: largest learning rate.
      gamma: exponent of the decay, 0 or more.
      alpha: updates over which the rate stays near its peak, more than 0.
      start: update count at which the decay begins; usually the end of warmup.

    Source: Section 4, "Architecture and Dataset" (gamma = 1/2); Theorem 1 (alpha = 1).
    """

    peak: float
    gamma: float
    alpha: float = 1.0
    start: int = 0

    def __post_init__(self) -> None:
        """Checks every field."""
        require_positive("peak", self.peak)
        require(is_number(self.gamma) and 0 <= self.gamma < 1e6, "gamma", self.gamma, "0 or more")
        require_positive("alpha", self.alpha)
        require_count("start", self.start)

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        base = self.alpha / (xp.maximum(t - self.start, 0) + self.alpha)
        if self.gamma == 0:
            return self.peak * xp.ones_like(base)
        # The square root is correctly rounded; a general power is not.
        return self.peak * (xp.sqrt(base) if self.gamma == 0.5 else base**self.gamma)


@dataclasses.dataclass(frozen=True)
class _Decaying(Schedule):
    """A fall from `peak` at count `start` to `floor * peak` at count `horizon`.

    Attributes:
      peak: learning rate up to `start`.
      horizon: update count at which the schedule ends.
      start: update count at which the decay begins; usually the end of warmup.
      floor: rate at the horizon as a fraction of the peak, between 0 and 1.
    """

    peak: float
    horizon: int
    start: int = 0
    floor: float = 0.1

    _shape: ClassVar[DecayShape]

    def __post_init__(self) -> None:
        """Checks every field."""
        require_positive("peak", self.peak)
        _check_decay(self.start, self.horizon, self.floor)

    @property
    def horizon_steps(self) -> int:
        """The last count at which the schedule is defined."""
        return self.horizon

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        fall = _fall(self._shape, t, self.start, self.horizon, xp)
        return self.peak * (self.floor + (1 - self.floor) * fall)


@dataclasses.dataclass(frozen=True)
class Cosine(_Decaying):
    """Half a cosine from `peak` at `start` to `floor * peak` at `horizon`.

        eta_t = peak * (floor + (1 - floor) * (1 + cos(pi * u)) / 2),  u = (t-start)/(horizon-start)

    Source: the baseline of Section 4 (floor 0.1 in the authors' runs).
    """

    _shape: ClassVar[DecayShape] = "cosine"


@dataclasses.dataclass(frozen=True)
class Linear(_Decaying):
    """A straight line from `peak` at `start` to `floor * peak` at `horizon`."""

    _shape: ClassVar[DecayShape] = "linear"


@dataclasses.dataclass(frozen=True)
class Decay(Schedule):
    """Any trunk schedule up to `start`, then a fall to `floor * peak` at `horizon`.

        eta_t = trunk(t)                                             for t <= start
        eta_t = end + (trunk(start) - end) * shape(u)                for start <= t <= horizon

    with `end = floor * trunk.peak`, `u = (t - start) / (horizon - start)` and shape(u) one of
    `1 - u` (linear), `1 - sqrt(u)` (1-sqrt) and `(1 + cos(pi u)) / 2` (cosine). On a constant trunk
    this is warmup-stable-decay (WSD).

    Attributes:
      trunk: the schedule to decay from.
      start: update count of the branch point.
      horizon: update count at which the decay and the schedule end.
      floor: rate at the horizon as a fraction of the trunk's peak, between 0 and 1.
      shape: form of the decay.

    Source: Section 4 (linear to 10% of the peak over the last 10% of the run).
    """

    trunk: Schedule
    start: int
    horizon: int
    floor: float = 0.1
    shape: DecayShape = "linear"

    def __post_init__(self) -> None:
        """Checks every field."""
        require(isinstance(self.trunk, Schedule), "trunk", self.trunk, "a schedule")
        _check_decay(self.start, self.horizon, self.floor)
        require_choice("shape", self.shape, get_args(DecayShape))
        end = self.trunk.horizon_steps
        if end is not None and self.start > end:
            raise ValueError(f"the decay starts at {self.start}, after its trunk's end at {end}")
        if self._top < self._end * (1 - 1e-12):
            raise ValueError(
                f"the decay would rise: its trunk is at {self._top:g} at update {self.start}, "
                f"under the floor of {self.floor:g} x peak = {self._end:g}. Choose a lower floor"
            )

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The trunk's peak."""
        return self.trunk.peak

    @property
    def horizon_steps(self) -> int:
        """The last count at which the schedule is defined."""
        return self.horizon

    @property
    def _end(self) -> float:
        return self.floor * self.trunk.peak

    @functools.cached_property
    def _top(self) -> float:
        return float(self.trunk.evaluate(self.start))

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        # Both branches of `where` are computed, so each is held inside its own domain.
        before = self.trunk._rate(xp.minimum(t, self.start), xp)
        fall = _fall(self.shape, t, self.start, self.horizon, xp)
        return xp.where(t <= self.start, before, self._end + (self._top - self._end) * fall)


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise to a schedule's value at count `steps`, then that schedule.

        eta_t = schedule(steps) * (init + (1 - init) * t / steps)    for t < steps

    Attributes:
      schedule: the schedule to follow from count `steps` on, on the same absolute clock.
      steps: update count at which the rise ends.
      init: rate at count 0 as a fraction of the rate at the end of the rise, between 0 and 1.

    Source: the authors' runs: from 0.1 of the peak, over 5,000 updates (500 at batch 4096).
    """

    schedule: Schedule
    steps: int
    init: float = 0.1

    def __post_init__(self) -> None:
        """Checks every field."""
        require(isinstance(self.schedule, Schedule), "schedule", self.schedule, "a schedule")
        require_count("steps", self.steps)
        require_fraction("init", self.init)
        end = self.schedule.horizon_steps
        if end is not None and self.steps > end:
            raise ValueError(f"warmup of {self.steps} updates is longer than the schedule's {end}")

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The peak of the schedule under the warmup."""
        return self.schedule.peak

    @property
    def horizon_steps(self) -> int | None:
        """The last count at which the schedule is defined; None if it never ends."""
        return self.schedule.horizon_steps

    @functools.cached_property
    def _top(self) -> float:
        return float(self.schedule.evaluate(self.steps))

    def _rate(self, t: Any, xp: ModuleType) -> Any:
        if self.steps == 0:
            return self.schedule._rate(t, xp)
        rise = self._top * (self.init + (1 - self.init) * (t / self.steps))
        return xp.where(t < self.steps, rise, self.schedule._rate(xp.maximum(t, self.steps), xp))


def power(
    peak: float,
    gamma: float,
    alpha: float = 1.0,
    warmup_steps: int = 0,
    warmup_init: float = 0.1,
) -> Warmup:
    """Returns `peak * (alpha / (t - warmup_steps + alpha))^gamma` after a linear warmup."""
    trunk = Power(peak=peak, gamma=gamma, alpha=alpha, start=warmup_steps)
    return Warmup(trunk, warmup_steps, warmup_init)


def constant(peak: float, warmup_steps: int = 0, warmup_init: float = 0.1) -> Warmup:
    """Returns the constant learning rate after a linear warmup: gamma = 0."""
    return power(peak, 0.0, warmup_steps=warmup_steps, warmup_init=warmup_init)


def inverse_sqrt(
    peak: float, alpha: float, warmup_steps: int = 0, warmup_init: float = 0.1
) -> Warmup:
    """Returns the paper's `peak * sqrt(alpha / (t - warmup_steps + alpha))`: gamma = 1/2."""
    return power(peak, 0.5, alpha, warmup_steps, warmup_init)


def cosine(
    peak: float,
    horizon: int,
    warmup_steps: int = 0,
    warmup_init: float = 0.1,
    floor: float = 0.1,
) -> Warmup:
    """Returns the paper's baseline: warmup, then half a cosine to `floor * peak` at `horizon`."""
    return Warmup(Cosine(peak, horizon, warmup_steps, floor), warmup_steps, warmup_init)


def linear(
    peak: float,
    horizon: int,
    warmup_steps: int = 0,
    warmup_init: float = 0.1,
    floor: float = 0.1,
) -> Warmup:
    """Returns warmup, then a straight line to `floor * peak` at `horizon`."""
    return Warmup(Linear(peak, horizon, warmup_steps, floor), warmup_steps, warmup_init)


def wsd(
    peak: float,
    start: int,
    horizon: int,
    warmup_steps: int = 0,
    warmup_init: float = 0.1,
    floor: float = 0.1,
    shape: DecayShape = "linear",
) -> Decay:
    """Returns warmup-stable-decay: constant until `start`, then `floor * peak` at `horizon`."""
    return Decay(constant(peak, warmup_steps, warmup_init), start, horizon, floor, shape)


def _fall(shape: DecayShape, t: Any, start: int, horizon: int, xp: ModuleType) -> Any:
    """The fall of a decay from 1 at count `start` to 0 at count `horizon`.

    Each shape is written so that float32 cancels nowhere: the counts are subtracted as integers,
    and near the horizon a shape is a function of what remains.
    """
    done = xp.clip(t - start, 0, horizon - start) / (horizon - start)
    left = xp.clip(horizon - t, 0, horizon - start) / (horizon - start)
    if shape == "cosine":
        return xp.sin(0.5 * math.pi * left) ** 2  # = (1 + cos(pi * done)) / 2
    if shape == "1-sqrt":
        return left / (1 + xp.sqrt(done))  # = 1 - sqrt(done)
    return left


def _check_whole(dtype: Any) -> None:
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"an update count is a whole number; got one of type {dtype}")


def _check_decay(start: int, horizon: int, floor: float) -> None:
    require_count("start", start)
    require_count("horizon", horizon)
    require_fraction("floor", floor)
    if start >= horizon:
        raise ValueError(
            f"the decay starts at update {start} and ends at {horizon}: the horizon must be later"
        )
