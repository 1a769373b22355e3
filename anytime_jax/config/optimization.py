"""Settings of the optimization: learning rate, optimizer, guard, and the names of averages."""

import dataclasses
import pkgutil
from typing import Literal

from anytime_jax import averaging, schedules
from anytime_jax.checks import reject, require
from anytime_jax.config.clock import Clock
from anytime_jax.config.fields import (
    FRACTION,
    POINT,
    POSITIVE,
    Allowed,
    Group,
    allow,
    count,
    setting,
)
from anytime_jax.optimizers import Optimizer


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Group):
    """Learning rate; each kind is a function of `anytime_jax.schedules`.

    "power_decay" is the `schedules.Decay` of a power law, the inverse square root at gamma = 0.5.
    """

    kind: Literal["constant", "inverse_sqrt", "power", "cosine", "linear", "wsd", "power_decay"] = (
        setting("formula of the learning rate", branch="free", variant=False)
    )
    peak: float = setting("largest learning rate", POSITIVE)
    warmup: str = setting("end of the linear warmup", POINT)
    warmup_init: float = setting("learning rate of the first update over the peak", FRACTION)
    alpha: float | None = setting(
        "time scale of the decay in updates", POSITIVE,
        kinds=("inverse_sqrt", "power", "power_decay"), branch="free",
    )  # fmt: skip
    gamma: float | None = setting(
        "exponent of the decay",
        allow("0 or more", lambda gamma: gamma >= 0),
        kinds=("power", "power_decay"),
        branch="free",
    )
    horizon: str | None = setting(
        'end of the decay; "branch" for the horizon that the branch names',
        Allowed(f'{POINT.text}, or "branch"'),
        kinds=("cosine", "linear", "wsd", "power_decay"),
        branch="free",
        variant=False,
    )
    floor: float | None = setting(
        "learning rate at the horizon over the peak", FRACTION,
        kinds=("cosine", "linear", "wsd", "power_decay"), branch="free",
    )  # fmt: skip
    shape: schedules.DecayShape | None = setting(
        "shape of the decay over the last 10%", kinds=("wsd", "power_decay"), branch="free"
    )

    def build(
        self, clock: Clock, branch_step: int | None, branch_horizon: int | None
    ) -> schedules.Schedule:
        """Returns the learning rate as a function of the update.

        `branch_step` and `branch_horizon`, the value of `horizon = "branch"`, are in updates.
        """
        points = ("warmup", "horizon")
        arguments = {k: v for k, v in self.to_dict().items() if k not in ("kind", *points)}
        warmup = clock.step_at(self.warmup, "warmup")
        arguments["warmup_steps"] = warmup
        if self.horizon == "branch":
            if branch_horizon is None:
                raise ValueError(
                    'horizon = "branch" needs a trunk: give branch.from_run and branch.multiple, '
                    'or a horizon such as "4x"'
                )
            arguments["horizon"] = branch_horizon
        elif self.horizon is not None:
            arguments["horizon"] = clock.step_at(self.horizon, "horizon")
        if self.kind in ("wsd", "power_decay"):
            start = branch_step or clock.branch_step(arguments["horizon"])
            allowed = f"over before the decay starts at update {start:,}"
            require(warmup <= start, "warmup", self.warmup, allowed)
            arguments["start"] = start
        if self.kind == "power_decay":
            decay = {name: arguments.pop(name) for name in ("start", "horizon", "floor", "shape")}
            return schedules.Decay(schedules.power(**arguments), **decay)
        return getattr(schedules, self.kind)(**arguments)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Group):
    """Optimizer, and the clipping of gradients before it; see `training.optimizer`."""

    # float32 rounds numbers closer to 1 up to 1, and the inverses of smaller ones to infinity.
    _DECAY = allow("from 0 to below 1, in float32 too", lambda decay: 0 <= decay < 1 - 2**-25)
    _INSIDE = allow("above 0 and below 1, in float32 too", lambda x: 2**-126 <= x < 1 - 2**-25)
    _MUON = ("muon", "schedule_free_muon", "gpa_muon", "ema_nesterov_muon")
    _INTERPOLATED = ("schedule_free_adamw", "schedule_free_muon", "gpa", "gpa_muon")
    _EXTRAPOLATED = ("ema_nesterov", "ema_nesterov_muon")

    kind: Literal[
        "adamw",
        "muon",
        "schedule_free_adamw",
        "schedule_free_muon",
        "gpa",
        "gpa_muon",
        "pace",
        "ema_nesterov",
        "ema_nesterov_muon",
    ] = setting("method; docs/optimizers.md has the formulas", default="adamw", branch="inherits")
    b1: float = setting(
        "decay of the first moment", _DECAY, per_run=True,
        kinds=("adamw", "muon", "gpa", "gpa_muon", "pace", *_EXTRAPOLATED),
    )  # fmt: skip
    b2: float = setting("decay of the second moment", _DECAY, per_run=True)
    epsilon: float = setting("added to the root of the second moment", POSITIVE, per_run=True)
    weight_decay: float = setting(
        "decoupled decay of every parameter, times the learning rate", FRACTION
    )
    clip_norm: float = setting("largest global norm of the gradient", POSITIVE)
    momentum: float = setting("decay of the momentum of matrices", _DECAY, kinds=_MUON)
    normalize_rows: bool = setting(
        "whether each neuron's part of a matrix's update is divided by its size (NorMuon)",
        kinds=_MUON,
        branch="inherits",
    )
    interpolation: float = setting(
        "weight of x in the parameters, which are interpolation * x + (1 - interpolation) * z",
        _INSIDE,
        kinds=_INTERPOLATED,
        branch="inherits",
    )
    interpolation_power: float = setting(
        "power of 1/t with which `interpolation` approaches 1 after the warmup; 0 to leave it",
        FRACTION,
        kinds=("schedule_free_muon",),
    )
    x_average: str = setting(
        'average of z that x is, such as "ema0.9967", or the growing window "f25"',
        Allowed("the label of an average"),
        kinds=("gpa", "gpa_muon"),
    )
    ema_decay: float = setting("decay of the average `ema`", _INSIDE, kinds=_EXTRAPOLATED)
    ema_power: float = setting(
        "power of 1/t at which the newest weight in `ema` falls", FRACTION, kinds=("pace",)
    )
    pullback: float = setting(
        "strength of the pull of the parameters towards `ema`", POSITIVE, kinds=("pace",)
    )
    extrapolation: float = setting(
        "displacement of the parameters beyond theta, in mean displacements of an update; the "
        "parameters grow without bound from 1 on",
        _INSIDE,
        kinds=_EXTRAPOLATED,
    )

    def build(self) -> Optimizer:
        """Returns the dataclass of the kind: a bridge until the kinds are the settings."""
        settings = {k: v for k, v in self.to_dict().items() if k not in ("kind", "clip_norm")}
        kind = self.kind
        if settings.pop("normalize_rows", False):
            require(kind == "muon", "normalize_rows", True, "false, but for muon")
            kind = "normuon"
        laboratory = "anytime_jax.lab.optimizers"
        names = {
            "adamw": "anytime_jax.optimizers:AdamW",
            "muon": "anytime_jax.optimizers:Muon",
            "normuon": f"{laboratory}:NorMuon",
            "schedule_free_adamw": "anytime_jax.optimizers:ScheduleFreeAdamW",
            "schedule_free_muon": f"{laboratory}:AMUSE",
            "gpa": f"{laboratory}:GPA",
            "gpa_muon": f"{laboratory}:GPA",
            "pace": "anytime_jax.optimizers:Pace",
            "ema_nesterov": f"{laboratory}:EMANesterov",
            "ema_nesterov_muon": f"{laboratory}:EMANesterov",
        }
        if kind in ("gpa_muon", "ema_nesterov_muon"):
            settings["matrices"] = "muon"
        return pkgutil.resolve_name(names[kind])(**settings)

    def _check(self) -> None:
        if self.x_average is None:
            return
        try:
            averaging_rule(self.x_average)
        except ValueError:
            form = 'the label of an average, such as "ema0.9967", "f25" or "uniform"'
            reject("x_average", self.x_average, form)


@dataclasses.dataclass(frozen=True)
class GuardConfig(Group):
    """Handling of bad updates."""

    skip: Literal["nothing", "nonfinite", "spikes"] = setting(
        '"nothing" stops the run at the first loss or gradient that is not finite; "nonfinite" '
        'skips such updates; "spikes" skips those of a spiking loss too'
    )
    spike: float = setting(
        "standard deviations above the mean of recent losses from which a loss is a spike", POSITIVE
    )
    limit: int = setting("bad updates in a row that are skipped before the run stops", count(1))


averaging_rule = averaging.parse_rule
