"""Residuals of a functional law: its predictions minus a run's losses, averaged in bins.

`Terms` evaluates the law at the steps of a schedule, fast enough for a fit. `BinnedLosses` are
observed losses with their standard deviations, and the terms of the law at them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anytime_jax.averaging import LIVE, Rule
from anytime_jax.schedules import Schedule
from anytime_lab.forecast import linear_modes
from anytime_lab.forecast.functional_law import FunctionalLaw, LossTerms
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.update_blocks import group

_MISFIT = 0.004  # nats: error of a law that fits well, at the latest losses
_MOST_MISFIT = 4.0  # at the first losses, the error is larger by this factor
_BIN = 1.01  # ratio of the last to the first step in a bin
_MARKS = 4  # steps in a bin at which the law is evaluated
_INDEPENDENT = 8  # bins with independent errors of the law in a doubling of the steps
_FEW = 8  # with fewer losses their noise is not estimated
_TYPICAL_NOISE = 0.01  # nats: noise of recorded training losses
# The loss after a single update fluctuates by this share of what averages gain.
_FLUCTUATION = 0.1

# A fit has one vector of ten numbers: the parameters of the law in their order, as logarithms
# except for the floor, and the training loss minus the held-out loss. These are indices in it.
FLOOR, WEIGHT_GROWTH, TRAINING_OFFSET = 0, 7, 9


def law_at(x: np.ndarray) -> FunctionalLaw:
    """Returns the law with the parameters of a fit, float64[10]."""
    return FunctionalLaw(float(x[FLOOR]), *np.exp(x[FLOOR + 1 : TRAINING_OFFSET]).tolist())


class Terms:
    """Terms of the law at some steps of a schedule, as functions of its parameters.

    The responses of the modes to the updates depend only on the parameter `weight_growth`. They are
    computed once for a grid of its values, and interpolated.
    """

    def __init__(
        self,
        schedule: Schedule,
        steps: Sequence[int] | np.ndarray,
        rules: Mapping[str, Rule],
        log_growths: np.ndarray,
    ):
        """Computes the responses after `steps` updates, of the live weights and the averages.

        `log_growths` are at least four evenly spaced logarithms of `weight_growth`.
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
    """Mean loss of a bin; `sd` is its standard deviation."""

    first: int
    last: int
    label: str
    loss: float
    sd: float
    training: bool


class BinnedLosses(Terms):
    """Losses of a run in bins of neighboring steps, with their standard deviations.

    A standard deviation combines the noise, estimated from the scatter of the losses, with the
    error of the law, which is smaller for later losses.

    Attributes:
      losses_seen: float64[n], the mean loss of each bin.
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
    """The indices of the losses of each label and source, in the order of their steps."""
    kinds = list(zip(history.labels, history.training.tolist(), strict=True))
    order = np.argsort(history.last, kind="stable")
    return [np.array([i for i in order if kinds[i] == kind]) for kind in dict.fromkeys(kinds)]


def _bin(history: LossHistory, members: np.ndarray) -> list[_Row]:
    """The bins of one label and source."""
    steps, losses = history.last[members], history.losses[members]
    noise = _TYPICAL_NOISE if history.training[members[0]] else 0.0
    if len(losses) >= _FEW:  # outliers do not move a median of second differences
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
    # Errors of the law in neighboring bins are correlated, so many bins say no more than a few.
    alike = max(len(rows) / (1 + _INDEPENDENT * np.log2(steps[-1] / steps[0])), 1.0)
    misfits = [_misfit(history.step / row.last) * alike**0.5 for row in rows]
    return [
        row._replace(sd=float(np.hypot(misfit, row.sd)))
        for row, misfit in zip(rows, misfits, strict=True)
    ]


def _misfit(ratio: float) -> float:
    """Error of the law, by the ratio of the latest step to the step of the loss."""
    return _MISFIT * min(ratio**0.5, _MOST_MISFIT)


def _fluctuation(row: _Row, rows: Sequence[_Row]) -> float:
    """Fluctuation of the loss after a single update, estimated from the gain of the averages."""
    if row.first < row.last:
        return 0.0
    same = [x.loss for x in rows if x[:2] == row[:2] and x.training == row.training]
    return _FLUCTUATION * (row.loss - min(same))


def _cubic_weights(u: float) -> np.ndarray:
    """Weights of the values at -1, 0, 1 and 2 in a cubic interpolation at u in [0, 1]."""
    return np.array(
        [
            u * (2 * u - u**2 - 1) / 2,
            (3 * u**3 - 5 * u**2 + 2) / 2,
            u * (4 * u + 1 - 3 * u**2) / 2,
            u**2 * (u - 1) / 2,
        ]
    )
