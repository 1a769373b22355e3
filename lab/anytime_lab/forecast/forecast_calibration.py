"""Calibration of forecasts: a study's runs are forecast from their first part and other runs.

Each horizon-free run is cut at early points. From there its own later losses are forecast, the
losses of the branches that decay from it, and the losses of the cosines with its peak and seed.
Prior knowledge comes from the other runs of the study, without the runs of the same schedule and
their branches, and for the cosines without cosines.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError
from anytime_lab.forecast import run_loss_history, study_prior
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.forecast.prior import Prior
from anytime_lab.forecast.run_loss_history import RecordedRun
from anytime_lab.forecast.study_prior import RelatedRuns
from anytime_lab.study.plan import StudyRun
from anytime_lab.study.results import COSINE, schedule_kind


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A forecast of one loss, and the loss.

    Attributes:
      run: the run that was cut.
      begin, end: the multiples from which and to which it was forecast.
      kind: "run", "decay" or "cosine": of the run itself, of a branch of it, or of a cosine.
      label: weight label.
      prior: "study" or "general", the origin of the prior.
      loss, low, high: the forecast with its 80% interval.
      actual: the actual loss.
      gain, actual_gain: the average's loss minus the live loss, as forecast and actual.
      constant_gain: the gain where the run was cut, the forecast that it stays constant.
    """

    run: str
    begin: float
    end: float
    kind: str
    label: str
    prior: str
    loss: float
    low: float
    high: float
    actual: float
    actual_gain: float
    gain: float
    constant_gain: float

    @property
    def error(self) -> float:
        """The forecast minus the loss, in nats."""
        return self.loss - self.actual

    @property
    def is_covered(self) -> bool:
        """Whether the loss is in the 80% interval."""
        return self.low <= self.actual <= self.high


def forecast_study(
    path: str, begins: Sequence[float] = (1, 2), trust: Trust = NOBODY
) -> list[Outcome]:
    """Forecasts every horizon-free run of a study from each of `begins`, Chinchilla multiples.

    `trust` says which packages are imported for the kinds that the study names.

    Raises an InputError if the study cannot be read, or has no run that went on after its begins.
    """
    runs = run_loss_history.read_study(path, option="calibrate", trust=trust)
    related: dict[tuple[str, ...], RelatedRuns] = {}
    outcomes = []
    for run, plan in runs:
        if run.config.horizon is not None or plan.trunk:
            continue
        for begin in begins:
            step = run.config.clock.step_at(f"{begin}x")
            targets = list(_targets(run, plan, runs, step))
            if not targets or step not in run.history.last:
                continue
            start = dataclasses.replace(run, history=run.history.until(step))
            outcomes += _outcomes(start, begin, "general", study_prior.general(start), targets)
            for is_cosine in (False, True):
                part = [x for x in targets if (x[0] == "cosine") == is_cosine]
                others = _others(run, runs, without_cosines=is_cosine) if part else []
                if not others:
                    continue
                key = tuple(sorted(x.name for x in others))
                if key not in related:
                    related[key] = RelatedRuns(run, others, f"--calibrate={path}")
                outcomes += _outcomes(start, begin, "study", related[key].prior(start), part)
    if not outcomes:
        shown = " or ".join(f"{begin:g}x" for begin in begins)
        raise InputError(
            f"--calibrate={path} has no horizon-free run with records beyond {shown}: train it, or "
            "give the records of a study that was trained, such as lab/evidence/first_laptop"
        )
    return outcomes


def _others(
    run: RecordedRun, runs: Sequence[tuple[RecordedRun, StudyRun]], without_cosines: bool
) -> list[RecordedRun]:
    """The runs with other schedules than the run's, without branches of such runs."""
    same = {x.name for x, _ in runs if _schedule(x.config) == _schedule(run.config)}
    if without_cosines:
        same |= {x.name for x, _ in runs if schedule_kind(x.config) == COSINE}
    others = [x for x, plan in runs if x.name not in same and plan.trunk not in same]
    return [
        x for x in others if x.config.learning_rate.peak == run.config.learning_rate.peak
    ] or others


def _targets(
    run: RecordedRun, plan: StudyRun, runs: Sequence[tuple[RecordedRun, StudyRun]], step: int
) -> Iterator[tuple[str, RecordedRun, int]]:
    """Kind, run and step of each evaluation after `step` to forecast."""
    seed = run.config.seed, run.config.data.seed
    for other, other_plan in runs:
        steps = np.unique(other.history.last[~other.history.training])
        if other is run:
            yield from (("run", run, int(x)) for x in steps if x > step)
        elif other_plan.trunk == plan.name and (other.config.branch_step or 0) >= step:
            yield "decay", other, int(steps[-1])
        elif (
            schedule_kind(other.config) == COSINE
            and other.config.learning_rate.peak == run.config.learning_rate.peak
            and (other.config.seed, other.config.data.seed) == seed
            and other.config.horizon == other.history.step > step
        ):
            yield "cosine", other, int(steps[-1])


def _outcomes(
    start: RecordedRun,
    begin: float,
    name: str,
    prior: Prior,
    targets: Sequence[tuple[str, RecordedRun, int]],
) -> Iterator[Outcome]:
    fit = FunctionalFit([start.history], prior)
    rules = start.history.rules
    now = _evaluated(start, start.history.step)
    for kind, run, step in targets:
        prediction = fit.predict(run.history.schedule, [step], rules)
        actual = _evaluated(run, step)
        for i, label in enumerate([LIVE, *rules]):
            if label not in actual or label not in now:  # an average that was added between
                continue
            yield Outcome(
                start.name,
                begin,
                run.config.clock.multiple(step),
                kind,
                label,
                name,
                float(prediction.losses[0, i]),
                float(prediction.low[0, i]),
                float(prediction.high[0, i]),
                actual[label],
                actual[label] - actual[LIVE],
                float(prediction.losses[0, i] - prediction.losses[0, 0]),
                now[label] - now[LIVE],
            )


def _evaluated(run: RecordedRun, step: int) -> Mapping[str, float]:
    history = run.history.select((run.history.last == step) & ~run.history.training)
    return dict(zip(history.labels, history.losses.tolist(), strict=True))


def _schedule(config: Config) -> tuple[object, ...]:
    settings = config.schedule.settings
    return schedule_kind(config), *(settings.get(name) for name in ("peak", "alpha", "gamma"))
