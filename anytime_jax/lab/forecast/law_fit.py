"""Fit of a law to the losses of the live weights of one or several runs."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from scipy import optimize

from anytime_jax.errors import InputError
from anytime_jax.lab.forecast.law_coordinates import Coordinates, coordinates_of
from anytime_jax.lab.forecast.laws import MultiPowerLaw, PowerLaw, RateSumLaw
from anytime_jax.lab.forecast.loss_history import LossHistory
from anytime_jax.lab.forecast.rate_sums import RateSums, sum_rates

L = TypeVar("L", PowerLaw, MultiPowerLaw)

_HUBER = 1e-3  # residual of a logarithm from which its weight falls, as in arXiv 2503.12811
_RATIO = 0.01  # of the blocks of updates: errors below 1e-4 nats, in half the time
_CORRELATED = 20  # losses of a curve that say as much as one independent one
_AGREEMENT = 1e-3  # of the costs of two fits, relative
_EVALUATIONS = 100  # of the law in one fit
_SMALLEST = 1e-9  # loss that has a logarithm


@dataclasses.dataclass(frozen=True, eq=False)
class LawFit(Generic[L]):
    """A law fitted to losses.

    Attributes:
      law: the best fit.
      cost: mean Huber loss of the residuals of log losses.
      residuals: float64[n], logs of observed minus logs of fitted losses, history by history.
      samples: laws fitted to the fitted losses with the residuals resampled in blocks. What the
        law itself leaves out is not in their spread.
      starts: number of points from which the fit began.
      agreeing: number of them that ended at the same cost.
    """

    law: L
    cost: float
    residuals: np.ndarray
    samples: tuple[L, ...]
    starts: int
    agreeing: int

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard deviation of each parameter over the samples; NaN without samples."""
        if not self.samples:
            return dict.fromkeys(dataclasses.asdict(self.law), np.nan)
        values = np.array([dataclasses.astuple(sample) for sample in self.samples])
        names = [field.name for field in dataclasses.fields(self.law)]
        return dict(zip(names, values.std(0).tolist(), strict=True))


def fit(
    law_type: type[L], histories: Sequence[LossHistory], samples: int = 0, seed: int = 0
) -> LawFit[L]:
    """Fits one law to the losses of the live weights after the warmup of all histories.

    The losses are held-out ones where every history has some, else those of training batches. The
    fit minimises a Huber loss of the residuals of log losses, from several starts, with weak priors
    of what few curves leave open (`law_coordinates`). `samples` laws say how uncertain it is: a
    loss curve's residuals depend on each other, so that they are resampled in blocks of steps.

    Raises an InputError if there are fewer losses than parameters, a loss is not above 0, or no
    start converges.
    """
    curves = _curves(law_type, histories)
    losses = np.concatenate([curve.losses for curve in curves])
    logs = np.log(losses)
    coordinates = coordinates_of(law_type, [curve.sums for curve in curves], losses)
    centers = np.array(coordinates.centers)
    starts = coordinates.starts()
    ends = [_minimise(coordinates, curves, logs, centers, start) for start in starts]
    converged = [end for end in ends if end is not None]
    if not converged:
        raise InputError(
            f"no fit of a {law_type.__name__} to {len(logs)} losses converges from any of "
            f"{len(starts)} starts: give more losses, or those of another run too"
        )
    best = min(converged, key=lambda end: end.cost)
    limit = best.cost * (1 + _AGREEMENT) + 1e-12
    residuals = -_residuals(coordinates, curves, logs, best.x)
    generator = np.random.default_rng(seed)
    spreads = np.nan_to_num(coordinates.spreads, posinf=0.0)
    laws = []
    for _ in range(samples):
        drawn = np.concatenate([_resample(part, generator) for part in _split(residuals, curves)])
        # What the losses do not determine is as uncertain as its prior.
        prior = centers + spreads * generator.standard_normal(len(centers))
        again = _minimise(coordinates, curves, logs - residuals + drawn, prior, best.x)
        if again is not None:
            laws.append(coordinates.law(again.x))
    return LawFit(
        coordinates.law(best.x),
        best.cost / len(logs),
        residuals,
        tuple(laws),
        len(starts),
        sum(end.cost <= limit for end in converged),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Curve:
    """Losses of one run in the order of their steps, and the sums of its rates there."""

    sums: RateSums
    losses: np.ndarray


def _curves(law_type: type[RateSumLaw], histories: Sequence[LossHistory]) -> list[_Curve]:
    needed = len(dataclasses.fields(law_type))  # pyright: ignore[reportArgumentType]
    live = [x.select(x.live) for x in (history.after_warmup() for history in histories)]
    held_out = [x.select(~x.training) for x in live]
    batches = [x.select(x.training) for x in live]
    for chosen in (held_out, batches):
        counts = [len(x.losses) for x in chosen]
        if counts and min(counts) > 0 and sum(counts) >= needed:
            return [_curve(history) for history in chosen]
    raise InputError(
        f"a fit of a {law_type.__name__} takes {needed} losses of the live weights after the "
        "warmup, of one kind and some of every run: there are "
        f"{sum(len(x.losses) for x in held_out)} held-out and "
        f"{sum(len(x.losses) for x in batches)} of training batches"
    )


def _curve(history: LossHistory) -> _Curve:
    # A mean over iterates is about the loss of the middle one.
    steps = np.maximum((history.first + history.last) // 2, 1)
    order = np.argsort(steps, kind="stable")
    losses = history.losses[order]
    if losses.min() <= 0:
        raise InputError(
            f"a loss of {losses.min():g} has no logarithm: a fit takes losses above 0, in nats per "
            "token"
        )
    return _Curve(sum_rates(history.schedule, steps[order], _RATIO), losses)


def _split(values: np.ndarray, curves: Sequence[_Curve]) -> list[np.ndarray]:
    return np.split(values, np.cumsum([len(curve.losses) for curve in curves])[:-1])


def _minimise(
    coordinates: Coordinates,
    curves: Sequence[_Curve],
    logs: np.ndarray,
    centers: np.ndarray,
    start: np.ndarray,
) -> Any:
    """The result of `least_squares`, or None if it did not converge."""
    # A prior adds residuals, of which the Huber loss is not taken.
    prior = _HUBER * np.sqrt(_CORRELATED) / np.array(coordinates.spreads)

    def residuals(x: np.ndarray) -> np.ndarray:
        of_prior = prior * (x - centers)
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


def _resample(residuals: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Residuals of one curve, drawn in blocks twice as long as they stay correlated."""
    centred = residuals - np.median(residuals)
    n = len(centred)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlations = np.fft.irfft(spectrum, 2 * n)[:n] / max(spectrum.mean(), 1e-300)
    correlations /= max(correlations[0], 1e-300)
    length = min(2 * int(np.argmax(np.append(correlations < np.exp(-1), True))), max(n // 4, 1))
    first = generator.integers(0, n, -(-n // length))
    return centred[(first[:, None] + np.arange(length)).ravel()[:n] % n]
