"""Functional scaling law: the loss of a run as a function of its learning rates.

A law is a frozen dataclass of its parameters. It predicts the loss at any step of a run with any
schedule of `schedules`, of the live weights and of any average. Losses are in nats per token, steps
count updates done.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.schedules import Schedule
from anytime_lab.forecast import linear_modes
from anytime_lab.forecast.update_blocks import group


class LossTerms(NamedTuple):
    """Terms of a functional law in nats, each float64[s, 1 + a]: live weights, then averages."""

    signal: np.ndarray
    noise: np.ndarray
    drift: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Their sum: a loss without the floor."""
        return self.signal + self.noise + self.drift


@dataclasses.dataclass(frozen=True)
class FunctionalLaw:
    """Functional scaling law, of the live weights and of any average of them.

    Near a minimum, SGD on a quadratic loss is a sum over directions. In a direction of curvature
    lambda the distance to the minimum decays as exp(-lambda T), T the sum of the rates; every
    update adds noise in proportion to its squared rate, spread evenly over it from T(k-1) to T(k),
    which decays likewise. Over directions with a power-law density these become power laws:

        L(t) = floor + signal * (T(t) + signal_time)^-signal_exponent
               + noise * sum_{k <= t} eta_k * integral_{T(k-1)}^{T(k)} K(T(t) - s) ds
        K(T) = (1 + noise_rate * T)^-noise_exponent

    An average with the averaging kernel w has
    in each direction the average over w of the distance to the minimum, and of the noise, most of
    which cancels. It lags behind where the minimum itself moves, which costs

        drift * Var_w(log T)

    Rates are relative, `eta_t / sqrt(1 + weight_growth * sum_{s<t} eta_s^2)`: when an optimizer
    normalizes its updates, weights grow as a random walk, and updates shrink relative to them. In
    sharp directions, which forget within ten updates, noise enters and decays at the original
    rates, as the curvature grows with the weights.

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
        """Returns the terms from the responses of the modes, computed with this `weight_growth`."""
        weights = linear_modes.power_weights(decay_rates, self.signal_exponent, self.signal_time)
        kernel = linear_modes.kernel_weights(decay_rates, self.noise_exponent, self.noise_rate)
        return LossTerms(
            self.signal * (signal @ weights), self.noise * (noise @ kernel), self.drift * drift
        )
