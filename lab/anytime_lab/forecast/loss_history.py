"""Losses of a run so far, with the learning rates of its updates."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anytime_jax.averaging import LIVE, Rule
from anytime_jax.checks import LARGEST_COUNT
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule

MIN_LOSSES = 8  # number of losses after the warmup
LONGEST = 100  # multiples of the run so far that a forecast may reach
# Ranges in which the fit is computed. It has an error of 0.004 nats, which smaller losses are
# within, and bounds its parameters, which have units of the rates.
_LOSSES = 1e-3, 1e6
_PEAKS = 1e-12, 1e3
_LAST_STEP = LARGEST_COUNT // LONGEST - 1  # every point of a forecast is then a count


@dataclasses.dataclass(frozen=True)
class RecordedRates(Schedule):
    """Learning rates from a log, interpolated linearly between its steps, constant outside.

    Attributes:
      steps: updates done when each rate was recorded, increasing.
      rates: the rate at each of them.
    """

    steps: tuple[int, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Leaves the check of the peak to the history that has these rates."""
        for step, rate in zip(self.steps, self.rates, strict=True):
            if not 0 <= rate < math.inf:
                raise InputError(
                    f"the learning rate at step {step:,} is {rate}: give a number from 0"
                )

    @property
    def peak(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The largest recorded rate."""
        return max(self.rates)

    def formula(self, t: Any, xp: Any) -> Any:
        """Returns the recorded rates, interpolated."""
        return xp.interp(t, xp.asarray(self.steps), xp.asarray(self.rates))


@dataclasses.dataclass(frozen=True, eq=False)
class LossHistory:
    """Losses of one run, live and of its averages, in nats per token.

    Attributes:
      schedule: its learning rates by update, defined at least to the last loss.
      warmup_steps: updates of its warmup; losses before its end are left out.
      first: int64[n]; a loss is the mean over the iterates after updates `first` to `last`.
      last: int64[n]; equal to `first` for the loss after one update.
      losses: float64[n].
      labels: n weight labels, `last` for the live weights.
      training: bool[n], whether a loss is on training batches rather than on held-out text.
      rules: the averaging rule of each label but `last`, by update.
    """

    schedule: Schedule
    warmup_steps: int
    first: np.ndarray
    last: np.ndarray
    losses: np.ndarray
    labels: tuple[str, ...]
    training: np.ndarray
    rules: Mapping[str, Rule] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises an InputError for values outside of the ranges in which the fit is computed."""
        low, high = _LOSSES
        for step, loss in zip(self.last, self.losses, strict=True):
            if not low <= loss <= high:
                raise InputError(
                    f"the loss at step {step:,} is {loss}, and a forecast is of losses from "
                    f"{low:g} to {high:g} nats: leave that row out"
                )
        low, high = _PEAKS
        if not low <= self.schedule.peak <= high:
            raise InputError(
                f"the largest learning rate is {self.schedule.peak}, and a forecast is for one "
                f"from {low:g} to {high:g}: give the rates of that run"
            )
        if len(self.last) and self.step > _LAST_STEP:
            raise InputError(
                f"the last loss is at step {self.step:,}, and a forecast is of runs of up to "
                f"{_LAST_STEP:,} updates: give the column that counts updates, not tokens"
            )

    @property
    def step(self) -> int:
        """The step of the latest loss."""
        return int(self.last.max())

    def select(self, kept: np.ndarray) -> "LossHistory":
        """Returns the losses where `kept`, bool[n], is true."""
        labels = tuple(label for label, keep in zip(self.labels, kept, strict=True) if keep)
        arrays = {x: getattr(self, x)[kept] for x in ("first", "last", "losses", "training")}
        return dataclasses.replace(self, labels=labels, **arrays)

    def until(self, step: int) -> "LossHistory":
        """Returns the losses up to a step."""
        return self.select(self.last <= step)

    @property
    def live(self) -> np.ndarray:
        """Whether each loss is of the live weights: bool[n]."""
        return np.array([label == LIVE for label in self.labels], bool)

    def after_warmup(self) -> "LossHistory":
        """Returns the losses after the warmup, which laws leave out."""
        return self.select(self.first >= self.warmup_steps)

    def check(self, least: int = MIN_LOSSES) -> "LossHistory":
        """Returns the losses after the warmup.

        Raises an InputError if they have fewer than `least` steps, or rise.
        """
        history = self.after_warmup()
        live = history.select(history.live)
        steps = len(np.unique(live.last))
        if steps < least:
            raise InputError(
                f"too few losses for a forecast: {steps} after the warmup of {self.warmup_steps:,} "
                f"updates, and it takes {least}: train on, or record more often"
            )
        # Only losses of one kind are compared.
        most = live.select(live.training == (live.training.mean() > 0.5))
        curve = most.losses[np.argsort(most.last, kind="stable")]
        third = max(len(curve) // 3, 1)
        early, late = float(np.median(curve[:third])), float(np.median(curve[-third:]))
        if late >= early:
            change = "rises" if late > early else "stays"
            raise InputError(
                f"the loss {change}, from {early:.4f} in the first third to {late:.4f} in the last:"
                " a forecast is of a loss in nats that falls"
            )
        return history
