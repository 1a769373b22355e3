"""Fit of a functional law to the losses of runs, with prior knowledge, and its predictions.

Least squares give the best law, and a parametric bootstrap the uncertainty of its parameters: the
law is fitted again to resampled losses and prior means. A prediction also includes the error that
remains with the best parameters (`prior.LawError`).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule
from anytime_lab.forecast.fit_residuals import (
    FLOOR,
    TRAINING_OFFSET,
    WEIGHT_GROWTH,
    BinnedLosses,
    Terms,
    law_at,
)
from anytime_lab.forecast.functional_law import FunctionalLaw
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.prior import Belief, Prior

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_NAMES = tuple(field.name for field in dataclasses.fields(FunctionalLaw))
_SPREAD = np.log(2.0) * np.arange(-6, 7)  # grid of log growths around the prior mean
_SAMPLES = 24
_MOST_OF_ONE = 10.0  # standard deviations at which the residuals of a misfit are clipped
INTERVAL = 0.8  # probability of the intervals of predictions
NORMAL_QUANTILE = 1.2816  # half the width of an interval, in standard deviations
_UNIT = np.array([0.1, 0.3, 0.2, 0.5, 0.5, 0.5, 0.1, 0.5, 0.3, 0.02])  # typical steps of a fit
_LOW = np.array([0, -40, np.log(0.05), -40, -40, -40, np.log(0.3), -40, -12, -3])
_HIGH = np.array([20, 80, np.log(5), 40, 80, 60, np.log(6), 60, 8, 3])


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted losses after some updates: float64[s, 1 + a], of the live weights and averages.

    Attributes:
      losses: predictions of the law that fits best.
      samples: predictions of each of n likely laws, float64[n, s, 1 + a].
      law_error: standard deviation of the error that remains with the best parameters.
      noise: the noise term in the losses.
    """

    losses: np.ndarray
    samples: np.ndarray
    law_error: np.ndarray
    noise: np.ndarray

    @functools.cached_property
    def sd(self) -> np.ndarray:
        """The standard deviation of the prediction."""
        return np.hypot(self.samples.std(0, ddof=1), self.law_error)

    @property
    def low(self) -> np.ndarray:
        """The lower end of the 80% interval."""
        return self.losses - NORMAL_QUANTILE * self.sd

    @property
    def high(self) -> np.ndarray:
        """The upper end of the 80% interval."""
        return self.losses + NORMAL_QUANTILE * self.sd


class FunctionalFit:
    """Functional law fitted to runs, of which the first is to be forecast.

    Attributes:
      law: the best law.
      history: the losses of the first run after its warmup.
      prior: the beliefs about the first run.
      misfit: root mean square of the residuals in units of their standard deviations, each clipped
        at ten, as a spike of the loss is not a misfit of the law.
      training_offset: training loss minus held-out loss, in nats.
    """

    def __init__(self, histories: Sequence[LossHistory], prior: Prior, samples: int = _SAMPLES):
        """Fits the law.

        Raises an InputError if no fit converges.
        """
        fitted = [history.after_warmup() for history in histories]
        self.history, self.prior = fitted[0], prior
        self._log_growths = prior.weight_growth.mean + _SPREAD
        self._observed = [BinnedLosses(history, self._log_growths) for history in fitted]
        self._now = Terms(self.history.schedule, [self.history.step], {}, self._log_growths)
        self._best = self._search()
        rng = np.random.default_rng(0)
        self._samples = [self._solve(self._best, rng).x for _ in range(samples)]
        growths = np.array([x[WEIGHT_GROWTH] for x in [self._best, *self._samples]])
        kept = np.searchsorted(self._log_growths, [growths.min(), growths.max()])
        self._used_growths = self._log_growths[max(kept[0] - 2, 0) : kept[1] + 2]
        residuals = np.concatenate([x.residuals(self._best) for x in self._observed])
        self.misfit = float(np.sqrt(np.mean(np.minimum(residuals**2, _MOST_OF_ONE**2))))
        self.training_offset = float(self._best[TRAINING_OFFSET])
        self.law = law_at(self._best)

    def predict(
        self,
        schedule: Schedule,
        steps: Sequence[int] | np.ndarray,
        rules: Mapping[str, Rule] | None = None,
    ) -> Prediction:
        """Predicts held-out losses after `steps` updates of a schedule, live and of averages."""
        terms = Terms(schedule, steps, rules or {}, self._used_growths)
        now, later = self._now.evaluate(self._best), terms.evaluate(self._best)
        shares = self.prior.law_error
        change = now.noise[0, 0] - later.noise
        # The error is small at the losses so far and grows with the distance from them.
        distance = np.log2(np.maximum(np.asarray(steps) / self.history.step, 1.0))
        share = np.sqrt(np.minimum(distance, 1.0))[:, None]
        fall = np.maximum(now.signal[0, 0] - later.signal - later.drift, 0.0)
        error = np.hypot(shares.noise_change * change, share * shares.noise * later.noise)
        return Prediction(
            self._best[FLOOR] + later.total,
            np.stack([terms.losses(x) for x in self._samples]),
            np.hypot(error, shares.fall * fall),
            later.noise,
        )

    def sd_of_difference(
        self, samples: np.ndarray, noise: np.ndarray | float
    ) -> np.ndarray | float:
        """Returns the standard deviation of differences of predictions.

        `samples` and `noise` are differences of these fields of a `Prediction`; the first axis of
        `samples` counts the laws. The error of the law enters both losses in proportion to their
        noise terms.
        """
        error = np.hypot(self.prior.law_error.noise_change, self.prior.law_error.noise)
        return np.hypot(np.std(samples, axis=0, ddof=1), error * noise)

    def beliefs(self, history: LossHistory) -> dict[str, float]:
        """Returns beliefs about another run of the same model and data, around this law."""
        terms = Terms(history.schedule, [history.step], {}, self._log_growths)
        return _believed(self._best, terms)

    def _search(self) -> np.ndarray:
        """Solves from several starts; returns the best parameters."""
        lowest = min(float(x.losses_seen.min()) for x in self._observed)
        results = []
        for gap, growth in ((0.3, -1.0), (0.5, 0.0), (0.3, 1.0)):
            start = np.array([lowest - gap, *(getattr(self.prior, n).mean for n in _NAMES[1:]), 0])
            if self.prior.floor.sd < 1:
                start[FLOOR] = self.prior.floor.mean
            start[WEIGHT_GROWTH] += growth
            # Start from amplitudes that give the prior means of the terms.
            believed = _believed(start, self._now)
            for name in ("signal", "noise"):
                start[_NAMES.index(name)] += getattr(self.prior, name).mean - believed[name]
            result = self._solve(start)
            if np.isfinite(result.x).all() and result.success:
                results.append(result)
        if not results:
            raise InputError("no law fits these losses: look at their curve")
        return min(results, key=lambda result: result.cost).x

    def _solve(self, start: np.ndarray, rng: np.random.Generator | None = None) -> "OptimizeResult":
        """Solves the least squares; with `rng`, for resampled losses and prior means."""
        from scipy.optimize import least_squares  # the import takes 0.4 s

        beliefs = {x.name: getattr(self.prior, x.name) for x in dataclasses.fields(Prior)}
        beliefs = {name: x for name, x in beliefs.items() if isinstance(x, Belief)}
        sizes = [len(x.losses_seen) for x in self._observed] + [len(beliefs)]
        shifts = [np.zeros(n) if rng is None else rng.normal(size=n) for n in sizes]

        def residuals(x: np.ndarray) -> np.ndarray:
            data = [
                _robust(seen.residuals(x) + shift)
                for seen, shift in zip(self._observed, shifts[:-1], strict=True)
            ]
            believed = _believed(x, self._now)
            z = [(believed[name] - belief.mean) / belief.sd for name, belief in beliefs.items()]
            return np.concatenate([*data, np.array(z) + shifts[-1]])

        low, high = _LOW.copy(), _HIGH.copy()
        high[FLOOR] = max(float(x.losses_seen.max()) for x in self._observed)
        low[WEIGHT_GROWTH], high[WEIGHT_GROWTH] = self._log_growths[[1, -2]]
        start = np.clip(start, low + 1e-9, high - 1e-9)
        bounds = (low, high)
        with np.errstate(all="ignore"):  # laws that it tries and rejects may overflow
            return least_squares(
                residuals, start, bounds=bounds, x_scale=_UNIT, max_nfev=200, ftol=1e-6
            )


def _believed(x: np.ndarray, now: Terms) -> dict[str, float]:
    """The values about which a prior has beliefs, by name."""
    terms = now.evaluate(x)
    named = dict(zip((*_NAMES, "training_offset"), x.tolist(), strict=True))
    amplitudes = {name: getattr(terms, name) for name in ("signal", "noise")}
    return named | {name: float(np.log(term[0, 0])) for name, term in amplitudes.items()}


def _robust(z: np.ndarray) -> np.ndarray:
    """Residuals whose squares grow only linearly beyond two standard deviations (soft L1)."""
    return np.sign(z) * 2 * np.sqrt(2 * (np.sqrt(1 + (z / 2) ** 2) - 1))
