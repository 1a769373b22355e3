"""The configuration of a run: its settings, and what follows from them.

`build` reads the settings of a configuration file into `Settings`, and `resolve` makes a `Config`
of them: the settings, and what follows from them (clock, learning rate, averages, stop, branch),
checked against each other.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from anytime_jax import averaging, schedules
from anytime_jax.checks import require
from anytime_jax.config.clock import Clock, Stop, read_growth, read_stop
from anytime_jax.config.kinds import NOBODY, Kind, Trust, explain_errors, is_trusted
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_settings import OPTIMIZERS, BranchConfig, Settings, all_settings
from anytime_jax.config.settings_reader import Facts, declarations, flatten, read, to_dict
from anytime_jax.config.stages import RunStage, make_run_stages
from anytime_jax.data.mixture import DataStage, Mixture, sample_numbers
from anytime_jax.errors import InputError, format_value, nearest, within

_LAST_CHECKED = 10**7  # updates of a schedule without an end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The settings of a run, and what follows from them; made by `build` or `resolve`.

    Attributes:
      directory: the run directory: the setting `run_dir`, or, if that is empty, `_directory`.
      clock: conversion between steps, time, tokens and Chinchilla multiples.
      learning_rate: the learning rate as a function of time.
      horizon: last step at which the schedule is defined; None if it does not end.
      averaging_rules: the averages by label.
      run_stages: parts of the run with one mixture, one length of windows and one rotation.
      sources: dataset of every source by name.
      stop_rule: the step at which the run stops, and whether it doubles afterwards.
      branch_step: the step at which the run leaves its trunk; None for a run without one.
      eval_steps: updates between evaluations.
      checkpoint_steps: updates between rolling checkpoints.
      keep_steps: updates between permanent checkpoints; None for the milestones only.
      log_steps: updates between rows of the records.
      layer_steps: updates between rows with sizes of each layer; None for none.
      task_steps: updates between scores of tasks, or the steps of scores.
      trust: packages of which a start may import trackers.
    """

    directory: str
    clock: Clock
    learning_rate: schedules.Schedule
    horizon: int | None
    averaging_rules: dict[str, averaging.Rule]
    run_stages: tuple[RunStage, ...]
    sources: dict[str, str]
    stop_rule: Stop
    branch_step: int | None
    eval_steps: int
    checkpoint_steps: int
    keep_steps: int | None
    log_steps: int
    layer_steps: int | None
    task_steps: int | frozenset[int]
    trust: Trust = dataclasses.field(default=NOBODY, compare=False)

    def rate_at(self, step: int) -> float:
        """Returns the learning rate of the update after `step` updates."""
        return float(self.learning_rate.evaluate(self.clock.time(step)))

    def stage_at(self, step: int) -> RunStage:
        """Returns the stage of the update after `step` updates."""
        return next(x for x in reversed(self.run_stages) if x.step <= step)

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """The models of the stages, in order, each once."""
        return tuple(dict.fromkeys(stage.model for stage in self.run_stages))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of windows of the stages, in order, each once."""
        return tuple(dict.fromkeys(model.length for model in self.models))

    def batches(self, step: int) -> Iterator[tuple[int, int | None]]:
        """Yields pairs from a step on: the windows in an update, and how many updates have as many.

        The last pair has no end: its number of updates is None.
        """
        begins = sorted({x.step for x in (*self.clock.phases, *self.run_stages)})
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            if end is None or end > step:
                length = self.stage_at(begin).model.length
                tokens = self.clock.span(begin) * self.clock.tokens_per_step
                yield tokens // length, None if end is None else end - max(step, begin)

    def samples(self, step: int) -> int:
        """Returns the number of windows read in the first `step` updates."""
        total = 0
        for windows, updates in self.batches(0):
            count = step if updates is None else min(step, updates)
            total, step = total + windows * count, step - count
        return total

    def sample_number(self, read: int) -> int:
        """Returns the number of the sample that is read after `read` others (`data.skip`)."""
        return int(sample_numbers(np.array(read), self.data.skip))

    def sample_after(self, step: int) -> int:
        """Returns the number after the last sample of `step` updates; 0 before the first one."""
        return self.sample_number(self.samples(step) - 1) + 1 if step else 0

    @functools.cached_property
    def mixture(self) -> Mixture:
        """The order in which the run reads its sources."""
        return Mixture(
            [
                DataStage(self.sample_after(x.step), x.model.length, dict(x.weights))
                for x in self.run_stages
            ],
            self.data.skip,
        )

    def windows_read(self, step: int) -> Iterator[tuple[RunStage, dict[str, int]]]:
        """Yields each stage of the first `step` updates, and windows read of each source by name.

        Counts windows since the last change of length, up to `step` or the end of the stage, and
        those that are left out.
        """
        for number, stage in enumerate(self.run_stages):
            if number == 0 or stage.step < step:
                end = min([step, *(x.step for x in self.run_stages[number + 1 : number + 2])])
                yield stage, self.mixture.counts(self.sample_after(end), number)

    @property
    def sets(self) -> dict[str, str]:
        """The dataset of every validation set, by name."""
        return dict(self.eval.sets) or self.sources

    def eval_rows(self, length: int) -> int:
        """Returns how many windows of a length are evaluated at once, always as many tokens."""
        return max(self.eval.batch_size * self.model.length // length, 1)

    @property
    def follows_width(self) -> bool:
        """Whether updates of the optimizer depend on the width (`optimizers.RunInfo`)."""
        return getattr(self.optimizer, "follows_width", False)

    @functools.cached_property
    def set_weights(self) -> dict[str, float]:
        """The weight of every validation set in the mean; the sum is 1."""
        given = dict(self.eval.weights or self.run_stages[-1].weights)
        weights = {name: float(given.get(name, 0)) for name in self.sets}
        if not any(weights.values()):  # none of the sets is in the mixture
            weights = dict.fromkeys(self.sets, 1.0)
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def eval_windows(self, available: int, length: int) -> int:
        """Returns how many of the available validation windows of a length are evaluated."""
        tokens = self.eval.tokens
        return available if isinstance(tokens, str) else min(tokens // length, available)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as nested dictionaries; the inverse of `build`."""
        return to_dict(self, Settings)

    def facts(self) -> dict[str, Facts]:
        """Returns the facts of every setting by dotted name."""
        return {name: x.facts for name, x in declarations(Settings, self).items()}

    def select(self, condition: Callable[[Facts], bool]) -> dict[str, Any]:
        """Returns the settings whose facts satisfy a condition, by dotted name."""
        facts, flat = self.facts(), flatten(self.to_dict())
        return {name: value for name, value in flat.items() if condition(facts[name])}

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """Returns the identity settings by dotted name, with the fingerprint of the data.

        A resume may change the other settings, for one of three reasons: they affect losses by
        rounding alone; the digest of the trunk's checkpoint or of the initial weights covers them;
        or they are checked with the stages.
        """
        return {**self.select(lambda x: x.identity), "data.fingerprint": fingerprint}

    def packages(self) -> Trust:
        """Returns the modules of the kinds that the settings name from other packages."""
        groups = (x for x in self.to_dict().values() if isinstance(x, dict) and "kind" in x)
        names = [group["kind"] for group in groups]
        modules = (name.partition(":")[0] for name in names if ":" in name)
        return tuple(x for x in modules if not is_trusted(x, NOBODY))


def build(source: Mapping[str, Any], *, trust: Trust) -> Config:
    """Returns the configuration of a run from nested dictionaries.

    `trust` says which packages are imported for kinds that are named `package.module:Class`. It is
    `EVERY_PACKAGE` for the user's own settings. For settings from a run directory or a model, it is
    `NOBODY` or the packages that the user trusts. Raises an InputError for each wrong setting.
    """
    return resolve(read(Settings, source, trust), trust)


def build_saved(source: Any, where: str, trust: Trust = NOBODY) -> Config:
    """Returns the configuration of settings from a file; errors call the file `where`."""
    try:
        return build(source, trust=trust)
    except InputError as error:
        raise InputError(f"{where}: its settings cannot be used here ({error})") from error


def resolve(settings: Settings, trust: Trust = NOBODY) -> Config:
    """Returns the configuration of settings; raises an InputError if they do not fit."""
    with within("config"):
        return _resolve(settings, trust)


def _resolve(settings: Settings, trust: Trust) -> Config:
    decay, branch = settings.decay, settings.branch
    clock = Clock(settings.batch_size, settings.model.length, settings.chinchilla_tokens)
    clock = read_growth(settings.batch_growth, clock)
    with within("schedule"):
        rate = learning_rate = _build_schedule(settings.schedule, clock)
    end = clock.time_at(decay.horizon, "decay.horizon") if decay.horizon else rate.end
    branch_step = _branch_step(branch, clock, end)
    if decay.horizon:
        assert end is not None
        step = clock.branch_step(clock.step_of(end)) if branch_step is None else branch_step
        with within("decay"):
            allowed = "a point whose decay starts after the warmup"
            ok = clock.time(step) >= rate.warmup_end
            require(ok, "horizon", decay.horizon, allowed)
            allowed = f"a point after the start of its decay, which is update {step:,}"
            allowed += ", 90% of it" if branch_step is None else ""
            require(clock.time(step) < end, "horizon", decay.horizon, allowed)
            learning_rate = schedules.Decay(rate, clock.time(step), end, decay.floor, decay.shape)
    _check_rates(settings.schedule, learning_rate)
    last = learning_rate.end
    horizon = None if last is None else clock.step_of(last)
    keep, layers = settings.checkpoint.keep_every, settings.log.layers
    data = settings.data.mixture or settings.data.path
    stages, sources = make_run_stages(
        settings.model, data, settings.stages, branch.stage, branch_step, clock
    )
    values: dict[str, Any] = {
        x.name: getattr(settings, x.name) for x in dataclasses.fields(Settings)
    }
    config = Config(
        **values,
        directory=settings.run_dir or _directory(settings),
        clock=clock,
        learning_rate=learning_rate,
        horizon=horizon,
        averaging_rules=_averaging_rules(settings.averages),
        run_stages=stages,
        sources=sources,
        stop_rule=read_stop(settings.stop, clock, horizon),
        branch_step=branch_step,
        eval_steps=_count_steps(clock, settings.eval.every, "eval.every"),
        checkpoint_steps=_count_steps(clock, settings.checkpoint.every, "checkpoint.every"),
        keep_steps=None if keep == "never" else _count_steps(clock, keep, "checkpoint.keep_every"),
        log_steps=_count_steps(clock, settings.log.every, "log.every"),
        layer_steps=None if layers == "never" else _count_steps(clock, layers, "log.layers"),
        task_steps=_task_steps(clock, settings.eval.tasks_every),
        trust=trust,
    )
    _check(config)
    return config


def _build_schedule(kind: Kind, clock: Clock) -> schedules.Schedule:
    """Returns the schedule of a kind, with every point converted to a time of the clock."""
    times = {
        name: clock.time_at(value, name)
        for name, value in kind.settings.items()
        if name in kind.times
    }
    return kind.build(**times)


def _check_rates(kind: Kind, rate: schedules.Schedule) -> None:
    """Raises an InputError if a learning rate of the run is negative or not a number."""
    end = _LAST_CHECKED if rate.end is None else rate.end
    geometric = np.geomspace(1, max(end, 1), 64).astype(int)
    times = np.unique([0, rate.warmup_end, *geometric[geometric <= end], end])
    with within("schedule"):
        with explain_errors([kind.cls.__module__]), np.errstate(all="ignore"):
            rates = rate.evaluate(times)
        if rates.shape != times.shape or not np.all(np.isfinite(rates) & (rates >= 0)):
            raise InputError(
                "its formula gives learning rates that are no numbers of at least 0: return one "
                "for each of its times",
                "kind",
                kind.name,
            )


def _branch_step(branch: BranchConfig, clock: Clock, end: int | None) -> int | None:
    """Returns the step at which a branch leaves its trunk; None for a run without one."""
    if not branch.from_run:
        return None
    if branch.at:
        return clock.step_at(branch.at, "branch.at")
    if end is None:
        raise InputError(
            'it needs branch.at, the point at which the branch leaves it, such as "800 steps", or '
            "decay.horizon, of which that is 90%",
            "branch.from_run",
            branch.from_run,
        )
    return clock.branch_step(clock.step_of(end))


def _averaging_rules(labels: tuple) -> dict[str, averaging.Rule]:
    for label in labels:
        require(isinstance(label, str), "averages", label, 'labels such as "f25" or "ema0.999"')
    with within("averages"):
        return averaging.label_rules([averaging.parse_rule(label) for label in labels])


def _count_steps(clock: Clock, point: str, name: str) -> int:
    """Returns the number of updates of a setting such as "1x", at the first batch size.

    The number stays the same when the batch grows.
    """
    steps = clock.without_growth.step_at(point, name)
    require(steps >= 1, name, point, "at least one update")
    return steps


def _task_steps(clock: Clock, every: str | tuple) -> int | frozenset[int]:
    name = "eval.tasks_every"
    if isinstance(every, str):
        return _count_steps(clock, every, name)
    return frozenset(clock.step_at(str(point), name) for point in every)


def _directory(settings: Settings) -> str:
    """Returns the run directory that follows from the name, such as `runs/NAME`."""
    branch = settings.branch
    if not branch.from_run:
        return f"runs/{settings.name}"
    point = (branch.at or settings.decay.horizon or "branch").replace(" ", "_")
    folder = branch.from_run.rstrip("/").rpartition("/")[0]
    return "/".join(filter(None, (folder, f"{settings.name}_{point}")))


def _check(config: Config) -> None:
    """Raises an InputError if settings do not fit each other."""
    number = config.microbatches
    part = config.batch_size if isinstance(number, str) else config.batch_size // number
    for run_stage in config.run_stages:
        length, tokens = run_stage.model.length, part * config.model.length
        allowed = f"a length that divides the {tokens:,} tokens of a microbatch (batch_size / "
        allowed += f"microbatches = {part} windows of {config.model.length})"
        name = "stages" if run_stage.step else "model.length"
        if run_stage.step == config.branch_step and "length" in config.branch.stage:
            name = "branch.change"
        require(tokens % length == 0, name, length, allowed)
    allowed = f"one sequence of model.length = {config.model.length}, or more"
    require(config.eval_windows(1, config.model.length), "eval.tokens", config.eval.tokens, allowed)
    weighed, allowed = dict(config.eval.weights), f"one of the sets {', '.join(config.sets)}"
    for name in weighed:
        require(name in config.sets, "eval.weights", name, allowed)
    labels = (averaging.LIVE, *config.averages)
    for name in config.sets if config.eval.sets or len(config.sets) > 1 else ():
        allowed = f"another name than those of weights: {', '.join(labels)}"
        setting = "eval.sets" if config.eval.sets else "data.mixture"
        require(name not in labels, setting, name, allowed)
    if exported := config.checkpoint.export:
        require(exported in labels, "checkpoint.export", exported, f"one of {', '.join(labels)}")
    if config.model.parametrization == "mup" and not config.follows_width:
        raise InputError(
            'it has no rule for the width, and model.parametrization = "mup" needs one: give a '
            'kind with follows_width, such as "adamw", or "standard"',
            "optimizer.kind",
            OPTIMIZERS.name_of(type(config.optimizer)),
        )
    if config.model.parametrization == "mup" and config.initial_weights:
        raise InputError(
            'its logits are at full scale, and model.parametrization = "mup" divides them: give '
            '"standard"',
            "initial_weights",
            config.initial_weights,
        )
    _check_branch(config)
    horizon, stop = config.horizon, config.stop_rule.step
    if horizon is not None and (stop is None or stop > horizon):
        raise InputError(
            f"it is past the end of the schedule at {config.clock.describe(horizon)}: stop there, "
            "with stop = 'horizon', or choose a schedule without an end",
            "stop",
            config.stop,
        )


def _check_branch(config: Config) -> None:
    known = all_settings() | declarations(Settings, config)
    allowed = [name for name, x in known.items() if x.facts.branch == "named"]
    for name in config.branch.named:
        hint = "; a branch keeps this one" if name in known else nearest(name, allowed)
        text = f'names of settings such as "schedule.peak", "optimizer.b2"{hint}'
        require(name in allowed, "branch.change", name, text)
    start, clock = config.branch_step, config.clock
    if start is None:
        return
    if config.initial_weights:
        raise InputError(
            f"it excludes branch.from_run = {format_value(config.branch.from_run)}: a branch "
            "starts from the weights of its trunk",
            "initial_weights",
            config.initial_weights,
        )
    warmup = config.learning_rate.warmup_end
    if clock.time(start) < warmup:
        raise InputError(
            f"it would leave its trunk at {clock.describe(start)}, before the end of the warmup at "
            f"{clock.describe(clock.step_of(warmup))}: choose a later point",
            "branch",
        )
    if config.stop_rule.step is not None and config.stop_rule.step <= start:
        raise InputError(
            f"it is not after the branch point at {clock.describe(start)}: stop later, or leave "
            "the trunk earlier",
            "stop",
            config.stop,
        )
