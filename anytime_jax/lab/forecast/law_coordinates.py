"""Coordinates of laws for their fit: numbers of order 1, with bounds, priors and starts."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytime_jax.lab.forecast.laws import MultiPowerLaw, PowerLaw
from anytime_jax.lab.forecast.rate_sums import RateSums


class Coordinates(abc.ABC):
    """Numbers of order 1, whatever the unit of the rates, that stand for the parameters of a law.

    They are the floor, the logarithms of the other terms at the last loss, and those of parameters
    that are positive.

    Attributes:
      bounds: the least and the largest value of each.
      centers: the mean of a normal prior of each.
      spreads: its standard deviation, infinite where there is no prior.
    """

    bounds: tuple[Sequence[float], Sequence[float]]
    centers: Sequence[float]
    spreads: Sequence[float]

    def __init__(self, sums: Sequence[RateSums], losses: np.ndarray):
        self.low, self.high = np.quantile(losses, [0.02, 0.98]).tolist()
        self.top = float(losses.max())

    @abc.abstractmethod
    def law(self, x: np.ndarray) -> Any:
        """The law at a point."""

    @abc.abstractmethod
    def derivatives(self, x: np.ndarray) -> np.ndarray:
        """The derivatives of the law's parameters, in rows, by the coordinates."""

    @abc.abstractmethod
    def starts(self) -> list[np.ndarray]:
        """Points to start from."""

    def _gaps(self) -> list[float]:
        """Distances of the floor below the lowest loss, to start from."""
        span = max(self.high - self.low, 1e-3 * self.low)
        return [min(share * span, 0.9 * self.low) for share in (0.2, 0.8)]


class _PowerCoordinates(Coordinates):
    def __init__(self, sums: Sequence[RateSums], losses: np.ndarray):
        super().__init__(sums, losses)
        self.log_end = np.log(max(x.steps.max() for x in sums))
        self.bounds = [0.0, -20.0, -5.0], [self.top, 10.0, 2.0]
        self.centers, self.spreads = [0.0] * 3, [np.inf] * 3

    def law(self, x: np.ndarray) -> PowerLaw:
        exponent = np.exp(x[2])
        return PowerLaw(float(x[0]), float(np.exp(x[1] + exponent * self.log_end)), float(exponent))

    def derivatives(self, x: np.ndarray) -> np.ndarray:
        law = self.law(x)
        return np.array(
            [
                [1.0, 0.0, 0.0],
                [0.0, law.scale, law.scale * self.log_end * law.exponent],
                [0.0, 0.0, law.exponent],
            ]
        )

    def starts(self) -> list[np.ndarray]:
        return [
            np.array([self.low - gap, np.log(gap), np.log(exponent)])
            for gap in self._gaps()
            for exponent in (0.3, 0.8)
        ]


class _MultiPowerCoordinates(Coordinates):
    def __init__(self, sums: Sequence[RateSums], losses: np.ndarray):
        super().__init__(sums, losses)
        self.log_end = np.log(max(x.totals.max() for x in sums))
        self.log_peak = np.log(max(x.rates.max() for x in sums))
        steps = max(x.steps.max() for x in sums)
        self.starting_scales = np.log([steps / 500, steps / 10])
        # A reduction gains in a tenth of an update at least, and in a hundred runs at most.
        highest = np.log(10 * steps)
        self.bounds = (
            [0.0, -20.0, -5.0, -20.0, np.log(0.01), -5.0, -1.0],
            [self.top, 10.0, 2.0, 10.0, highest, 3.0, 3.0],
        )
        # One or two reductions do not tell a slow gain from a large one, so weak priors do: the
        # peak costs about 0.1 nats, which a reduction begins to gain within 20 updates.
        self.centers = [0.0, 0.0, 0.0, np.log(0.1), np.log(0.05 * steps), np.log(0.5), 0.5]
        self.spreads = [np.inf, np.inf, np.inf, 1.5, 2.0, 0.5, 0.3]

    def law(self, x: np.ndarray) -> MultiPowerLaw:
        exponent = np.exp(x[2])
        values = (
            x[0],
            np.exp(x[1] + exponent * self.log_end),
            exponent,
            np.exp(x[3] - self.log_peak),
            np.exp(x[4] + x[6] * self.log_peak - self.log_end),
            np.exp(x[5]),
            x[6],
        )
        return MultiPowerLaw(*map(float, values))

    def derivatives(self, x: np.ndarray) -> np.ndarray:
        law = self.law(x)
        change = np.diag(
            [1.0, law.scale, law.exponent, law.drop, law.drop_scale, law.drop_exponent, 1.0]
        )
        change[1, 2] = law.scale * self.log_end * law.exponent
        change[4, 6] = law.drop_scale * self.log_peak
        return change

    def starts(self) -> list[np.ndarray]:
        return [
            np.array([self.low - gap, np.log(gap), np.log(0.5), np.log(gap), scale, -0.7, 0.5])
            for gap in self._gaps()
            for scale in self.starting_scales
        ]


def coordinates_of(law_type: type, sums: Sequence[RateSums], losses: np.ndarray) -> Coordinates:
    """Returns the coordinates of a law for a fit to losses, with the sums of rates of each run."""
    kinds = {PowerLaw: _PowerCoordinates, MultiPowerLaw: _MultiPowerCoordinates}
    return kinds[law_type](sums, losses)
