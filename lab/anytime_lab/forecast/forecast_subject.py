"""Subject of a forecast: a run or the log of a foreign run, with prior knowledge about it."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from anytime_jax.checks import require, require_directory
from anytime_jax.config.clock import Clock
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule
from anytime_jax.storage.paths import storage_path
from anytime_lab.forecast import loss_csv, run_forecast, run_loss_history, study_prior
from anytime_lab.forecast.loss_history import (
    LONGEST,
    MIN_LOSSES,
    LossHistory,
    RecordedRates,
)
from anytime_lab.forecast.prior import Prior, general_prior
from anytime_lab.forecast.run_forecast import DEFAULT_PLAN, FARTHEST, DecayPlan, RunForecast

_MIN_LOSSES_WITH_STUDY = 3  # a study supplies the rest


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A run to be forecast.

    Attributes:
      name: name of the run or of the file.
      clock: clock of the run; for a log, its 1x is the run so far.
      history: its losses, enough for a forecast.
      least: number of steps with a loss that a forecast needs.
      study: the study from which the prior is; None for the general prior.
      is_log: whether this is the log of a foreign run.
      has_tokens: whether the clock counts tokens, which a log may not say.
    """

    name: str
    clock: Clock
    history: LossHistory
    prior: Prior
    least: int = MIN_LOSSES
    study: str | None = None
    is_log: bool = False
    has_tokens: bool = True

    @property
    def last_rate(self) -> float | None:
        """The rate that is held after the log's last one; None if a schedule is known."""
        schedule = self.history.schedule
        return schedule.rates[-1] if isinstance(schedule, RecordedRates) else None


def open_run(
    run_dir: Path,
    study: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
    trust: Trust = NOBODY,
) -> Subject:
    """Reads a run, in progress or not, with prior knowledge from the study at `study`.

    `trust` says which packages are imported for the kinds that the run and the study name.

    Raises an InputError if it is not a run, or has too few losses, or losses that rise.
    """
    run = run_loss_history.read(run_dir, warn, trust)
    # Checked first, as priors need a run with losses.
    least = MIN_LOSSES if study is None else _MIN_LOSSES_WITH_STUDY
    run.history.check(least)
    if study is None:
        prior = study_prior.general(run)
    else:
        prior = study_prior.from_study(run, study, warn, trust)
    return Subject(run.name, run.config.clock, run.history, prior, least, study)


def open_log(
    file: Path,
    schedule: Schedule | None = None,
    columns: Mapping[str, str] | None = None,
    warmup_steps: int | None = None,
    tokens_per_step: int | None = None,
) -> Subject:
    """Reads a CSV file as `loss_csv.read_csv` does.

    Raises an InputError if it cannot be read, or has too few losses, or losses that rise.
    """
    history = loss_csv.read_csv(file, schedule, columns, warmup_steps)
    history.check()
    tokens = tokens_per_step or 1
    clock = Clock(1, tokens, history.step * tokens)
    prior = general_prior(history.after_warmup())
    has_tokens = tokens_per_step is not None
    return Subject(file.stem, clock, history, prior, is_log=True, has_tokens=has_tokens)


def forecast_run(
    run_dir: str | Path,
    to: str | None = None,
    study: str | None = None,
    decay: DecayPlan = DEFAULT_PLAN,
    trust: Trust = NOBODY,
) -> RunForecast:
    """Returns the forecast of a run at its next doublings up to the point `to`, such as "8x".

    By default, up to four times the run so far. `study` is a study with runs of the same model and
    data, `decay` what `RunForecast.rows` assume of a decay that ends at each point, `trust` the
    packages that are imported for the kinds that the run and the study name.
    """
    require_directory("run_dir", run_dir)
    require(to is None or isinstance(to, str), "to", to, 'a point, such as "8x"')
    require(study is None or isinstance(study, str), "study", study, "the path of a study")
    require(isinstance(decay, DecayPlan), "decay", decay, "a DecayPlan")
    return forecast(open_run(storage_path(run_dir), study, trust=trust), to, decay)


def forecast(
    subject: Subject, to: str | None = None, plan: DecayPlan = DEFAULT_PLAN
) -> RunForecast:
    """Returns the forecast of a run at its next doublings up to the point `to`, and there.

    By default, at the doublings up to four times the run so far, or to the end of its schedule.

    Raises an InputError if the point is not a later one of this run, or if no law fits.
    """
    steps = _steps(subject, to)
    return run_forecast.make_forecast(subject.history, subject.prior, steps, plan, subject.least)


def _steps(subject: Subject, to: str | None) -> list[int]:
    now, end = subject.history.step, subject.history.schedule.end
    if end is not None and now >= end:
        raise InputError(
            f"{subject.name} is at the end of its schedule, step {end:,}: there is nothing to "
            "forecast"
        )
    if to is not None:
        last = _read_point(subject, to)
        return [*_doublings(subject.clock, now, last - 1), last]
    last = FARTHEST * now if end is None else min(FARTHEST * now, end)
    steps = _doublings(subject.clock, now, last)
    return sorted({*steps, last}) if last == end or not steps else steps


def _doublings(clock: Clock, after: int, last: int) -> list[int]:
    steps = itertools.takewhile(lambda step: step <= last, clock.doublings())
    return [step for step in steps if step > after]


def _read_point(subject: Subject, to: str) -> int:
    now, end = subject.history.step, subject.history.schedule.end
    if not subject.has_tokens and "token" in to.lower():
        raise InputError(f"--to={to}: the log does not say its tokens: give --tokens-per-step too")
    step = subject.clock.step_at(to, "--to")
    if step <= now:
        raise InputError(
            f"--to={to} is step {step:,}, and {subject.name} is at step {now:,}: give a later point"
        )
    if end is not None and step > end:
        raise InputError(
            f"--to={to} is step {step:,}, and the schedule of {subject.name} ends at step {end:,}: "
            "give a point up to there"
        )
    if step > LONGEST * now:
        raise InputError(
            f"--to={to} is step {step:,}, over {LONGEST} times the {now:,} steps so far: no "
            "forecast reaches so far"
        )
    return step
