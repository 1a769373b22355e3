"""Fit of a power law or a multi-power law to the losses of the live weights of some runs.

`fit` minimizes a Huber loss of the residuals of log losses, from several starts, in `Coordinates`
of order 1, with weak priors for what few curves do not determine.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from scipy import optimize

from anytime_jax.errors import RunError
from anytime_lab.forecast.loss_history import LossHistory
from lab.benchmarks.rival_laws import MultiPowerLaw, PowerLaw, RateSums, sum_rates

L = TypeVar("L", PowerLaw, MultiPowerLaw)

_HUBER = 1e-3  # the weight of a log residual falls from this size on, as in arXiv 2503.12811
_RATIO = 0.01  # relative length of blocks of updates: errors below 1e-4 nats, half the time
_CORRELATED = 20  # so many losses of a curve count as one independent loss
_EVALUATIONS = 100  # evaluations of the law in one fit
_SMALLEST = 1e-9  # smallest loss of which the logarithm is taken


class Coordinates(abc.ABC):
    """Parameters of a law as numbers of order 1, whatever the unit of the rates.

    They are the floor, and the logarithms of the other terms at the last loss and of positive
    parameters.

    Attributes:
      bounds: the least and the largest value of each coordinate.
      centers: the mean of each coordinate's normal prior.
      spreads: the standard deviation of the prior, infinite without a prior.
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


class PowerCoordinates(Coordinates):
    """Coordinates of a power law."""

    def __init__(self, sums: Sequence[RateSums], losses: np.ndarray):
        super().__init__(sums, losses)
        self.log_end = np.log(max(x.steps.max() for x in sums))
        self.bounds = [0.0, -20.0, -5.0], [self.top, 10.0, 2.0]
        self.centers, self.spreads = [0.0] * 3, [np.inf] * 3

    def law(self, x: np.ndarray) -> PowerLaw:
        """The law at a point."""
        exponent = np.exp(x[2])
        return PowerLaw(float(x[0]), float(np.exp(x[1] + exponent * self.log_end)), float(exponent))

    def derivatives(self, x: np.ndarray) -> np.ndarray:
        """The derivatives of the law's parameters, in rows, by the coordinates."""
        law = self.law(x)
        return np.array(
            [
                [1.0, 0.0, 0.0],
                [0.0, law.scale, law.scale * self.log_end * law.exponent],
                [0.0, 0.0, law.exponent],
            ]
        )

    def starts(self) -> list[np.ndarray]:
        """Points to start from."""
        return [
            np.array([self.low - gap, np.log(gap), np.log(exponent)])
            for gap in self._gaps()
            for exponent in (0.3, 0.8)
        ]


class MultiPowerCoordinates(Coordinates):
    """Coordinates of a multi-power law."""

    def __init__(self, sums: Sequence[RateSums], losses: np.ndarray):
        super().__init__(sums, losses)
        self.log_end = np.log(max(x.totals.max() for x in sums))
        self.log_peak = np.log(max(x.rates.max() for x in sums))
        steps = max(x.steps.max() for x in sums)
        self.starting_scales = np.log([steps / 500, steps / 10])
        # The gain of a reduction takes at least a tenth of an update, and at most a hundred runs.
        highest = np.log(10 * steps)
        self.bounds = (
            [0.0, -20.0, -5.0, -20.0, np.log(0.01), -5.0, -1.0],
            [self.top, 10.0, 2.0, 10.0, highest, 3.0, 3.0],
        )
        # One or two reductions do not distinguish a slow gain from a large one, so weak priors
        # assume that the peak costs about 0.1 nats, which a reduction begins to gain within 20
        # updates.
        self.centers = [0.0, 0.0, 0.0, np.log(0.1), np.log(0.05 * steps), np.log(0.5), 0.5]
        self.spreads = [np.inf, np.inf, np.inf, 1.5, 2.0, 0.5, 0.3]

    def law(self, x: np.ndarray) -> MultiPowerLaw:
        """The law at a point."""
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
        """The derivatives of the law's parameters, in rows, by the coordinates."""
        law = self.law(x)
        change = np.diag(
            [1.0, law.scale, law.exponent, law.drop, law.drop_scale, law.drop_exponent, 1.0]
        )
        change[1, 2] = law.scale * self.log_end * law.exponent
        change[4, 6] = law.drop_scale * self.log_peak
        return change

    def starts(self) -> list[np.ndarray]:
        """Points to start from."""
        return [
            np.array([self.low - gap, np.log(gap), np.log(0.5), np.log(gap), scale, -0.7, 0.5])
            for gap in self._gaps()
            for scale in self.starting_scales
        ]


def fit(law_type: type[L], histories: Sequence[LossHistory]) -> L:
    """Fits one law to the losses of all histories after their warmup, which are above 0.

    Raises a RunError if no start converges.
    """
    curves = [_curve(history.after_warmup()) for history in histories]
    losses = np.concatenate([curve.losses for curve in curves])
    kind = {PowerLaw: PowerCoordinates, MultiPowerLaw: MultiPowerCoordinates}[law_type]
    coordinates = kind([curve.sums for curve in curves], losses)
    ends = [_minimize(coordinates, curves, np.log(losses), x) for x in coordinates.starts()]
    converged = [end for end in ends if end is not None]
    if not converged:
        raise RunError(f"no fit of a {law_type.__name__} to {len(losses)} losses converges")
    return coordinates.law(min(converged, key=lambda end: end.cost).x)


@dataclasses.dataclass(frozen=True, eq=False)
class _Curve:
    """Losses of one run in the order of their steps, and the sums of its rates there."""

    sums: RateSums
    losses: np.ndarray


def _curve(history: LossHistory) -> _Curve:
    order = np.argsort(history.last, kind="stable")
    return _Curve(sum_rates(history.schedule, history.last[order], _RATIO), history.losses[order])


def _minimize(
    coordinates: Coordinates,
    curves: Sequence[_Curve],
    logs: np.ndarray,
    start: np.ndarray,
) -> Any:
    """The result of `least_squares`, or None if it did not converge."""
    # A prior adds residuals, to which the Huber loss is not applied.
    prior = _HUBER * np.sqrt(_CORRELATED) / np.array(coordinates.spreads)

    def residuals(x: np.ndarray) -> np.ndarray:
        of_prior = prior * (x - np.array(coordinates.centers))
        return np.concatenate([_residuals(coordinates, curves, logs, x), of_prior])

    def rho(squares: np.ndarray) -> np.ndarray:
        bent = (squares > 1) & (np.arange(len(squares)) < len(logs))
        root = np.sqrt(np.where(bent, squares, 1.0))
        value, slope = np.where(bent, 2 * root - 1, squares), np.where(bent, 1 / root, 1.0)
        return np.stack([value, slope, np.where(bent, -0.5 / root**3, 0.0)])

    result = optimize.least_squares(
        residuals,
        np.clip(start, *coordinates.bounds),
        jac=lambda x: np.vstack([_jacobian(coordinates, curves, x), np.diag(prior)]),  # pyright: ignore[reportArgumentType]
        bounds=coordinates.bounds,
        loss=rho,  # pyright: ignore[reportArgumentType]
        f_scale=_HUBER,
        x_scale="jac",
        max_nfev=_EVALUATIONS,
    )
    return result if result.status > 0 and np.isfinite(result.cost) else None


def _residuals(
    coordinates: Coordinates, curves: Sequence[_Curve], logs: np.ndarray, x: np.ndarray
) -> np.ndarray:
    law = coordinates.law(x)
    fitted = np.concatenate([law.evaluate(curve.sums)[0] for curve in curves])
    return np.log(np.maximum(fitted, _SMALLEST)) - logs


def _jacobian(coordinates: Coordinates, curves: Sequence[_Curve], x: np.ndarray) -> np.ndarray:
    law, change = coordinates.law(x), coordinates.derivatives(x)
    parts = [law.evaluate(curve.sums) for curve in curves]
    losses = np.concatenate([losses for losses, _ in parts])[:, None]
    gradients = np.concatenate([gradients for _, gradients in parts]) @ change
    return np.where(losses > _SMALLEST, gradients / np.maximum(losses, _SMALLEST), 0.0)
