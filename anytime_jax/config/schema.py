"""Settings of a run, each declared once, and what follows from them.

`build` turns the settings of a configuration file into a `Config`: the `Settings` with clock,
learning rate, averages, stop and branch, which `resolve` works out. The defaults are the
paper's 150M model. docs/settings.md is generated from these declarations.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from anytime_jax import averaging, schedules
from anytime_jax.checks import (
    is_number,
    require,
    require_count,
    require_directory,
    require_fraction,
    require_positive,
)
from anytime_jax.config import seesaw
from anytime_jax.config.clock import Clock, Stop, read_growth, read_stop
from anytime_jax.config.fields import (
    BY_NAME,
    Declaration,
    Facts,
    declarations,
    flatten,
    read,
    setting,
    to_dict,
)
from anytime_jax.config.kinds import (
    EVERY_PACKAGE,
    NOBODY,
    Kind,
    Kinds,
    Trust,
    explain_errors,
    is_trusted,
)
from anytime_jax.config.model import MODELS, Dtype, ModelConfig
from anytime_jax.config.other_names import nearest
from anytime_jax.config.stages import RunStage, check_sets, make_run_stages
from anytime_jax.data.mixture import DataStage, Mixture
from anytime_jax.errors import InputError, format_value, within
from anytime_jax.optimizers.interface import Optimizer

SCHEDULES = Kinds("schedule", schedules.Schedule, has_times=True)
_LAST_CHECKED = 10**7  # updates of a schedule without an end
OPTIMIZERS = Kinds("optimizer", Optimizer, default="adamw")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Source of the token windows.

    Attributes:
      path: dataset written by `python -m anytime_jax prepare`, the only source of a run without a
        mixture.
      mixture: sources with their datasets and weights, {"web": ("data/web", 0.7), "code":
        ("data/code", 0.3)}.
      text: path or address of the text that `prepare --config` makes it of.
      validation_text: the same, for validation; empty to set a part of the text aside.
      vocabulary: path or address of the vocabulary; empty for the one of `initial_weights`.
      builtin_megabytes: text of the built-in corpus to prepare at `path` if nothing is there; 0 to
        refuse instead.
      seed: seed of the order of the windows.
      documents: "join" lets a token attend to all of its window, as the paper does; "mask" to its
        own document only.
      boundary_loss: whether the loss of an end of text, which predicts the first token of another
        document, counts in training.
      most_documents: documents of a window that "mask" keeps apart; cuDNN's attention takes memory
        for as many.
      surplus: what to do with a window that has more: "merge" the others into the last one, or
        "refuse" it, which ends the run.
      repeat: whether to start another pass when the windows of a source are used up, rather than
        stop.
    """

    path: str = setting("data/c4-t5", identity=False)
    mixture: Annotated[tuple, BY_NAME] = setting((), identity=False)
    text: str = setting("", identity=False)
    validation_text: str = setting("", identity=False)
    vocabulary: str = setting("", identity=False)
    builtin_megabytes: float = setting(0.0, identity=False)
    seed: int = 0
    documents: Literal["join", "mask"] = setting("join", branch="named")
    boundary_loss: bool = setting(True, branch="named")
    most_documents: int = setting(64, branch="named")
    surplus: Literal["merge", "refuse"] = setting("merge", identity=False)
    repeat: bool = setting(False, identity=False)  # the paper never repeats data

    def __post_init__(self) -> None:
        require_directory("path", self.path)
        ok = is_number(self.builtin_megabytes) and 0 <= self.builtin_megabytes < 1e6
        require(ok, "builtin_megabytes", self.builtin_megabytes, "megabytes of text, 0 for none")
        require_count("seed", self.seed)
        require_count("most_documents", self.most_documents, least=2)


@dataclasses.dataclass(frozen=True)
class BranchConfig:
    """Checkpoint of another run, the trunk, from which this run starts.

    Attributes:
      from_run: directory of the trunk; empty for a run that starts at its own first update.
      at: point at which the branch leaves the trunk, where it has a checkpoint; empty for 90% of
        the horizon of the branch.
      data: dataset or mixture to continue with; empty for the trunk's. A source that the trunk has
        read goes on where it is.
      change: settings meant to differ from the trunk's, such as ("schedule.peak",).
    """

    from_run: str = setting("", identity=False)
    at: str = ""
    data: str | tuple = setting("", identity=False)
    change: tuple = setting((), identity=False)

    def __post_init__(self) -> None:
        for name in ("from_run", "data"):
            if isinstance(value := getattr(self, name), str) and value:
                require_directory(name, value)
        names = [name for name in ("at", "data", "change") if getattr(self, name)]
        if not self.from_run and names:
            value = getattr(self, names[0])
            raise InputError("it needs from_run, the directory of the trunk", names[0], value)


@dataclasses.dataclass(frozen=True)
class DecayConfig:
    """Decay of the learning rate at the end, which makes a WSD run of any schedule.

    It starts where a branch leaves its trunk; without a branch, at 90% of the horizon.

    Attributes:
      horizon: end of the decay and of the run; empty for no decay.
      floor: learning rate at the horizon over the peak.
      shape: shape of the decay.
    """

    horizon: str = ""
    floor: float = 0.0
    shape: schedules.DecayShape = "linear"

    def __post_init__(self) -> None:
        require_fraction("floor", self.floor)


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """Handling of bad updates.

    Attributes:
      skip: "nothing" stops the run at the first loss or gradient that is not finite; "nonfinite"
        skips such updates; "spikes" skips updates of a spiking loss too.
      spike: standard deviations above the mean of recent losses from which a loss is a spike.
      limit: bad updates in a row that are skipped before the run stops.
    """

    skip: Literal["nothing", "nonfinite", "spikes"] = "nothing"
    spike: float = 6.0
    limit: int = 10

    def __post_init__(self) -> None:
        require_positive("spike", self.spike)
        require_count("limit", self.limit, least=1)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh.

    Attributes:
      data: devices that split the batch and the state, and compute with whole parameters; -1 for
        all that remain.
      fsdp: devices that split the batch, the state and the parameters that they compute with.
      tensor: devices that split each matrix product.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.data != -1:
            require_count("data", self.data, least=1)
        require_count("fsdp", self.fsdp, least=1)
        require_count("tensor", self.tensor, least=1)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation of the live weights and their averages.

    Attributes:
      every: distance between evaluations; 1x, 2x, 4x, ... come as well.
      sets: datasets whose validation splits are evaluated, by name: {"web": "data/web"}; empty for
        the sources of the run.
      weights: weight of each set in the mean, {"web": 0.5, "code": 0.5}; empty for the mixture of
        the last stage, or equal ones.
      tokens: tokens of a validation split, rounded down to windows: the same random ones always. Of
        several sets, each has as many, or all that it has.
      batch_size: sequences evaluated at once.
    """

    every: str = "1x"
    sets: Annotated[tuple, BY_NAME] = ()
    weights: Annotated[tuple, BY_NAME] = ()
    tokens: int | Literal["all"] = 32_800_000
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.tokens != "all":
            require_count("tokens", self.tokens, least=1)
        require_count("batch_size", self.batch_size, least=1)
        check_sets(self.sets, self.weights)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints that are saved and kept.

    Attributes:
      every: distance between rolling checkpoints.
      keep: rolling checkpoints kept.
      keep_every: distance between checkpoints kept for ever, as well as the milestones: 1x, 2x, 4x,
        ... and 90% of each; or "never".
    """

    every: str = "1000 steps"
    keep: int = 2
    keep_every: str = "never"

    def __post_init__(self) -> None:
        require_count("keep", self.keep, least=1)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Records of the training.

    Attributes:
      every: distance between rows of the records.
      relative_updates: whether to record the norm of every parameter's update over its own norm.
      tensorboard: whether to write TensorBoard files too.
      wandb_project: Weights & Biases project to mirror to; empty for none.
    """

    every: str = "20 steps"
    relative_updates: bool = False
    tensorboard: bool = True
    wandb_project: str = ""

    def __post_init__(self) -> None:
        if self.wandb_project:
            _require_word("wandb_project", self.wandb_project)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run.

    Attributes:
      name: name of the run in records and logs.
      run_dir: directory of its checkpoints, records and figures; empty for runs/NAME, and for a
        branch NAME_POINT in the folder of its trunk.
      seed: seed of the initial parameters.
      initial_weights: directory of an exported model to start from; empty for random parameters.
      batch_size: sequences in an update.
      microbatches: parts in which a batch is computed one after another; a batch that has grown has
        more of them, of the same size. "auto" is the fewest that fit the devices, found when the
        run begins and kept; "again" finds it anew.
      accumulation: type in which the gradients of microbatches are summed; "bfloat16" takes half
        the memory and rounds every sum to 8 bits.
      batch_growth: points at which the batch grows, and its size from there: (("2x", 512),
        ("8x", 1024)); "seesaw" doubles it where the schedule would halve the rate, which falls by
        sqrt(2).
      stages: what changes from a point on, of length, rope_theta, rope_scaling and mixture: {"8x":
        {"length": 4096}, "16x": {"mixture": {...}}}.
      chinchilla_tokens: tokens of the budget 1x.
      stop: a point; "4x+" goes on to the next doubling when run again; "horizon" is the end of the
        schedule; or "never".
      averages: averages of the weights: "f25" (growing window), "ema0.999", "uniform",
        "uniform1000" (from time 1000).
      clip_norm: largest global norm of the gradient.
      model: decoder.
      data: source of the token windows.
      branch: trunk of a branch.
      schedule: learning rate.
      decay: decay of the learning rate at the end.
      optimizer: method of the updates.
      guard: bad updates.
      mesh: devices along each axis.
      eval: evaluation.
      checkpoint: checkpoints.
      log: records.
    """

    name: str = setting(identity=False)
    run_dir: str = setting("", identity=False)
    seed: int = 0
    initial_weights: str = setting("", identity=False)
    batch_size: int = 256
    microbatches: int | Literal["auto", "again"] = setting(8, identity=False)
    accumulation: Dtype = setting("float32", identity=False)
    batch_growth: tuple | Literal["seesaw"] = ()
    stages: Annotated[tuple, BY_NAME] = setting((), identity=False)
    chinchilla_tokens: int = 3_276_800_000  # 20 for each parameter of the 150M model's blocks
    stop: str = setting("32x", identity=False)
    averages: tuple = setting(("f6.25", "f12.5", "f25", "f50", "f100"), identity=False)
    clip_norm: float = setting(1.0, branch="named")
    model: ModelConfig = setting(kinds=MODELS)
    data: DataConfig = setting(DataConfig)
    branch: BranchConfig = setting(BranchConfig, branch="free")
    schedule: Kind = setting(kinds=SCHEDULES, branch="named")
    decay: DecayConfig = setting(DecayConfig, branch="free")
    optimizer: Any = setting(kinds=OPTIMIZERS, branch="named", kind_facts={"branch": "inherits"})
    guard: GuardConfig = setting(GuardConfig, identity=False)
    mesh: MeshConfig = setting(MeshConfig, identity=False)
    eval: EvalConfig = setting(EvalConfig, identity=False)
    checkpoint: CheckpointConfig = setting(CheckpointConfig, identity=False)
    log: LogConfig = setting(LogConfig, identity=False)

    def __post_init__(self) -> None:
        _require_word("name", self.name)
        for name in ("run_dir", "initial_weights"):
            if getattr(self, name):
                require_directory(name, getattr(self, name))
        require_count("seed", self.seed)
        require_count("batch_size", self.batch_size, least=1)
        if isinstance(self.microbatches, str):
            allowed = "a number of parts, 'auto' or 'again'"
            ok = self.microbatches in ("auto", "again")
            require(ok, "microbatches", self.microbatches, allowed)
        else:
            require_count("microbatches", self.microbatches, least=1)
            if self.batch_size % self.microbatches:
                reason = f"it does not divide batch_size = {self.batch_size}"
                raise InputError(reason, "microbatches", self.microbatches)
        ok = 0 < self.chinchilla_tokens < 2**63
        require(ok, "chinchilla_tokens", self.chinchilla_tokens, "from 1 to below 2^63")
        require_positive("clip_norm", self.clip_norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The settings of a run, and what follows from them; made by `build` or `resolve`.

    Attributes:
      directory: the run directory: the setting `run_dir`, or else what follows from the name.
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

    def rate_at(self, step: int) -> float:
        """Returns the learning rate of the update after `step` updates."""
        return float(self.learning_rate.evaluate(self.clock.time(step)))

    def stage_at(self, step: int) -> RunStage:
        """Returns the stage of the update after `step` updates."""
        return next(x for x in reversed(self.run_stages) if x.step <= step)

    def batches(self, step: int) -> Iterator[tuple[int, int | None]]:
        """Yields the windows in an update from a step on, each number with its updates.

        The last number of updates is None: it has no end.
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

    @functools.cached_property
    def mixture(self) -> Mixture:
        """The order in which the run reads its sources."""
        return Mixture(
            [
                DataStage(self.samples(x.step), x.model.length, dict(x.weights))
                for x in self.run_stages
            ]
        )

    def windows_read(self, step: int) -> Iterator[tuple[RunStage, dict[str, int]]]:
        """Yields the stages of the first `step` updates, and the windows of each source read.

        The windows are those read up to the end of the stage, or to `step`, since the last change
        of the length.
        """
        for number, stage in enumerate(self.run_stages):
            if number == 0 or stage.step < step:
                end = min([step, *(x.step for x in self.run_stages[number + 1 : number + 2])])
                yield stage, self.mixture.counts(self.samples(end), number)

    @property
    def sets(self) -> dict[str, str]:
        """The dataset of every validation set, by name."""
        return dict(self.eval.sets) or self.sources

    def eval_rows(self, length: int) -> int:
        """Windows of a length evaluated at once: of longer ones fewer, with the same tokens."""
        return max(self.eval.batch_size * self.model.length // length, 1)

    @property
    def follows_width(self) -> bool:
        """Whether the class of the optimizer itself follows the width (`optimizers.RunInfo`)."""
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

        Other settings affect losses only by rounding, or are checked by the digest of the trunk's
        checkpoint or of the initial weights, or with the stages.
        """
        return {**self.select(lambda x: x.identity), "data.fingerprint": fingerprint}

    def packages(self) -> Trust:
        """Returns the modules of the kinds that the settings name from other packages."""
        groups = (x for x in self.to_dict().values() if isinstance(x, dict) and "kind" in x)
        names = [group["kind"] for group in groups]
        modules = (name.partition(":")[0] for name in names if ":" in name)
        return tuple(x for x in modules if not is_trusted(x, NOBODY))


def all_settings() -> dict[str, Declaration]:
    """Returns the declaration of every setting by dotted name."""
    return declarations(Settings)


def groups() -> dict[str, dict[str, Any]]:
    """Returns an empty dictionary for every group of settings, by name."""
    return {name.partition(".")[0]: {} for name in all_settings() if "." in name}


def build(source: Mapping[str, Any], trust: Trust = EVERY_PACKAGE) -> Config:
    """Returns the configuration of a run from nested dictionaries.

    `trust` says which packages are imported for kinds that are named `package.module:Class`; for
    settings that a run directory or a model holds, give `NOBODY` or what the user trusts. An
    InputError states the setting, its value and the allowed values.
    """
    return resolve(read(Settings, source, trust))


def build_saved(source: Any, where: str, trust: Trust = NOBODY) -> Config:
    """Returns the configuration of settings that a file holds, which `where` names in errors."""
    try:
        return build(source, trust)
    except InputError as error:
        raise InputError(f"{where}: its settings cannot be used here ({error})") from error


def resolve(settings: Settings) -> Config:
    """Returns settings with what follows from them; raises an InputError if they do not fit."""
    with within("config"):
        return _resolve(settings)


def _resolve(settings: Settings) -> Config:
    growth, decay, branch = settings.batch_growth, settings.decay, settings.branch
    first = Clock(settings.batch_size, settings.model.length, settings.chinchilla_tokens)
    if growth != "seesaw":
        first = read_growth(growth, first)
    with within("schedule"):
        rate = _build_schedule(settings.schedule, first)
    # A branch has the clock of its trunk up to where it leaves it.
    clock, learning_rate = seesaw.grow(first, rate) if growth == "seesaw" else (first, rate)
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
        if growth == "seesaw":
            clock, learning_rate = seesaw.grow(first, learning_rate)
    _check_rates(settings.schedule, learning_rate)
    last = learning_rate.end
    horizon = None if last is None else clock.step_of(last)
    keep = settings.checkpoint.keep_every
    data = settings.data.mixture or settings.data.path
    stages, sources = make_run_stages(
        settings.model, data, settings.stages, branch.data, branch_step, clock
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
    )
    _check(config)
    return config


def _build_schedule(kind: Kind, clock: Clock) -> schedules.Schedule:
    """Returns a schedule whose points are times of a clock."""
    times = {
        name: clock.time_at(value, name)
        for name, value in kind.settings.items()
        if name in kind.times
    }
    return kind.build(**times)


def _check_rates(kind: Kind, rate: schedules.Schedule) -> None:
    """Raises an InputError if learning rates over a run are not numbers of at least 0."""
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
    """Returns a distance in updates, which stays constant as the batch grows."""
    steps = clock.without_growth.step_at(point, name)
    require(steps >= 1, name, point, "at least one update")
    return steps


def _directory(settings: Settings) -> str:
    """Returns the run directory that follows from the name."""
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
    for name in config.branch.change:
        hint = "a branch keeps this one" if name in known else nearest(str(name), allowed)
        text = f'names of settings such as "schedule.peak", "optimizer.b2" ({hint})'
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


def _require_word(name: str, text: str) -> None:
    ok = text.strip() and text.isprintable() and len(text) <= 200
    require(ok, name, text, "up to 200 printable characters")
