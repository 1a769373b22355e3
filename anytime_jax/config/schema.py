"""From a configuration file to one frozen, fully checked `Config`.

The file is Python and returns an `ml_collections.ConfigDict` in which every setting is visible
(`configs/base.py` lists them all). Here it becomes frozen dataclasses: a setting that is missing,
unknown, of another type or at odds with another is refused before anything is compiled.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from anytime_jax import averaging, schedules
from anytime_jax.checks import (
    LARGEST_COUNT,
    format_value,
    is_number,
    require,
    require_choice,
    require_count,
    require_directory,
    require_fraction,
    require_positive,
    require_word,
)
from anytime_jax.config.clock import Clock, Stop, read_stop
from anytime_jax.config.fields import NOT_IDENTITY, Section, without
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError

# What of a trunk's settings a branch may change where `branch.change` names it.
CHANGEABLE = ("schedule.", "optimizer.")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where token windows come from.

    Attributes:
      path: directory of a dataset written by `anytime_jax.commands.prepare`.
      builtin_megabytes: text of the built-in corpus to prepare at `path` if nothing is there yet;
        0 to refuse instead.
      seed: seed of the order of the windows.
      repeat: whether to start another pass when the windows are used up, rather than stop.
    """

    path: str
    builtin_megabytes: float
    seed: int
    repeat: bool

    def __post_init__(self) -> None:
        """Checks every field."""
        require_directory("path", self.path)
        ok = 0 <= self.builtin_megabytes < 1e6
        require(ok, "builtin_megabytes", self.builtin_megabytes, "megabytes of text, 0 for none")
        require_count("seed", self.seed)


@dataclasses.dataclass(frozen=True)
class BranchConfig:
    """The checkpoint of another run, the trunk, that this one begins from.

    Attributes:
      from_run: directory of the trunk; empty for a run that begins at its own first update.
      multiple: horizon in Chinchilla multiples; the branch leaves the trunk at 90% of it.
      step: the trunk's checkpoint to leave from, if it is not given by `multiple`.
      data: directory of other data to go on with, from their beginning; empty for the trunk's.
      change: names of settings that are meant to differ from the trunk's.
    """

    from_run: str
    multiple: float
    step: int
    data: str
    change: tuple

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("from_run", "data"):
            if value := getattr(self, name):
                require_directory(name, value)
        ok = is_number(self.multiple) and 0 <= self.multiple < LARGEST_COUNT
        require(ok, "multiple", self.multiple, "a multiple of the Chinchilla budget, 0 for none")
        require_count("step", self.step)
        for name in self.change:
            ok = isinstance(name, str) and name.startswith(CHANGEABLE)
            require(ok, "change", name, 'names of settings such as "schedule.peak", "optimizer.b2"')
        given = [name for name in ("multiple", "step", "data", "change") if getattr(self, name)]
        if not self.from_run and given:
            value = format_value(getattr(self, given[0]))
            raise ValueError(f"{given[0]} = {value} needs from_run: the directory of the trunk")
        if self.from_run and bool(self.multiple) == bool(self.step):
            given = "both are given" if self.step else "none is given"
            raise ValueError(
                f"from_run = {format_value(self.from_run)} needs one of multiple (the horizon, such as 4: "
                f"the branch leaves at 90% of it) and step (the trunk's checkpoint): {given}"
            )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and the clip before it.

    Attributes:
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decoupled decay of every parameter, times the learning rate.
      clip_norm: largest global norm of the gradient.
    """

    b1: float
    b2: float
    epsilon: float
    weight_decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("b1", "b2"):
            value = getattr(self, name)
            # float32 rounds what is nearer to 1 up to it.
            require(0 <= value < 1 - 2**-25, name, value, "from 0 to below 1, in float32 too")
        require_positive("epsilon", self.epsilon)
        require_fraction("weight_decay", self.weight_decay)
        require_positive("clip_norm", self.clip_norm)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """When and on what the weights and their averages are evaluated.

    Attributes:
      every: distance between evaluations, as a point; those at 1x, 2x, 4x, ... come besides.
      tokens: tokens of the validation split, rounded down to windows: the first ones, every time.
      batch_size: sequences evaluated at once.
    """

    every: str
    tokens: int
    batch_size: int

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("tokens", self.tokens, least=1)
        require_count("batch_size", self.batch_size, least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What is saved and kept.

    Attributes:
      every: distance between rolling checkpoints, as a point.
      keep: number of rolling checkpoints kept.
      keep_every: distance between checkpoints kept for ever, as a point; "never" for only the
        doublings 1x, 2x, 4x, ... and the branch point at 90% of each, which are always kept.
    """

    every: str
    keep: int
    keep_every: str

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("keep", self.keep, least=1)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What is written while training.

    Attributes:
      every: distance between rows of the records, as a point.
      tensorboard: whether to write TensorBoard files too.
      wandb_project: Weights & Biases project to mirror to; empty for none.
    """

    every: str
    tensorboard: bool
    wandb_project: str

    def __post_init__(self) -> None:
        """Checks what the other settings do not."""
        if self.wandb_project:
            require_word("wandb_project", self.wandb_project)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes.

    Attributes:
      data: devices that split the batch and repeat the parameters; -1 for all that remain.
      fsdp: devices that split the batch and the parameters.
      tensor: devices that split each matrix product.
    """

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self) -> None:
        """Checks every field."""
        if self.data != -1:
            require_count("data", self.data, least=1)
        require_count("fsdp", self.fsdp, least=1)
        require_count("tensor", self.tensor, least=1)


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """What counts as a bad update, and what becomes of it.

    Attributes:
      skip: "nothing": the run stops at the first update whose loss or gradient is not finite;
        "nonfinite": it passes over such updates; "spikes": over those of a spiking loss too.
      spike: standard deviations above the mean of the last losses from which on a loss is a spike.
      limit: bad updates in a row that are passed over; one more stops the run.
    """

    skip: Literal["nothing", "nonfinite", "spikes"]
    spike: float
    limit: int

    def __post_init__(self) -> None:
        """Checks every field."""
        require_choice("skip", self.skip, ("nothing", "nonfinite", "spikes"))
        require_positive("spike", self.spike)
        require_count("limit", self.limit, least=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything about a run.

    Attributes:
      name: what the run is called in records and logs.
      run_dir: directory of its checkpoints, records and pictures.
      seed: seed of the initial parameters.
      initial_weights: directory of an exported model to begin from in their place, if any.
      batch_size: sequences in an update; `clock.growth` says where there are more.
      microbatches: parts in which a batch is computed one after another; a batch that has grown
        has more of them, of the same size.
      clock: steps, tokens and multiples of this run.
      stop: when it ends.
      model: shape and arithmetic of the decoder.
      data: where token windows come from: for a branch on other data, those.
      branch: the checkpoint of another run that this one begins from, if any.
      schedule: the learning rate.
      optimizer: AdamW and its clip.
      guard: what becomes of updates that went wrong.
      averages: averaging rules by label.
      average_every: updates from one move of the averages to the next. Points at which the run is
        evaluated or saved need not be multiples of it: the averages seen there are at most
        average_every - 1 updates old.
      average_memory: where the averages are kept between their moves, "device" or "host".
      mesh: devices along each axis.
      eval: evaluation.
      checkpoint: what is saved and kept.
      log: what is written.
      source: the same settings as plain nested data, as saved with every checkpoint.
    """

    name: str
    run_dir: str
    seed: int
    initial_weights: str
    batch_size: int
    microbatches: int
    clock: Clock
    stop: Stop
    model: ModelConfig
    data: DataConfig
    branch: BranchConfig
    schedule: schedules.Schedule
    optimizer: OptimizerConfig
    guard: GuardConfig
    averages: Mapping[str, averaging.Rule]
    average_every: int
    average_memory: str
    mesh: MeshConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    source: Mapping[str, Any]

    @property
    def branch_step(self) -> int | None:
        """The update at which the run leaves its trunk; None for a run of its own."""
        return _branch_step(self.branch, self.clock)

    @property
    def eval_windows(self) -> int:
        """Validation windows evaluated."""
        return self.eval.tokens // self.model.length

    def every(self, what: Literal["eval", "checkpoint", "log"]) -> int:
        """Returns the distance between evaluations, rolling checkpoints or rows, in updates."""
        return _distance(self.clock, getattr(self, what).every, f"{what}.every")

    @property
    def keep_every_steps(self) -> int | None:
        """Distance between checkpoints kept for ever, in updates; None for milestones only."""
        if self.checkpoint.keep_every == "never":
            return None
        return _distance(self.clock, self.checkpoint.keep_every, "checkpoint.keep_every")

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """Returns the settings that make this run what it is, flat, with the data's fingerprint."""
        given = {"branch": self.branch.from_run, "batch_growth": self.clock.growth}
        unused = [name for name, value in given.items() if not value]
        kept = without(self.source, (*NOT_IDENTITY, *unused))
        return {**kept, "data.fingerprint": fingerprint}


# Settings that the first runs did not write down yet, as those runs had them.
_SINCE = {
    "batch_growth": (), "average_every": 1, "average_memory": "device", "initial_weights": "",
}  # fmt: skip


def build_saved(source: Mapping[str, Any]) -> Config:
    """Returns the configuration that a run of this or an earlier version wrote down."""
    return build({**_SINCE, **source})


def build(source: Mapping[str, Any]) -> Config:
    """Returns the checked configuration.

    Args:
      source: plain nested data, as `ConfigDict.to_dict()` gives.

    Raises:
      InputError: one line that names the setting, what was given and what is allowed.
    """
    fields = Section("config", source)
    sections = (
        "model", "data", "branch", "schedule", "optimizer", "guard", "mesh", "eval",
        "checkpoint", "log",
    )  # fmt: skip
    top = {
        "name": str, "run_dir": str, "seed": int, "batch_size": int, "microbatches": int,
        "average_every": int, "average_memory": str, "initial_weights": str,
    }  # fmt: skip
    fields.check_names([*top, *sections, "batch_growth", "chinchilla_tokens", "stop", "averages"])
    values = {name: fields.typed(name, kind) for name, kind in top.items()}
    with fields.errors():
        require_word("name", values["name"])
        require_directory("run_dir", values["run_dir"])
        if values["initial_weights"]:
            require_directory("initial_weights", values["initial_weights"])
        for name in ("seed", "batch_size", "microbatches", "average_every"):
            require_count(name, values[name], least=0 if name == "seed" else 1)
        require_choice("average_memory", values["average_memory"], ("device", "host"))
    model = fields.section("model").build(ModelConfig)
    with fields.errors():
        chinchilla_tokens = fields.typed("chinchilla_tokens", int)
        given = fields.typed("batch_growth", tuple)
        growth = tuple(tuple(each) if isinstance(each, list) else each for each in given)
        clock = Clock(values["batch_size"], model.length, chinchilla_tokens, growth)
    with fields.errors("averages"):
        averages = averaging.label_rules([_rule(rule) for rule in fields.typed("averages", tuple)])
    branch = fields.section("branch").build(BranchConfig)
    schedule = _schedule(fields.section("schedule"), clock, branch)
    with fields.errors():
        stop = read_stop(fields.typed("stop", str), clock, schedule.horizon_steps)
    config = Config(
        **values,
        clock=clock,
        stop=stop,
        model=model,
        data=_data(fields.section("data").build(DataConfig), branch),
        branch=branch,
        schedule=schedule,
        optimizer=fields.section("optimizer").build(OptimizerConfig),
        guard=fields.section("guard").build(GuardConfig),
        averages=averages,
        mesh=fields.section("mesh").build(MeshConfig),
        eval=fields.section("eval").build(EvalConfig),
        checkpoint=fields.section("checkpoint").build(CheckpointConfig),
        log=fields.section("log").build(LogConfig),
        source=source,
    )
    with fields.errors():
        _check_together(config)
    return config


def check_layout(
    config: Config,
    devices: int,
    batch_shards: int,
    tensor: int,
    platform: str,
    host_memory: bool = True,
) -> None:
    """Checks the batch, the heads, the attention and the averages against the device mesh.

    Args:
      config: the configuration.
      devices: number of devices in the mesh.
      batch_shards: number of parts into which the mesh splits a batch.
      tensor: number of devices that split each matrix product.
      platform: what the devices are: "cpu", "gpu" or "tpu".
      host_memory: whether they can keep arrays in the memory of their hosts.

    Raises:
      InputError: if something does not divide, or the devices lack it.
    """
    per_step = config.batch_size // config.microbatches
    for name, size in (
        ("batch_size / microbatches", per_step),
        ("eval.batch_size", config.eval.batch_size),
    ):
        if size % batch_shards:
            raise InputError(
                f"config.{name} = {size} is not divisible by the {batch_shards} parts into which a "
                f"mesh of {devices} devices splits a batch (mesh.data x mesh.fsdp): choose a "
                f"multiple of {batch_shards}, or a mesh with fewer parts"
            )
    if config.model.heads % tensor:
        raise InputError(
            f"config.model.heads = {config.model.heads} is not divisible by config.mesh.tensor = "
            f"{tensor}: choose a mesh that keeps heads whole"
        )
    if config.model.attention == "cudnn" and platform != "gpu":
        raise InputError(
            f"config.model.attention = 'cudnn' needs a GPU, not a {platform}: try 'auto'"
        )
    if config.average_memory == "host" and not host_memory:
        raise InputError(
            f"config.average_memory = 'host' needs devices that reach the memory of their host; "
            f"JAX offers none on this {platform}: set 'device'"
        )


def _distance(clock: Clock, point: str, name: str) -> int:
    """A distance in updates, which stays the same where the batch grows: that of its first size."""
    steps = dataclasses.replace(clock, growth=()).steps(point, name)
    require(steps >= 1, name, point, "at least one update")
    return steps


def _check_together(config: Config) -> None:
    """Checks every rule that spans settings."""
    if config.batch_size % config.microbatches:
        raise ValueError(
            f"microbatches = {config.microbatches} does not divide batch_size = {config.batch_size}"
        )
    part = config.batch_size // config.microbatches
    for _, size in config.clock.growth:
        if size % part:
            raise ValueError(
                f"batch_growth: {size} is not a multiple of batch_size / microbatches = {part}"
            )
    for what in ("eval", "checkpoint", "log"):
        config.every(what)
    _ = config.keep_every_steps
    if config.eval_windows == 0:
        raise ValueError(
            f"eval.tokens = {config.eval.tokens} is less than one sequence of "
            f"model.length = {config.model.length}"
        )
    if config.initial_weights and config.branch.from_run:
        raise ValueError(
            f"initial_weights = {format_value(config.initial_weights)} and branch.from_run = "
            f"{format_value(config.branch.from_run)} exclude each other: a branch begins from its trunk"
        )
    _check_branch(config)
    horizon = config.schedule.horizon_steps
    if horizon is not None and (config.stop.step is None or config.stop.step > horizon):
        given = format_value(config.source["stop"])
        raise ValueError(
            f"stop = {given} is past the schedule's horizon of {config.clock.describe(horizon)}: "
            "stop there or earlier, or choose a schedule without a horizon"
        )


def _check_branch(config: Config) -> None:
    """Checks where a run leaves its trunk against its own warmup and stop."""
    leaves, clock, warmup = config.branch_step, config.clock, config.source["schedule"]["warmup"]
    if leaves is None:
        return
    if leaves < clock.steps(warmup, "schedule.warmup"):
        raise ValueError(
            f"branch: it would leave its trunk at {clock.describe(leaves)}, before the end of the "
            f"warmup at {warmup}: choose a later point"
        )
    if config.stop.step is not None and config.stop.step <= leaves:
        raise ValueError(
            f"stop = {format_value(config.source['stop'])} is not after the branch point at "
            f"{clock.describe(leaves)}: stop later, or leave the trunk earlier"
        )


def _rule(given: Any) -> averaging.Rule | float:
    """Reads an average: a number f, or a label such as "f25", "ema0.999", "uniform1000"."""
    if type(given) is not bool and isinstance(given, int | float) and is_number(given):
        return given
    form = r"(f|ema|uniform)([0-9]{0,30}\.?[0-9]{0,30})"
    match = re.fullmatch(form, given) if isinstance(given, str) else None
    kind, number = match.groups() if match else ("", "")
    if kind == "uniform" and "." not in number:
        return averaging.Uniform(int(number or 0))
    if kind in ("f", "ema") and number.strip("."):
        value = float(number)
        return averaging.GrowingWindow(value) if kind == "f" else averaging.FixedDecay(value)
    raise ValueError(
        f"{format_value(given)} is not an average: give a number f, or one of the forms "
        '"f25", "ema0.999", "uniform", "uniform1000"'
    )


_SCHEDULES: dict[str, dict[str, type]] = {
    "constant": {},
    "inverse_sqrt": {"alpha": float},
    "power": {"gamma": float, "alpha": float},
    "cosine": {"horizon": str, "floor": float},
    "linear": {"horizon": str, "floor": float},
    "wsd": {"horizon": str, "floor": float, "shape": str},
}


def _branch_step(branch: BranchConfig, clock: Clock) -> int | None:
    """The update at which a branch leaves its trunk; None if there is no branch."""
    if not branch.from_run:
        return None
    return branch.step or clock.branch_step(_multiple(branch, clock))


def _multiple(branch: BranchConfig, clock: Clock) -> int:
    return clock.steps(f"{branch.multiple:.9f}x", "branch.multiple")


def _horizon(given: str, clock: Clock, branch: BranchConfig) -> int:
    """The end of a schedule: a point, or "branch", the horizon that the branch names."""
    if given != "branch":
        return clock.steps(given, "horizon")
    step = _branch_step(branch, clock)
    if step is None:
        raise ValueError(
            'horizon = "branch" needs a trunk: give branch.from_run and branch.multiple, or a '
            'horizon such as "4x"'
        )
    return _multiple(branch, clock) if branch.multiple else clock.horizon_of_branch(step)


def _data(data: DataConfig, branch: BranchConfig) -> DataConfig:
    """The data a run reads: a branch may go on with others than its trunk's."""
    if not branch.data:
        return data
    return dataclasses.replace(data, path=branch.data, builtin_megabytes=0.0)


def _schedule(section: Section, clock: Clock, branch: BranchConfig) -> schedules.Schedule:
    """Builds the learning rate: `kind` names a constructor of `schedules`."""
    kind = section.typed("kind", str)
    with section.errors():
        require_choice("kind", kind, tuple(_SCHEDULES))
    extra = _SCHEDULES[kind]
    takes = ["kind", "peak", "warmup", "warmup_init", *extra]
    section.check_names(takes, f"the schedule {kind!r} takes {', '.join(takes)}")
    given = {name: section.typed(name, of) for name, of in extra.items()}
    with section.errors():
        given["peak"] = section.typed("peak", float)
        given["warmup_init"] = section.typed("warmup_init", float)
        require_fraction("warmup_init", given["warmup_init"])
        given["warmup_steps"] = clock.steps(section.typed("warmup", str), "warmup")
        if "horizon" in given:
            given["horizon"] = _horizon(given["horizon"], clock, branch)
        if kind == "wsd":
            own = clock.branch_step(given["horizon"])
            given["start"] = _branch_step(branch, clock) or own
            within, warmup = given["warmup_steps"] <= given["start"], section.typed("warmup", str)
            allowed = f"over before the decay begins at update {given['start']:,}"
            require(within, "warmup", warmup, allowed)
        return getattr(schedules, kind)(**given)
