"""Observed losses in bins, and the terms of a functional law at them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anytime_jax.averaging import LIVE, Rule
from anytime_jax.lab.forecast import linear_modes
from anytime_jax.lab.forecast.functional_law import FunctionalLaw, LossTerms
from anytime_jax.lab.forecast.loss_history import LossHistory
from anytime_jax.lab.forecast.update_blocks import group
from anytime_jax.schedules import Schedule

_MISFIT = 0.004  # nats by which a law misses the latest losses of a curve that it fits well
_EARLY = 4.0  # how much further it may miss the first
_BIN = 1.01  # ratio of the last to the first step of losses that are fitted as their mean
_MARKS = 4  # steps at which the loss of an interval is computed
_INDEPENDENT = 8  # losses in a doubling of the steps that a law misses independently
_FEW = 8  # losses, fewer than which do not tell their noise
_TYPICAL_NOISE = 0.01  # nats, of recorded training losses
# The loss after one update moves with its last batches, by this share of what averages gain.
_FLUCTUATION = 0.1

# Places in the vector of a fit: the parameters in their order, all but the floor by logarithm, and
# the training loss minus the held-out loss.
FLOOR, WEIGHT_GROWTH, TRAINING_OFFSET = 0, 7, 9


def law_at(x: np.ndarray) -> FunctionalLaw:
    """Returns the law of a vector of a fit, float64[10]."""
    return FunctionalLaw(float(x[FLOOR]), *np.exp(x[FLOOR + 1 : TRAINING_OFFSET]).tolist())


class Terms:
    """The terms of the law at steps of a schedule, as functions of its parameters.

    What the updates do to each mode depends on the parameters by `weight_growth` alone. It is
    computed once for a grid of that, and interpolated.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: Sequence[int] | np.ndarray,
        rules: Mapping[str, Rule],
        log_growths: np.ndarray,
    ):
        """Prepares the terms of the live weights, then the averages, after `steps` updates.

        `log_growths` are evenly spaced logarithms of `weight_growth`, four or more.
        """
        steps = np.asarray(steps)
        blocks = group(schedule, steps.ravel())
        found = linear_modes.respond(blocks, steps, tuple(rules.values()), np.exp(log_growths))
        self._log_growths, self._rates = log_growths, found.decay_rates
        self._signal, self._noise, self._drift = found.signal, found.noise, found.drift

    def evaluate(self, x: np.ndarray) -> LossTerms:
        """Returns the terms for parameters float64[10]."""
        grid = self._log_growths
        place = (x[WEIGHT_GROWTH] - grid[0]) / (grid[1] - grid[0])
        low = int(np.clip(place, 1, len(grid) - 3))
        weights = _cubic_weights(float(np.clip(place - low, 0.0, 1.0)))

        def between(values: np.ndarray) -> np.ndarray:
            near = values[low - 1 : low + 3]
            return (weights @ near.reshape(4, -1)).reshape(near.shape[1:])

        parts = between(self._signal), between(self._noise), between(self._drift)
        return law_at(x).terms(self._rates, *parts)

    def losses(self, x: np.ndarray) -> np.ndarray:
        """Returns held-out losses: float64[s, 1 + a]."""
        return x[FLOOR] + self.evaluate(x).total


class _Row(NamedTuple):
    """Mean of losses of neighbouring steps; `sd` is its standard deviation."""

    first: int
    last: int
    label: str
    loss: float
    sd: float
    training: bool


class BinnedLosses(Terms):
    """The losses of a run as a fit compares them to a law, each a row.

    Losses of neighbouring steps are one row with their mean. A row's standard deviation is that of
    the noise, estimated from the scatter, and of the law, which is held to the latest losses.

    Attributes:
      losses_seen: float64[n].
    """

    def __init__(self, history: LossHistory, log_growths: np.ndarray):
        rows = [row for kind in _kinds(history) for row in _bin(history, kind)]
        middles = (np.arange(_MARKS) + 0.5) / _MARKS
        marks = [np.unique(np.rint(a + (b - a) * middles).astype(int)) for a, b, *_ in rows]
        steps = np.unique(np.concatenate(marks))
        used = {label: rule for label, rule in history.rules.items() if label in history.labels}
        super().__init__(history.schedule, steps, used, log_growths)
        index = {LIVE: 0} | {label: i for i, label in enumerate(used, start=1)}
        places = [
            (np.searchsorted(steps, at), index[row.label])
            for at, row in zip(marks, rows, strict=True)
        ]
        self._signal, self._noise, self._drift = (
            np.stack([values[:, at, label].mean(1) for at, label in places], axis=1)
            for values in (self._signal, self._noise, self._drift)
        )
        self.losses_seen = np.array([row.loss for row in rows])
        self._sds = np.array([np.hypot(row.sd, _fluctuation(row, rows)) for row in rows])
        self._training = np.array([row.training for row in rows], float)

    def residuals(self, x: np.ndarray) -> np.ndarray:
        """Returns the law minus the observed losses, in standard deviations: float64[n]."""
        losses = self.losses(x) + x[TRAINING_OFFSET] * self._training
        return (losses - self.losses_seen) / self._sds


def _kinds(history: LossHistory) -> list[np.ndarray]:
    """The places of the losses of one label and source, in the order of their steps."""
    kinds = list(zip(history.labels, history.training.tolist(), strict=True))
    order = np.argsort(history.last, kind="stable")
    return [np.array([i for i in order if kinds[i] == kind]) for kind in dict.fromkeys(kinds)]


def _bin(history: LossHistory, members: np.ndarray) -> list[_Row]:
    """The rows of one label and source."""
    steps, losses = history.last[members], history.losses[members]
    noise = _TYPICAL_NOISE if history.training[members[0]] else 0.0
    if len(losses) >= _FEW:  # the median of the second differences, as outliers do not move it
        noise = float(1.4826 * np.median(np.abs(np.diff(losses, 2))) / 6**0.5)
    rows, start = [], 0
    while start < len(members):
        stop = max(int(np.searchsorted(steps, _BIN * steps[start], "right")), start + 1)
        part = members[start:stop]
        label, training = history.labels[part[0]], bool(history.training[part[0]])
        mean, sd = float(losses[start:stop].mean()), noise / len(part) ** 0.5
        first, last = int(history.first[part[0]]), int(steps[stop - 1])
        rows.append(_Row(first, last, label, mean, sd, training))
        start = stop
    # Neighbouring losses are missed alike: many tell no more than a few of them would.
    alike = max(len(rows) / (1 + _INDEPENDENT * np.log2(steps[-1] / steps[0])), 1.0)
    misfits = [_misfit(history.step / row.last) * alike**0.5 for row in rows]
    return [
        row._replace(sd=float(np.hypot(misfit, row.sd)))
        for row, misfit in zip(rows, misfits, strict=True)
    ]


def _misfit(ratio: float) -> float:
    """Standard deviation of what a law misses of a loss, by the ratio of the latest step to its."""
    return _MISFIT * min(ratio**0.5, _EARLY)


def _fluctuation(row: _Row, rows: Sequence[_Row]) -> float:
    """Standard deviation of the loss after a single update, as far as averages tell it."""
    if row.first < row.last:
        return 0.0
    same = [x.loss for x in rows if x[:2] == row[:2] and x.training == row.training]
    return _FLUCTUATION * (row.loss - min(same))


def _cubic_weights(u: float) -> np.ndarray:
    """Weights of values at -1, 0, 1 and 2 in their cubic interpolation at u, from 0 to 1."""
    return np.array(
        [
            u * (2 * u - u**2 - 1) / 2,
            (3 * u**3 - 5 * u**2 + 2) / 2,
            u * (4 * u + 1 - 3 * u**2) / 2,
            u**2 * (u - 1) / 2,
        ]
    )
