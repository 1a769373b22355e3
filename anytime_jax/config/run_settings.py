"""Settings of a run, each declared once with its rules.

The defaults are the paper's 150M model. docs/settings.md is generated from these declarations.
"""

import dataclasses
from typing import Any, Literal

from anytime_jax import schedules
from anytime_jax.checks import (
    is_number,
    require,
    require_count,
    require_directory,
    require_fraction,
    require_positive,
)
from anytime_jax.config.kinds import Kind, Kinds
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import MODELS, Dtype, ModelConfig
from anytime_jax.config.settings_reader import ByName, Declaration, declarations, setting
from anytime_jax.config.stages import MODEL_FIELDS, check_sets
from anytime_jax.errors import InputError
from anytime_jax.optimizers.interface import Optimizer

SCHEDULES = Kinds("schedule", schedules.Schedule, has_times=True)
OPTIMIZERS = Kinds("optimizer", Optimizer, default="adamw")
STAGED = {f"model.{name}": name for name in MODEL_FIELDS}  # settings that begin with a branch
_CHANGES = 'names of settings such as "schedule.peak", and of length and rotation the values from '
_CHANGES += 'the branch point on, {"model.length": 4096, "model.rope_theta": 5e5}'


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Source of the token windows.

    Attributes:
      path: dataset written by `anytime prepare`: the source of a run without a mixture.
      mixture: sources by name, each with its dataset and its weight: {"web": ("data/web", 0.7),
        "code": ("data/code", 0.3)}.
      text: path or address of the text from which `prepare --config` makes the dataset.
      validation_text: path or address of its validation text; empty to set a part of the text
        aside.
      vocabulary: path or address of the vocabulary; empty for the one of `initial_weights`.
      builtin_megabytes: megabytes of the built-in text to prepare at `path` if nothing is there; 0
        to refuse instead.
      seed: seed of the order of the windows.
      documents: "join" lets a token attend to its whole window, as in the paper; "mask", to its own
        document only.
      boundary_loss: whether the loss of an end of text, which predicts the first token of another
        document, counts in training.
      most_documents: largest number of documents in a window that "mask" keeps apart; cuDNN's
        attention takes memory for this number.
      surplus: what to do with a window that has more than `most_documents`: "merge" the others into
        the last one, or "refuse" it, which ends the run.
      repeat: whether to begin another pass when the windows of a source are used up; otherwise the
        run stops.
      skip: samples after the checkpoint to leave out, by their numbers in the messages of bad
        updates, which count from 0: ((3200, 3231),) leaves out 32.
    """

    path: str = setting("data/c4-t5", identity=False)
    mixture: ByName = setting((), identity=False)
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
    skip: tuple = setting((), identity=False, branch="free")

    def __post_init__(self) -> None:
        require_directory("path", self.path)
        ok = is_number(self.builtin_megabytes) and 0 <= self.builtin_megabytes < 1e6
        require(ok, "builtin_megabytes", self.builtin_megabytes, "megabytes of text, 0 for none")
        require_count("seed", self.seed)
        require_count("most_documents", self.most_documents, least=2)
        least = 0
        for x in self.skip:
            ok = isinstance(x, tuple) and len(x) == 2 and all(type(y) is int for y in x)
            ok = ok and least <= x[0] <= x[1] < 2**62
            require(ok, "skip", self.skip, "((3200, 3231), ...), first and last sample, in order")
            least = x[1] + 1


@dataclasses.dataclass(frozen=True)
class BranchConfig:
    """Checkpoint of another run, the trunk, from which this run starts.

    Attributes:
      from_run: directory of the trunk; empty for a run that is no branch.
      at: point at which the branch leaves the trunk, where the trunk has a checkpoint; empty for
        90% of the horizon of the branch.
      data: dataset or mixture to continue with; empty for the trunk's. A source that the trunk has
        read goes on where the trunk stopped reading it.
      change: settings that differ from the trunk's on purpose, such as ("schedule.peak",). Length
        and rotation are given with their values from the branch point on: {"model.length": 4096,
        "model.rope_theta": 5e5}, also model.rope_scaling.
    """

    from_run: str = setting("", identity=False)
    at: str = ""
    data: str | ByName = setting("", identity=False)
    change: tuple = setting((), identity=False)

    def __post_init__(self) -> None:
        for name in ("from_run", "data"):
            if isinstance(value := getattr(self, name), str) and value:
                require_directory(name, value)
        names = [name for name in ("at", "data", "change") if getattr(self, name)]
        if not self.from_run and names:
            value = getattr(self, names[0])
            raise InputError("it needs from_run, the directory of the trunk", names[0], value)
        for x in self.change:
            ok = isinstance(x, str) or (isinstance(x, tuple) and len(x) == 2 and x[0] in STAGED)
            ok = ok and x not in STAGED
            require(ok, "change", self.change, _CHANGES)

    @property
    def named(self) -> tuple[str, ...]:
        """The settings in `change` whose new value is at their own place."""
        return tuple(x for x in self.change if isinstance(x, str))

    @property
    def stage(self) -> dict[str, Any]:
        """What changes where the branch leaves its trunk, as an item of `stages` has it."""
        stage = {STAGED[x[0]]: x[1] for x in self.change if not isinstance(x, str)}
        return stage | ({"mixture": self.data} if self.data else {})


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
    """Handling of bad updates, and of a start that is stuck.

    Attributes:
      skip: "nothing" stops the run at the first loss or gradient that is not finite; "nonfinite"
        skips such updates; "spikes" also skips updates whose loss is a spike.
      spike: a loss is a spike if it is this many standard deviations above the mean of recent
        losses.
      limit: number of bad updates in a row that are skipped before the run stops.
      silence: minutes without a sign of life after which a start ends with status 75; it prints the
        stacks of all threads before. 0 is never, and "auto" is 30 where several processes run.
    """

    skip: Literal["nothing", "nonfinite", "spikes"] = "nothing"
    spike: float = 6.0
    limit: int = 10
    silence: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        require_positive("spike", self.spike)
        require_count("limit", self.limit, least=1)
        if self.silence != "auto":
            ok = is_number(self.silence) and 0 <= self.silence < 1e6
            require(ok, "silence", self.silence, "minutes, 0 for never, or 'auto'")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation of the live weights and their averages.

    Attributes:
      every: distance between evaluations. Every doubling, 1x, 2x, 4x, ..., is evaluated too.
      sets: datasets whose validation splits are evaluated, by name: {"web": "data/web"}; empty for
        the sources of the run.
      weights: weight of each set in the mean, {"web": 0.5, "code": 0.5}; empty for the weights of
        the last stage's mixture, or equal weights.
      tokens: number of tokens of a validation split that are evaluated, rounded down to windows;
        the same random windows every time. Each of several sets has this many, or all that it has.
      batch_size: sequences evaluated at once.
      positions: ends of ranges of positions in a window whose losses are recorded too: with
        (8, 32, 64), the mean losses of tokens 1 to 8, 9 to 32, 33 to 64 and the rest.
      tasks: tasks of lm-evaluation-harness in which all weights are scored: names, or paths of YAML
        files.
      tasks_every: distance between their scores, or points: ("1x", "4x"). The end of the run is
        scored too.
    """

    every: str = "1x"
    sets: ByName = ()
    weights: ByName = ()
    tokens: int | Literal["all"] = 32_800_000
    batch_size: int = 32
    positions: tuple = ()
    tasks: tuple = ()
    tasks_every: str | tuple = "1x"

    def __post_init__(self) -> None:
        for name in self.tasks:
            require(isinstance(name, str) and name, "tasks", name, "the name of a task")
        if self.tokens != "all":
            require_count("tokens", self.tokens, least=1)
        require_count("batch_size", self.batch_size, least=1)
        for end in self.positions:
            require_count("positions", end, least=1)
        check_sets(self.sets, self.weights)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints that are saved and kept.

    Attributes:
      every: distance between rolling checkpoints.
      keep: number of rolling checkpoints that are kept.
      keep_every: distance between checkpoints that are kept for ever, besides the milestones (1x,
        2x, 4x, ..., and 90% of each); or "never".
      export: stored weights, "last" or an average, that are exported at milestones and at the stop,
        into `exports/` of the run; empty for none.
    """

    every: str = "1000 steps"
    keep: int = 2
    keep_every: str = "never"
    export: str = ""

    def __post_init__(self) -> None:
        require_count("keep", self.keep, least=1)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Records of the training.

    Attributes:
      every: distance between rows of the records.
      relative_updates: whether to record the norm of every parameter's update over its own norm.
      layers: distance between rows with the sizes of each layer's weights, gradients and
        activations, such as "100 steps"; or "never".
      trackers: where metrics go besides the records, by kind, with the settings of each:
        {"tensorboard": {}, "wandb": {"project": "mine"}}. A kind may be a class as
        package.module:Class.
    """

    every: str = "20 steps"
    relative_updates: bool = False
    layers: str = "never"
    trackers: ByName = (("tensorboard", ()),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run.

    Attributes:
      name: name of the run in records and logs.
      run_dir: directory of the run's checkpoints, records and figures; empty for runs/NAME, and for
        a branch NAME_POINT beside its trunk.
      seed: seed of the initial parameters.
      initial_weights: directory of an exported model to start from; empty for random parameters.
      batch_size: sequences in an update.
      microbatches: number of parts in which a batch is computed, one after another. "auto" is the
        fewest that fit the devices, found when the run begins and kept; "again" finds it anew. A
        batch that has grown has more parts of the same size.
      accumulation: type in which the gradients of microbatches are summed; "bfloat16" takes half
        the memory and rounds every sum to 8 bits.
      batch_growth: batch size from a point on, {"2x": 512, "8x": 1024}.
      stages: values of length, rope_theta, rope_scaling and mixture from a point on: {"8x":
        {"length": 4096}, "16x": {"mixture": {...}}}.
      chinchilla_tokens: tokens of the budget 1x, about 20 for each parameter of the blocks.
      stop: point at which a start ends; with "+", as in "4x+", a start from there or beyond goes on
        to the next doubling; "horizon" is the end of the schedule, and "never" is no end.
      averages: averages of the weights: "f25" (a growing window: about the last 1/25 of the run has
        half of the weight), "ema0.999", "uniform", "uniform1000" (from time 1000 on).
      clip_norm: largest global norm of the gradient.
      model: decoder.
      data: source of the token windows.
      branch: trunk of a branch.
      schedule: learning rate.
      decay: decay of the learning rate at the end.
      optimizer: method of the updates.
      guard: bad updates, and a start that is stuck.
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
    batch_growth: ByName = setting((), branch="named")
    stages: ByName = setting((), identity=False)
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
        if not isinstance(self.microbatches, str):
            require_count("microbatches", self.microbatches, least=1)
            if self.batch_size % self.microbatches:
                reason = f"it does not divide batch_size = {self.batch_size}"
                raise InputError(reason, "microbatches", self.microbatches)
        ok = 0 < self.chinchilla_tokens < 2**63
        require(ok, "chinchilla_tokens", self.chinchilla_tokens, "from 1 to below 2^63")
        require_positive("clip_norm", self.clip_norm)


def all_settings() -> dict[str, Declaration]:
    """Returns the declaration of every setting by dotted name."""
    return declarations(Settings)


def group_names() -> list[str]:
    """Returns the names of the groups of settings."""
    return list(dict.fromkeys(name.partition(".")[0] for name in all_settings() if "." in name))


def _require_word(name: str, text: str) -> None:
    ok = text.strip() and text.isprintable() and len(text) <= 200
    require(ok, name, text, "up to 200 printable characters")
