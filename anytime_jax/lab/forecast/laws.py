"""Laws of the loss: the loss of a run as a function of its learning rates.

A law is a frozen dataclass of its parameters. It predicts the loss at any step of a run with any
schedule of `schedules`:

    >>> law = PowerLaw(floor=2.0, scale=3.0, exponent=0.5)
    >>> law.losses(schedules.constant(1.0), [1, 9])
    array([5., 3.])

Losses are in nats per token, steps count updates done, rates are those of the schedule.
"""

import abc
import dataclasses
from typing import NamedTuple

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.lab.forecast import linear_modes
from anytime_jax.lab.forecast.rate_sums import RateSums, sum_rates
from anytime_jax.lab.forecast.update_blocks import group
from anytime_jax.schedules import Schedule

_LEAST_RATE = 1e-100  # of a reduction; a rate of 0 has a power of infinity


class Law(abc.ABC):
    """The loss of the live weights of a run, as a function of its schedule."""

    @abc.abstractmethod
    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns float64 losses after `steps` updates, positive integers of any order: [n]."""


class RateSumLaw(Law):
    """A law that is a closed formula of sums of rates, with its derivatives."""

    @abc.abstractmethod
    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and their derivatives by each parameter: float64 [n], [n, parameters]."""

    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the losses; the changes of the rate within a block of updates count as one."""
        steps = np.asarray(steps)
        return self.evaluate(sum_rates(schedule, steps.ravel()))[0].reshape(steps.shape)

    def gradients(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the derivatives of the losses by each parameter, in the order of the fields."""
        steps = np.asarray(steps)
        _, gradients = self.evaluate(sum_rates(schedule, steps.ravel()))
        return gradients.reshape(*steps.shape, -1)


@dataclasses.dataclass(frozen=True)
class PowerLaw(RateSumLaw):
    """Power law of the number of updates, whatever their rates: the baseline.

    L(t) = floor + scale * t^-exponent
    """

    floor: float
    scale: float
    exponent: float

    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the losses; the schedule makes no difference."""
        del schedule
        return _power(np.asarray(steps, float), self.floor, self.scale, self.exponent)[0]

    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and derivatives."""
        return _power(sums.steps, self.floor, self.scale, self.exponent)


@dataclasses.dataclass(frozen=True)
class MultiPowerLaw(RateSumLaw):
    """Multi-power law: a power of the sum of rates, minus what each reduction of the rate gains.

        L(t) = floor + scale * S(t)^-exponent
               - drop * sum_{k <= t} (eta_{k-1} - eta_k) * G(eta_k^-rate_exponent * S_k(t))
        G(x) = 1 - (1 + drop_scale * x)^-drop_exponent

    S(t) is the sum of the rates up to t, S_k(t) that from k on. The sum has the warmup in it,
    whose terms are negative: `floor` is the loss at a rate of zero.

    Source: arXiv 2503.12811, equation 1.
    """

    floor: float
    scale: float
    exponent: float
    drop: float
    drop_scale: float
    drop_exponent: float
    rate_exponent: float

    def evaluate(self, sums: RateSums) -> tuple[np.ndarray, np.ndarray]:
        """Returns losses and derivatives; the loss is infinite before the first rate above 0."""
        power, power_gradients = _power(sums.totals, self.floor, self.scale, self.exponent)
        logs = np.log(np.maximum(sums.rates, _LEAST_RATE))
        x = self.drop_scale * np.exp(-self.rate_exponent * logs) * sums.since
        grown = np.log1p(x)
        left = np.exp(-self.drop_exponent * grown)
        share = x / (1 + x) * left  # the derivative of G by log(x), over drop_exponent
        gain = -np.expm1(-self.drop_exponent * grown) @ sums.reductions
        by_log_x = self.drop * self.drop_exponent * share * sums.reductions
        gradients = np.column_stack(
            [
                power_gradients,
                -gain,
                -by_log_x.sum(1) / self.drop_scale,
                -self.drop * ((grown * left) @ sums.reductions),
                by_log_x @ logs,
            ]
        )
        return power - self.drop * gain, gradients


def _power(
    x: np.ndarray, floor: float, scale: float, exponent: float
) -> tuple[np.ndarray, np.ndarray]:
    """`floor + scale * x^-exponent`, and its derivatives: [n], [n, 3]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(x)
        power = np.exp(-exponent * logs)
        gradients = np.column_stack([np.ones_like(x), power, -scale * logs * power])
        return floor + scale * power, gradients


class LossTerms(NamedTuple):
    """The terms of a functional law in nats, float64[s, 1 + a] each: live, then of averages."""

    signal: np.ndarray
    noise: np.ndarray
    drift: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Their sum: a loss without the floor."""
        return self.signal + self.noise + self.drift


@dataclasses.dataclass(frozen=True)
class FunctionalLaw(Law):
    """Functional scaling law, of the live weights and of any average of them.

    Near a minimum, SGD on a quadratic loss is a sum over directions. In a direction of curvature
    lambda the distance to the minimum decays as exp(-lambda T), T the sum of the rates; every
    update adds noise in proportion to its squared rate, which decays likewise. Over directions
    with a power-law density these become power laws:

        L(t) = floor + signal * (T(t) + signal_time)^-signal_exponent
               + noise * sum_{k <= t} eta_k^2 * (1 + noise_rate * (T(t) - T(k)))^-noise_exponent

    with the noise of an update spread evenly over it. An average with the averaging kernel w has
    in each direction the average over w of the distance to the minimum, and of the noise, most of
    which cancels. It lags behind where the minimum itself moves, which costs

        drift * Var_w(log T)

    Rates are relative, `eta_t / sqrt(1 + weight_growth * sum_{s<t} eta_s^2)`: where an optimizer
    normalises its updates, weights grow as a random walk and move ever less for their size. In
    sharp directions, which forget within ten updates, noise enters and decays at the rates
    as they are, as the curvature grows with the weights.

    Source: arXiv 2509.19189 for the live weights; `lab.theory` has the exact linear model.
    """

    floor: float
    signal: float
    signal_exponent: float
    signal_time: float
    noise: float
    noise_rate: float
    noise_exponent: float
    weight_growth: float = 0.0
    drift: float = 0.0

    def losses(
        self, schedule: Schedule, steps: np.typing.ArrayLike, average: Rule | None = None
    ) -> np.ndarray:
        """Returns the losses of the live weights, or of an average."""
        steps = np.asarray(steps)
        blocks = group(schedule, steps.ravel())
        rules = () if average is None else (average,)
        found = linear_modes.respond(blocks, steps.ravel(), rules, np.array([self.weight_growth]))
        parts = found.signal[0], found.noise[0], found.drift[0]
        losses = self.floor + self.terms(found.decay_rates, *parts).total
        return losses[:, -1].reshape(steps.shape)

    def terms(
        self, decay_rates: np.ndarray, signal: np.ndarray, noise: np.ndarray, drift: np.ndarray
    ) -> LossTerms:
        """Returns the terms, from the responses of modes to updates with this `weight_growth`."""
        weights = linear_modes.power_weights(decay_rates, self.signal_exponent, self.signal_time)
        kernel = linear_modes.kernel_weights(decay_rates, self.noise_exponent, self.noise_rate)
        return LossTerms(
            self.signal * (signal @ weights), self.noise * (noise @ kernel), self.drift * drift
        )
