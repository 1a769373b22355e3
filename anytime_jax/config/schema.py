"""Settings of a run: every one declared once, and the rules that span them.

`build` turns the settings of a configuration file (`configs/base.py` lists all) into a checked
`Config`. docs/settings.md is generated from these declarations.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from anytime_jax import averaging, schedules
from anytime_jax.checks import LARGEST_COUNT, format_value, is_number, require
from anytime_jax.config import optimization, seesaw
from anytime_jax.config.clock import Clock, Stop, read_stop
from anytime_jax.config.fields import (
    DIRECTORY,
    POINT,
    WORD,
    Allowed,
    Group,
    Setting,
    allow,
    count,
    declarations,
    errors_named,
    flatten,
    nearest,
    or_empty,
    read,
    setting,
)
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.token_averaging import count_tokens

Section = Literal["eval", "checkpoint", "log"]  # sections with a setting "every"


@dataclasses.dataclass(frozen=True)
class DataConfig(Group):
    """Source of the token windows."""

    path: str = setting(
        "dataset written by `python -m anytime_jax prepare`", DIRECTORY, identity=False
    )
    builtin_megabytes: float = setting(
        "text of the built-in corpus to prepare at `path` if nothing is there; 0 to refuse instead",
        allow("megabytes of text, 0 for none", lambda megabytes: 0 <= megabytes < 1e6),
        identity=False,
    )
    seed: int = setting("seed of the order of the windows", count(), per_run=True, variant=False)
    repeat: bool = setting(
        "whether to start another pass when the windows are used up, rather than stop",
        identity=False,
    )


@dataclasses.dataclass(frozen=True)
class BranchConfig(Group):
    """Checkpoint of another run, the trunk, from which this run starts."""

    from_run: str = setting(
        "directory of the trunk; empty for a run that starts at its own first update",
        or_empty(DIRECTORY),
        identity=False,
        per_run=True,
    )
    multiple: float = setting(
        "horizon in Chinchilla multiples; the branch leaves the trunk at 90% of it",
        allow(
            "a multiple of the Chinchilla budget, 0 for none",
            lambda multiple: is_number(multiple) and 0 <= multiple < LARGEST_COUNT,
        ),
        per_run=True,
    )
    step: int = setting(
        "step of the trunk's checkpoint to leave from, 0 where `multiple` gives it",
        count(),
        per_run=True,
    )
    data: str = setting(
        "directory of other data to continue with, from their beginning; empty for the trunk's",
        or_empty(DIRECTORY),
        identity=False,
    )
    change: tuple = setting(
        'settings meant to differ from the trunk\'s, such as ("schedule.peak",)',
        Allowed("names of settings of the schedule or the optimizer"),
        identity=False,
        per_run=True,
    )

    def _check(self) -> None:
        names = [name for name in ("multiple", "step", "data", "change") if getattr(self, name)]
        if not self.from_run and names:
            value = format_value(getattr(self, names[0]))
            raise ValueError(f"{names[0]} = {value} needs from_run: the directory of the trunk")
        if self.from_run and bool(self.multiple) == bool(self.step):
            raise ValueError(
                f"from_run = {format_value(self.from_run)} needs one of multiple (the horizon, "
                "such as 4: the branch leaves at 90% of it) and step (the trunk's checkpoint): "
                + ("both are set" if self.step else "neither is set")
            )


@dataclasses.dataclass(frozen=True)
class MeshConfig(Group):
    """Devices along each axis of the mesh."""

    data: int = setting(
        "devices that split the batch and replicate the parameters; -1 for all that remain",
        Allowed("from 1, or -1", lambda name, value: value == -1 or count(1).check(name, value)),
    )
    fsdp: int = setting("devices that split the batch and the parameters", count(1))
    tensor: int = setting("devices that split each matrix product", count(1))


@dataclasses.dataclass(frozen=True)
class EvalConfig(Group):
    """Evaluation of the live weights and their averages."""

    every: str = setting("distance between evaluations; 1x, 2x, 4x, ... come besides", POINT)
    tokens: int | Literal["all"] = setting(
        "tokens of the validation split, rounded down to windows: the first ones, every time",
        count(1),
    )
    batch_size: int = setting("sequences evaluated at once", count(1))


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Group):
    """Checkpoints that are saved and kept."""

    every: str = setting("distance between rolling checkpoints", POINT)
    keep: int = setting("rolling checkpoints kept", count(1))
    keep_every: str = setting(
        "distance between checkpoints kept for ever, besides the milestones: 1x, 2x, 4x, ... and "
        "90% of each",
        Allowed(f'{POINT.text}, or "never"'),
    )


@dataclasses.dataclass(frozen=True)
class LogConfig(Group):
    """Records of the training."""

    every: str = setting("distance between rows of the records", POINT)
    tensorboard: bool = setting("whether to write TensorBoard files too")
    wandb_project: str = setting(
        "Weights & Biases project to mirror to; empty for none", or_empty(WORD)
    )


@dataclasses.dataclass(frozen=True)
class Config(Group):
    """Every setting of a run, with the schedule, clock and averages that they define."""

    name: str = setting("name of the run in records and logs", WORD, identity=False, per_run=True)
    run_dir: str = setting(
        "directory of its checkpoints, records and figures", DIRECTORY,
        identity=False, per_run=True,
    )  # fmt: skip
    seed: int = setting("seed of the initial parameters", count(), per_run=True, variant=False)
    initial_weights: str = setting(
        "directory of an exported model to start from; empty for random parameters",
        or_empty(DIRECTORY),
        identity=False,
        per_run=True,
    )
    batch_size: int = setting("sequences in an update", count(1))
    microbatches: int = setting(
        "parts in which a batch is computed one after another; a batch that has grown has more of "
        "them, of the same size",
        count(1),
        identity=False,
    )
    batch_growth: tuple | Literal["seesaw"] = setting(
        'points at which the batch grows, and its size from there: (("2x", 512), ("8x", 1024)); '
        '"seesaw" doubles it where the schedule would halve the rate, which falls by sqrt(2)',
        Allowed("later points, larger batches"),
    )
    chinchilla_tokens: int = setting(
        "tokens of the budget 1x", allow("from 1 to below 2^63", lambda tokens: 0 < tokens < 2**63)
    )
    stop: str = setting(
        '"4x+" goes on to the next doubling when run again; "horizon" is the end of the schedule',
        Allowed('a point, a point with "+", "horizon" or "never"'),
        identity=False,
        per_run=True,
    )
    averages: tuple = setting(
        'averages of the weights: 25.0 or "f25" (growing window), "ema0.999", "uniform", '
        '"uniform1000" (from step 1000)',
        Allowed("numbers f and labels, each once"),
        identity=False,
    )
    average_every: int = setting(
        "updates from one update of the averages to the next; an evaluation or checkpoint between "
        "two of them sees averages that are at most average_every - 1 updates old",
        count(1),
    )
    average_clock: Literal["updates", "tokens"] = setting(
        "what the averages' windows count where the batch grows; tokens are in units of the first "
        "batch",
        default="updates",
    )
    average_memory: Literal["device", "host"] = setting(
        "memory in which the averages are kept between their updates", identity=False
    )
    model: ModelConfig = setting("shape and arithmetic of the decoder")
    data: DataConfig = setting("source of the token windows")
    branch: BranchConfig = setting("trunk of a branch", branch="free", variant=False)
    schedule: optimization.ScheduleConfig = setting("learning rate", branch="named", per_run=True)
    optimizer: optimization.OptimizerConfig = setting("optimizer and clipping", branch="named")
    guard: optimization.GuardConfig = setting("bad updates", identity=False)
    mesh: MeshConfig = setting("devices along each axis", identity=False)
    eval: EvalConfig = setting("evaluation", identity=False)
    checkpoint: CheckpointConfig = setting("checkpoints", identity=False)
    log: LogConfig = setting("records", identity=False)

    @functools.cached_property
    def clock(self) -> Clock:
        """Conversion between steps, tokens and Chinchilla multiples."""
        clock = self._schedule_clock
        return seesaw.grow(clock, self._schedule_rate, self.schedule) if self._seesaw else clock

    @property
    def _seesaw(self) -> bool:
        return self.batch_growth == "seesaw"

    @functools.cached_property
    def _schedule_clock(self) -> Clock:
        """The clock on which the schedule is read: without the growth that comes of it."""
        growth = () if isinstance(self.batch_growth, str) else self.batch_growth
        return Clock(self.batch_size, self.model.length, self.chinchilla_tokens, growth)

    @functools.cached_property
    def _trunk_clock(self) -> Clock:
        """The clock of a branch's trunk."""
        clock = self._schedule_clock
        return seesaw.trunk_clock(clock, self.schedule) if self._seesaw else clock

    @functools.cached_property
    def averaging_rules(self) -> dict[str, averaging.Rule]:
        """The averaging rules by label."""
        try:
            rules = averaging.label_rules([optimization.averaging_rule(x) for x in self.averages])
        except ValueError as error:
            raise ValueError(f"averages: {error}") from error
        return {label: self.on_average_clock(rule) for label, rule in rules.items()}

    def on_average_clock(self, rule: averaging.Rule) -> averaging.Rule:
        """Returns an averaging rule that counts what `average_clock` says."""
        return count_tokens(rule, self.clock) if self.average_clock == "tokens" else rule

    @functools.cached_property
    def learning_rate(self) -> schedules.Schedule:
        """The learning rate as a function of the update."""
        rate, clocks = self._schedule_rate, (self._schedule_clock, self.clock)
        return seesaw.replace_decay(rate, self.schedule, *clocks) if self._seesaw else rate

    @functools.cached_property
    def _schedule_rate(self) -> schedules.Schedule:
        """The learning rate of the schedule on its clock."""
        clock, points = self._schedule_clock, (self.branch_step, self.branch_horizon)
        steps = (x and seesaw.same_point(x, self._trunk_clock, clock) for x in points)
        with errors_named("schedule"):
            return self.schedule.build(clock, *steps)

    @functools.cached_property
    def stop_rule(self) -> Stop:
        """The step at which the run stops, and whether it doubles afterwards."""
        return read_stop(self.stop, self.clock, self.learning_rate.horizon_steps)

    @functools.cached_property
    def branch_step(self) -> int | None:
        """The update at which the run leaves its trunk; None for a run without one."""
        horizon = self.branch_horizon
        return (
            None if horizon is None else self.branch.step or self._trunk_clock.branch_step(horizon)
        )

    @functools.cached_property
    def branch_horizon(self) -> int | None:
        """The horizon of a branch, in updates of its trunk; None for a run without one."""
        if not self.branch.from_run:
            return None
        if not self.branch.multiple:
            return self._trunk_clock.horizon_of_branch(self.branch.step)
        return self._trunk_clock.step_at(f"{self.branch.multiple:.9f}x", "branch.multiple")

    def eval_windows(self, available: int) -> int:
        """Returns the number of validation windows per evaluation, of those available."""
        tokens = self.eval.tokens
        return available if isinstance(tokens, str) else tokens // self.model.length

    def interval_steps(self, section: Section) -> int:
        """Returns the distance between evaluations, rolling checkpoints or rows, in updates."""
        return self._count_steps(getattr(self, section).every, f"{section}.every")

    @property
    def keep_every_steps(self) -> int | None:
        """Distance between permanent checkpoints, in updates; None for milestones only."""
        if self.checkpoint.keep_every == "never":
            return None
        return self._count_steps(self.checkpoint.keep_every, "checkpoint.keep_every")

    def _count_steps(self, point: str, name: str) -> int:
        """Returns a distance in updates, which stays constant as the batch grows."""
        steps = dataclasses.replace(self.clock, growth=()).step_at(point, name)
        require(steps >= 1, name, point, "at least one update")
        return steps

    def select(self, condition: Callable[[Setting], bool]) -> dict[str, Any]:
        """Returns the settings whose declarations satisfy a condition, by dotted name."""
        flat = flatten(self.to_dict()).items()
        return {name: value for name, value in flat if condition(SETTINGS[name])}

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """Returns the identity settings by dotted name, with the fingerprint of the data.

        Other settings affect losses only by rounding, or are checked by the digest of the trunk's
        checkpoint or of the initial weights.
        """
        return {**self.select(lambda x: x.identity), "data.fingerprint": fingerprint}

    def _check(self) -> None:
        _ = self.clock.stages, self.averaging_rules, self.learning_rate, self.stop_rule
        _ = [self.interval_steps(section) for section in typing.get_args(Section)]
        _ = self.keep_every_steps
        if self.batch_size % self.microbatches:
            raise ValueError(
                f"microbatches = {self.microbatches} does not divide batch_size = {self.batch_size}"
            )
        part = self.batch_size // self.microbatches
        for _, size in self.clock.growth:
            allowed = f"a multiple of batch_size / microbatches = {part}"
            require(size % part == 0, "batch_growth", size, allowed)
        allowed = f"one sequence of model.length = {self.model.length}, or more"
        require(self.eval_windows(1), "eval.tokens", self.eval.tokens, allowed)
        self._check_branch()
        horizon, stop = self.learning_rate.horizon_steps, self.stop_rule.step
        updates = LARGEST_COUNT if stop is None else stop - (self.branch_step or 0)
        allowed = f"at most the {updates} updates of the run, or no average would ever move"
        ok = not self.averages or self.average_every <= updates
        require(ok, "average_every", self.average_every, allowed)
        if horizon is not None and (stop is None or stop > horizon):
            raise ValueError(
                f"stop = {format_value(self.stop)} is past the end of the schedule at "
                f"{self.clock.describe(horizon)}: stop there, or choose a schedule without an end"
            )

    def _check_branch(self) -> None:
        for name in self.branch.change:
            hint = "a branch keeps this one" if name in SETTINGS else nearest(str(name), CHANGEABLE)
            allowed = f'names of settings such as "schedule.peak", "optimizer.b2" ({hint})'
            require(name in CHANGEABLE, "branch.change", name, allowed)
        start, clock = self.branch_step, self.clock
        if start is None:
            return
        if self.initial_weights:
            raise ValueError(
                f"initial_weights = {format_value(self.initial_weights)} and branch.from_run = "
                f"{format_value(self.branch.from_run)} exclude each other: a branch starts from "
                "the weights of its trunk"
            )
        warmup = self.schedule.warmup
        if start < clock.step_at(warmup, "schedule.warmup"):
            raise ValueError(
                f"branch: it would leave its trunk at {clock.describe(start)}, before the end of "
                f"the warmup at {warmup}: choose a later point"
            )
        if self.stop_rule.step is not None and self.stop_rule.step <= start:
            raise ValueError(
                f"stop = {format_value(self.stop)} is not after the branch point at "
                f"{clock.describe(start)}: stop later, or leave the trunk earlier"
            )


SETTINGS = declarations(Config)
# Values of settings that files from before them do not have.
DEFAULTS = {name: x.default for name, x in SETTINGS.items() if x.default is not None}
# Settings that `branch.change` may list.
CHANGEABLE = tuple(
    name for name, x in SETTINGS.items() if x.branch != "inherits" and "branch." not in name
)


def build(source: Mapping[str, Any]) -> Config:
    """Returns the checked configuration of a run from nested dictionaries.

    An InputError states the setting, its value and the allowed values.
    """
    config = read(Config, source)
    if not config.branch.data:
        return config
    data = dataclasses.replace(config.data, path=config.branch.data, builtin_megabytes=0.0)
    return dataclasses.replace(config, data=data)
