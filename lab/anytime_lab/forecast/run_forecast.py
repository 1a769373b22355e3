"""Forecast of one run: later, decayed and averaged losses, and what they cost."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from anytime_jax.averaging import LIVE, GrowingWindow, Rule
from anytime_jax.checks import conform_to_types, is_number, require, require_fraction
from anytime_jax.errors import InputError, format_value
from anytime_jax.formatting import name_weights
from anytime_jax.schedules import Decay, DecayShape, Schedule, cosine
from anytime_lab.forecast.functional_law_fit import NORMAL_QUANTILE, FunctionalFit, Prediction
from anytime_lab.forecast.loss_history import LONGEST, MIN_LOSSES, LossHistory
from anytime_lab.forecast.prior import Prior

FARTHEST = 4  # forecasts are calibrated up to this multiple of the run so far
WORST_MISFIT = 3.0  # largest misfit of a fit that is worth a forecast
COST_NATS = 0.01
_PATH_STEPS = 33  # points of a curve in a figure
_LOWER_RATE = 0.8  # fraction of the peak at which losses tell what a decay gains
_FRACTIONS = (0.05, 0.1, 0.2, 0.4)  # fractions of the whole run, for decays that start now
_MOST_COSTS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A predicted loss in nats per token, or a difference of two, with its 80% interval.

    Attributes:
      samples: predictions of each likely law.
      noise: the noise term in it.
    """

    loss: float
    low: float
    high: float
    samples: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2), repr=False)
    noise: float = 0.0

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclasses.dataclass(frozen=True)
class DecayPlan:
    """A decay at the end of a run: over the last `fraction` of it, to `floor` times the peak.

    It takes at least one update.
    """

    shape: DecayShape = "linear"
    fraction: float = 0.1
    floor: float = 0.1

    def __post_init__(self) -> None:
        conform_to_types(self)
        require_fraction("floor", self.floor)
        longest = 1 - 1 / LONGEST  # longer decays that start now end farther away
        allowed = f"above 0 and up to {longest:g}"
        ok = is_number(self.fraction) and 0 < self.fraction <= longest
        require(ok, "fraction", self.fraction, allowed)

    def start(self, horizon: int, now: int) -> int:
        """Returns the step, `now` or later, at which the decay that ends at `horizon` starts."""
        return min(max(round(horizon * (1 - self.fraction)), now), horizon - 1)

    def schedule(self, trunk: Schedule, start: int, horizon: int) -> Schedule:
        """Returns the trunk with this decay from `start` to `horizon`."""
        floor = min(self.floor, float(trunk.evaluate(start)) / trunk.peak)
        return Decay(trunk, start, horizon, floor, self.shape)


DEFAULT_PLAN = DecayPlan()


@dataclasses.dataclass(frozen=True)
class ForecastRow:
    """Losses at one step of the run.

    Attributes:
      losses: losses of the run as it is, by weight label; empty beyond the end of its schedule.
      decayed: loss of the live weights if a decay ended at this step.
      cosine: loss of the live weights of a cosine run of this length with the same peak.
      calibrated: whether the step is within four times the run so far.
    """

    step: int
    losses: Mapping[str, Estimate]
    decayed: Estimate | None
    cosine: Estimate | None
    calibrated: bool

    @property
    def best_average(self) -> str | None:
        """The label of the average with the lowest loss."""
        averages = {k: x.loss for k, x in self.losses.items() if k != LIVE}
        return min(averages, key=lambda label: averages[label]) if averages else None


@dataclasses.dataclass(frozen=True)
class Cost:
    """The step by which the loss will have fallen by some nats, with its 80% interval.

    The upper end is None if the loss may not fall that far within the forecast.
    """

    nats: float
    step: int
    low: int
    high: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class RunForecast:
    """Forecast of a run.

    Attributes:
      fit: the law behind it.
      now: the losses after the latest step, as the law has them.
      rows: losses at the requested steps.
      decays: end and loss of a decay that starts now, by its share of the whole run.
      costs: cost of each further 0.01 nats, with the best average or the live weights.
      path_steps: int64[p], from now to the last row that the run's schedule reaches.
      path: the losses at them, by weight label: float64[p, 3], the loss and its interval.
    """

    fit: FunctionalFit
    plan: DecayPlan
    now: ForecastRow
    rows: Sequence[ForecastRow]
    decays: Mapping[float, tuple[int, Estimate]]
    costs: Sequence[Cost]
    path_steps: np.ndarray
    path: Mapping[str, np.ndarray]

    @property
    def history(self) -> LossHistory:
        """The losses that were fitted."""
        return self.fit.history

    @property
    def label(self) -> str:
        """Label of the best weights: the best tracked average, or the live weights."""
        if not self.history.rules:
            return LIVE
        row = next((x for x in self.rows if x.losses), self.now)
        return row.best_average or LIVE

    def name(self, label: str, step: int) -> str:
        """Returns a label with the kernel error that its weights have at a step, if any."""
        return name_weights(label, self.kernel_error(label, step))

    def kernel_error(self, label: str, step: int) -> float:
        """Returns the kernel error of weights at a step."""
        rule = self.history.rules.get(label)
        return rule.kernel_error(step) if rule else 0.0

    @property
    def has_seen_noise(self) -> bool:
        """Whether there are losses of averages or at lower rates, which show what decays gain."""
        rates = self.history.schedule.evaluate(self.history.last)
        return bool(self.history.rules) or rates.min() < _LOWER_RATE * rates.max()

    def difference(self, a: Estimate, b: Estimate) -> Estimate:
        """Returns `a` minus `b`, two estimates of this forecast with mostly common errors.

        A share of the difference in their other terms is added to the error.
        """
        samples, noise, loss = a.samples - b.samples, a.noise - b.noise, a.loss - b.loss
        sd = np.hypot(
            self.fit.sd_of_difference(samples, noise),
            self.fit.prior.law_error.fall * (loss - noise),
        )
        # The error is at most as large as if the two errors were independent.
        half_width = min(NORMAL_QUANTILE * float(sd), math.hypot(a.half_width, b.half_width))
        return Estimate(loss, loss - half_width, loss + half_width, samples, noise)

    def losses_at(self, steps: Sequence[int]) -> list[dict[str, Estimate]]:
        """Returns the losses of the run as it is after `steps` updates, by weight label."""
        return _losses(self.fit, steps, _rules(self.history))


def make_forecast(
    history: LossHistory,
    prior: Prior,
    steps: Sequence[int],
    plan: DecayPlan = DEFAULT_PLAN,
    least: int = MIN_LOSSES,
) -> RunForecast:
    """Fits the law to a run and returns its forecast at later `steps`.

    Raises an InputError if the losses have fewer than `least` steps, rise, or fit no law.
    """
    if not steps or not all(isinstance(step, int | np.integer) for step in steps):
        raise InputError(f"steps = {format_value(steps)}: give one or more numbers of updates")
    history.check(least)
    last = max(steps)
    if not history.step < last <= LONGEST * history.step:
        raise InputError(
            f"the run is at step {history.step:,}: a forecast is of later steps, up to {LONGEST} "
            f"times as many, not of {last:,}"
        )
    fit = FunctionalFit([history], prior)
    if fit.misfit > WORST_MISFIT:
        raise InputError(
            f"the law does not fit this run: its losses are {fit.misfit:.2g} times farther from it "
            "than their noise, as after a restart or a change of the data, or in other units than "
            "nats: leave such losses out"
        )
    rules = _rules(history)
    now = history.step
    row_steps = sorted(step for step in set(steps) if step > now)
    rows = _rows(fit, [now, *row_steps], rules, plan)
    end = history.schedule.end
    last = row_steps[-1] if end is None else min(row_steps[-1], end)
    path_steps = np.unique(np.geomspace(now, max(last, now + 1), _PATH_STEPS).astype(int))
    prediction = fit.predict(history.schedule, path_steps, rules)
    labels = [LIVE, *rules]
    path = {
        label: np.stack([x[:, i] for x in (prediction.losses, prediction.low, prediction.high)], 1)
        for i, label in enumerate(labels)
    }
    found = RunForecast(fit, plan, rows[0], rows[1:], _decays(fit, plan), (), path_steps, path)
    missed = prior.law_error.fall
    costs = _costs(prediction, path_steps, labels.index(found.label), missed)
    return dataclasses.replace(found, costs=costs)


def _rules(history: LossHistory) -> Mapping[str, Rule]:
    """The averages of a run, or for a run without any, an average that it could have tracked."""
    return history.rules or {"f25": GrowingWindow(25.0)}


def _losses(
    fit: FunctionalFit, steps: Sequence[int], rules: Mapping[str, Rule]
) -> list[dict[str, Estimate]]:
    prediction = fit.predict(fit.history.schedule, steps, rules)
    labels = [LIVE, *rules]
    return [
        {label: _estimate(prediction, i, j) for j, label in enumerate(labels)}
        for i in range(len(steps))
    ]


def _rows(
    fit: FunctionalFit, steps: Sequence[int], rules: Mapping[str, Rule], plan: DecayPlan
) -> list[ForecastRow]:
    schedule, now = fit.history.schedule, steps[0]
    end = schedule.end
    reached = [step for step in steps if end is None or step <= end]
    losses = [*_losses(fit, reached, rules), *[{}] * (len(steps) - len(reached))]
    rows = []
    for i, step in enumerate(steps):
        start, decayed = plan.start(step, now), None
        if step > now and (end is None or start <= end):
            decay = plan.schedule(schedule, start, step)
            decayed = _estimate(fit.predict(decay, [step]))
        calibrated = step <= FARTHEST * now
        rows.append(ForecastRow(step, losses[i], decayed, _cosine(fit, step), calibrated))
    return rows


def _cosine(fit: FunctionalFit, step: int) -> Estimate | None:
    history = fit.history
    warmup = history.warmup_steps
    if step <= 2 * warmup:
        return None
    first = float(history.schedule.evaluate(0)) / history.schedule.peak
    schedule = cosine(history.schedule.peak, step, warmup, min(first, 1.0))
    return _estimate(fit.predict(schedule, [step]))


def _decays(fit: FunctionalFit, plan: DecayPlan) -> dict[float, tuple[int, Estimate]]:
    now, end = fit.history.step, fit.history.schedule.end
    decays = {}
    for fraction in sorted({*_FRACTIONS, plan.fraction}):
        horizon = round(now / (1 - fraction))
        if horizon > now and (end is None or now <= end):
            decay = plan.schedule(fit.history.schedule, now, horizon)
            decays[fraction] = horizon, _estimate(fit.predict(decay, [horizon]))
    return decays


def _costs(prediction: Prediction, steps: np.ndarray, label: int, missed: float) -> list[Cost]:
    samples = prediction.samples[:, :, label]
    stretch = 1 + missed * np.random.default_rng(0).normal(size=(len(samples), 1))
    falls = stretch * (samples - samples[:, :1])
    curves = [prediction.losses[:, label], *(samples[:, :1] + falls)]
    costs = []
    for k in range(1, _MOST_COSTS + 1):
        reached = np.array([_crossing(steps, curve, COST_NATS * k) for curve in curves])
        if not np.isfinite(reached[0]):
            break
        low, high = np.quantile(reached[1:], [0.1, 0.9], method="nearest")
        high = int(high) if np.isfinite(high) else None
        costs.append(Cost(COST_NATS * k, int(reached[0]), int(low), high))
    return costs


def _crossing(steps: np.ndarray, losses: np.ndarray, nats: float) -> float:
    """The step at which a falling curve is `nats` below its start; infinite if it never is."""
    fallen = losses[0] - np.minimum.accumulate(losses)
    if fallen[-1] < nats:
        return np.inf
    at = int(np.argmax(fallen >= nats))
    share = (nats - fallen[at - 1]) / (fallen[at] - fallen[at - 1])
    return float(steps[at - 1] + share * (steps[at] - steps[at - 1]))


def _estimate(prediction: Prediction, row: int = 0, column: int = 0) -> Estimate:
    values = (prediction.losses, prediction.low, prediction.high)
    loss, low, high = (float(x[row, column]) for x in values)
    samples, noise = prediction.samples[:, row, column], float(prediction.noise[row, column])
    return Estimate(loss, low, high, samples, noise)
