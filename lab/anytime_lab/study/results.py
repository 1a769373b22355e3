"""Results of a study: validation losses read from the records of its runs.

A `RunResult` is one run. A `LossCurve` is the loss of one choice of settings at every budget: the
evaluations along a single horizon-free run, or the ends of a family of runs with a horizon
(cosines, WSD branches), one run for each budget.
"""

import contextlib
import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytime_jax.averaging import LIVE, label_order
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader, run_json
from anytime_jax.checkpoints.metric_records import (
    Row,
    count_before,
    describe_missing,
    kernel_errors,
    read_records,
)
from anytime_jax.checks import is_number
from anytime_jax.commands.loss_table import evaluated_rows
from anytime_jax.config.clock import BRANCH_FRACTION, Clock
from anytime_jax.config.run_config import Config
from anytime_jax.config.settings_reader import flatten
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_error
from anytime_lab.study.plan import Study, StudyRun
from anytime_lab.study.tasks import check_evaluation

COSINE = "cosine"  # the schedule of the envelope
_NOT_COMPARED = re.compile(r"(data\.)?seed$|branch\.|decay\.|schedule\.(kind|horizon|start)$")
DECAY = ("floor", "shape", "decay", "data")  # settings that a decay from one trunk may vary
LOSS = "loss"  # the metric of the records over all positions
_Losses = dict[float, dict[str, float]]  # by point and weight label
_ReportedLosses = dict[float, dict[str, list[float]]]  # the same, on each set
NOTE = "note"  # an old run's note on what its settings do not say


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One run of a study. All points are in Chinchilla multiples.

    Attributes:
      kind: kind of schedule: "cosine", "constant", "inverse_sqrt", "wsd", ... (`schedule_kind`).
      settings: the choice of settings, by short name: `peak`, `b2`, ...
      seed: seeds of the weights and of the order of the data.
      label: weight label of the read-out: an average for a horizon-free run, else the live weights.
      horizon: None for a schedule without one.
      state: "finished" (evaluated at its stop), "at 2x" or "missing".
      losses: validation losses in nats per token, by point and weight label. Point 0, before the
        first update, is there if the run starts from given weights.
      reported: the losses on each reported set, or else the mean alone, by metric, point and weight
        label. The metric is "loss", or a range of positions such as "loss_9_to_32".
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    seed: tuple[int, int]
    label: str
    horizon: float | None
    stop: float
    state: str
    losses: Mapping[float, Mapping[str, float]]
    reported: Mapping[str, Mapping[float, Mapping[str, Sequence[float]]]]


@dataclasses.dataclass(frozen=True, eq=False)
class LossCurve:
    """Losses of one choice of settings at every budget; fields as in `RunResult`.

    `runs` has the run evaluated at each multiple, and `stop` is the last multiple that the runs
    are to reach.
    """

    kind: str
    settings: Mapping[str, Any]
    seed: tuple[int, int]
    label: str
    stop: float
    runs: Mapping[float, RunResult]

    @property
    def has_horizon(self) -> bool:
        """Whether its runs end at a horizon, so that each is of one budget."""
        return any(run.horizon is not None for run in self.runs.values())

    @functools.cached_property
    def losses(self) -> dict[float, float]:
        """The losses of the read-out by multiple."""
        by_label = {m: run.losses[m] for m, run in sorted(self.runs.items())}
        return {m: x[self.label] for m, x in by_label.items() if self.label in x}

    def reported_losses(self, multiple: float, metric: str = LOSS) -> np.ndarray:
        """Returns the losses that are reported, one for each reported set.

        Without such sets, it is the one by which settings are selected.
        """
        return np.array(self.runs[multiple].reported[metric][multiple][self.label])

    def differs_in(self, other: "LossCurve") -> set[str]:
        """Returns the names of the settings that differ."""
        ours, theirs = self.settings, other.settings
        return {x for x in ours.keys() | theirs.keys() if ours.get(x) != theirs.get(x)}

    def read_through(self, label: str) -> "LossCurve":
        """Returns the curve of other weights of the same runs."""
        return self if label == self.label else dataclasses.replace(self, label=label)

    @property
    def description(self) -> str:
        """The settings that are tuned, as a legend shows them."""
        return describe({k: v for k, v in self.settings.items() if k not in self.variant})

    @property
    def variant(self) -> dict[str, Any]:
        """The settings that are not tuned, which are equal in comparable curves.

        They are the settings of the decay, and all words and switches, such as the optimizer.
        """
        return _variant(self.settings)


def describe(settings: Mapping[str, Any]) -> str:
    """Returns settings as a legend shows them: `η 0.01, α 1920`."""
    symbols = {"peak": "η", "b2": "β₂", "gamma": "γ", "alpha": "α"}
    names = dict.fromkeys([*(name for name in symbols if name in settings), *settings])
    texts = {
        k: f"{settings[k]:g}" if isinstance(settings[k], float) else settings[k] for k in names
    }
    return ", ".join(f"{symbols.get(name, name)} {text}" for name, text in texts.items())


class Results:
    """Results of all runs of a study, and the loss curves they form.

    Attributes:
      average: weight label of the read-out of horizon-free runs.
      configs: configuration of every run, by name.
      runs: in the order of the study.
      labels: all weight labels: first the live weights, then the averages from wide to narrow.
      multiples: horizons of the cosines; without any, the whole multiples that were evaluated.
      reported_sets: the validation sets on which differences are reported: those of weight 0, or
        else all of several with equal weights.
      selects_elsewhere: whether the other sets, of which there are some, select settings.
      position_metrics: names of the losses at ranges of positions that all runs have.
    """

    def __init__(
        self, study: Study, average: str = "f25", warn: Callable[[str], None] = lambda text: None
    ):
        """Reads the records of every run; `warn` is called with one line for each damaged one.

        Raises an InputError if the runs cannot be compared (data, clock or validation tokens
        differ), or no run was evaluated.
        """
        self.study, self.average = study, average
        configs = [_build_config(run) for run in study.runs]
        _check_comparable(study, configs)
        self.clock = configs[0].clock.without_growth
        self.reported_sets = _reported_sets(configs[0])
        self.selects_elsewhere = 0 < len(self.reported_sets) < len(configs[0].sets)
        self.configs = {run.name: x for run, x in zip(study.runs, configs, strict=True)}
        choices = _varying_settings(configs)
        self.runs = [
            _read_run(run, config, choices[schedule_kind(config)], average, warn)
            for run, config in zip(study.runs, configs, strict=True)
        ]
        if not any(run.losses for run in self.runs):
            raise InputError(
                f"study {study.name}: no run in {study.root} was evaluated yet: train it with "
                "anytime sweep --study=... --run"
            )
        of_runs = [list(run.reported) for run in self.runs if run.losses]
        of_all = set.intersection(*map(set, of_runs)) - {LOSS}
        self.position_metrics = [x for x in of_runs[0] if x in of_all]
        labels = {label for x in self.runs for losses in x.losses.values() for label in losses}
        self.labels = [LIVE, *sorted(labels - {LIVE}, key=label_order)]
        horizons = {x.horizon for x in self.runs if x.kind == COSINE and x.horizon is not None}
        whole = {m for x in self.runs for m in x.losses if m and abs(m - round(m)) < 1e-3}
        self.multiples = sorted(horizons or whole)
        if average not in self.labels:
            known = ", ".join(self.labels)
            raise InputError(f"--average={average}: no run was evaluated with it; give {known}")

    @functools.cached_property
    def all_curves(self) -> list[LossCurve]:
        """The curves of all seeds and decays.

        Raises an InputError if two runs have the same settings and a loss at the same budget.
        """
        return _loss_curves(self.runs)

    @property
    def every_seed_is_fresh(self) -> bool:
        """Whether all sets are reported, so that no seed selects."""
        return bool(self.reported_sets) and not self.selects_elsewhere

    def comparable_curves(self, kind: str) -> list[LossCurve]:
        """Returns the first seed's curves of a kind, of the variant of the kind's first run."""
        settings = next((run.settings for run in self.runs if run.kind == kind), {})
        return next((x for x in self.families(kind) if x[0].variant == _variant(settings)), [])

    def families(self, *kinds: str) -> list[list[LossCurve]]:
        """Returns the first seed's curves of some kinds, grouped by variant."""
        families: dict[Any, list[LossCurve]] = {}
        for curve in self.all_curves:
            if curve.kind in kinds and curve.seed == self.runs[0].seed:
                key = curve.kind, tuple(sorted(curve.variant.items()))
                families.setdefault(key, []).append(curve)
        return list(families.values())

    def config_of(self, curve: LossCurve) -> Config:
        """Returns the configuration of the curve's first run."""
        return self.configs[next(iter(curve.runs.values())).name]

    def alternatives(self, curve: LossCurve) -> list[LossCurve]:
        """Returns the curves of the same kind, variant and weights, other settings among them."""
        of_variant = [x for x in self.families(curve.kind) if x[0].variant == curve.variant]
        return [x.read_through(curve.label) for family in of_variant for x in family]

    def replicates(self, curve: LossCurve) -> list[LossCurve]:
        """Returns the curve itself, then the curves of other seeds with the same settings."""
        same = [x for x in self.all_curves if x.kind == curve.kind and x.settings == curve.settings]
        same = [x.read_through(curve.label) for x in same]
        return sorted(same, key=lambda x: x.seed != curve.seed)


def schedule_kind(config: Config) -> str:
    """Returns the name of a run's schedule in reports: "wsd" for a constant rate that decays."""
    name = config.schedule.name.rpartition(":")[2]
    if not config.decay.horizon:
        return name
    return "wsd" if name == "constant" else f"{name} with a decay"


def _build_config(run: StudyRun) -> Config:
    try:
        return run.build()
    except (InputError, AttributeError) as error:
        problem = f"run {run.name} has unusable settings ({error})"
        raise InputError(f"{problem}: run the sweep again") from error


def _check_comparable(study: Study, configs: Sequence[Config]) -> None:
    """Checks that run directories hold their runs, which share clock, validation text and data."""
    clocks, tokens, data = {}, {}, {}  # maps each value to the first run that has it
    reported: dict[Any, str] = {}
    evaluated: dict[Any, str] = {}
    for run, config in zip(study.runs, configs, strict=True):
        clocks.setdefault(config.clock.without_growth, run.name)
        tokens.setdefault(config.eval.tokens, run.name)
        reported.setdefault(_reported_sets(config), run.name)
        run_file = run_json.read_run_file(run.run_dir, "take that run out of the study")
        identity = dict(run_file.identity) if run_file else {}
        if run_file and "initial_weights" in identity:  # a digest, of what is at this path
            identity["initial_weights"] = run_file.config["initial_weights"]
        settings = config.select(lambda x: True)
        differences = [
            f"{name} is {value!r}, the study has {settings[name]!r}"
            for name, value in identity.items()
            if name in settings and settings[name] != value
        ]
        if differences:
            raise InputError(
                f"{run.run_dir} holds another run than {run.name} ({'; '.join(differences)}): "
                "choose another run_dir, or take the run out of the study"
            )
        if run_file:
            check_evaluation(run, config, run_file, evaluated)
        if run_file and not config.branch.data:
            data.setdefault(run_file.fingerprint, run.name)
    for what, runs in (
        ("clock (batch_size, model.length, chinchilla_tokens)", clocks),
        ("eval.tokens", tokens),
        ("eval.sets of weight 0", reported),
        ("data.fingerprint", data),
    ):
        if len(runs) > 1:
            shown = "; ".join(f"{name}: {value}" for value, name in list(runs.items())[:2])
            raise InputError(
                f"study {study.name}: its runs differ in {what} ({shown}): losses are compared on "
                "the same clock and data; make a study of each"
            )


def compared_settings(config: Config) -> dict[str, Any]:
    """Returns the settings by which a study compares runs, by dotted name.

    Others make runs replicates of each other, or parts of one curve.
    """
    identity = config.select(lambda x: x.identity)
    return {name: value for name, value in identity.items() if not _NOT_COMPARED.match(name)}


def _varying_settings(configs: Sequence[Config]) -> dict[str, list[str]]:
    """Dotted names of the settings that vary among the runs of each kind of schedule."""
    seen: dict[str, dict[str, set[str]]] = {}
    for config in configs:
        values = seen.setdefault(schedule_kind(config), {})
        for name, value in compared_settings(config).items():
            values.setdefault(name, set()).add(json.dumps(value))
    return {
        kind: sorted(x for x, each in values.items() if len(each) > 1 or x == "schedule.peak")
        for kind, values in seen.items()
    }


def _read_run(
    run: StudyRun,
    config: Config,
    names: Sequence[str],
    average: str,
    warn: Callable[[str], None],
) -> RunResult:
    """Reads the losses of a run; `names` are the dotted names of its choice of settings."""
    clock, stop = config.clock, config.stop_rule.step
    flat = flatten(config.to_dict())
    settings = {_short(name): flat[name] for name in names if flat.get(name, []) != []}
    decay = {"floor": config.decay.floor, "shape": config.decay.shape}
    schedule = config.schedule.settings | (decay if config.decay.horizon else {})
    settings |= {name: schedule[name] for name in DECAY if name in schedule}
    settings = {k: json.dumps(v) if isinstance(v, list) else v for k, v in settings.items()}
    settings = {k: float(v) if is_number(v) else v for k, v in settings.items()}
    horizon = None if config.horizon is None else _multiple(clock, config.horizon)
    if config.branch.data:
        settings["data"] = config.branch.data
    if run.note:
        settings[NOTE] = run.note
    if config.branch_step and horizon is not None:
        fraction = 1 - clock.multiple(config.branch_step) / horizon
        # The decay is not the usual last 10%.
        if abs(fraction - (1 - float(BRANCH_FRACTION))) > 1e-3:
            settings["decay"] = round(fraction, 4)
    if stop is None:
        raise InputError(
            f"run {run.name}: config.stop = {config.stop!r}: a run of a study stops once; give a "
            "point or 'horizon'"
        )
    rows = read_records(run.run_dir, warn)
    _warn_of_missing_rows(run, rows, warn)
    # Before the first update, only weights that were given are worth a comparison.
    start = 0 if config.initial_weights else 1
    evaluated = [(row, losses) for row, losses in evaluated_rows(rows) if row.step >= start]
    if late := {x for row, _ in evaluated for x in _late(row)}:
        warn(
            f"run {run.name}: losses of {', '.join(sorted(late))} are left out where it began late"
        )
    losses = {
        _multiple(clock, row.step): {k: x for k, x in losses.items() if k not in _late(row)}
        for row, losses in evaluated
    }
    losses, reported = _losses_of_sets(rows, losses, _reported_sets(config), clock)
    state = f"at {clock.multiple(rows[-1].step):.3g}x" if rows else "missing"
    return RunResult(
        name=run.name,
        kind=schedule_kind(config),
        settings=settings,
        seed=(config.seed, config.data.seed),
        label=average if horizon is None else LIVE,
        horizon=horizon,
        stop=_multiple(clock, stop),
        state="finished" if _multiple(clock, stop) in losses else state,
        losses=losses,
        reported=reported,
    )


def _late(row: Row) -> set[str]:
    """The averages that began late, and are not what their labels say."""
    return {label for label, error in kernel_errors(row).items() if format_error(error)}


def _losses_of_sets(
    rows: Sequence[Row], losses: _Losses, sets: Sequence[str], clock: Clock
) -> tuple[_Losses, dict[str, _ReportedLosses]]:
    """Returns the losses where every set has one, and those on the sets by metric.

    Without sets, the mean takes their place. A metric that some evaluations lack is left out.
    """
    found: dict[str, dict[tuple[float, str, str], float]] = {}
    for row in rows:
        for name, value in row.values.items():
            group, *rest = name.split("/")
            if group == "eval" and rest[-1].startswith(LOSS):
                *of_set, label, metric = rest
                key = _multiple(clock, row.step), label, "".join(of_set)
                found.setdefault(metric, {})[key] = value
    sets = sets or ("",)
    complete = {
        m: {x: y for x, y in each.items() if all((m, x, name) in found[LOSS] for name in sets)}
        for m, each in losses.items()
    }
    complete = {m: each for m, each in complete.items() if each}
    keys = {(m, label, name) for m, each in complete.items() for label in each for name in sets}
    reported = {
        metric: {
            m: {label: [of_metric[m, label, name] for name in sets] for label in each}
            for m, each in complete.items()
        }
        for metric, of_metric in found.items()
        if keys <= of_metric.keys()
    }
    return complete, reported


def _reported_sets(config: Config) -> tuple[str, ...]:
    given, weights = dict(config.eval.sets), config.set_weights
    unweighted = tuple(name for name, weight in weights.items() if name in given and not weight)
    are_equal = len(given) > 1 and len({*weights.values()}) == 1
    return unweighted or (tuple(given) if are_equal else ())


def _multiple(clock: Clock, step: int) -> float:
    """The multiple of a step: 4 at 4x, although a run with a grown batch may end a little later."""
    multiple = clock.multiple(step)
    return 2.0 ** round(math.log2(multiple)) if clock.is_doubling(step) else multiple


def _short(name: str) -> str:
    """A setting's name within its group; "optimizer" for its kind."""
    group, _, last = name.rpartition(".")
    return group if last == "kind" else last


def _warn_of_missing_rows(run: StudyRun, rows: Sequence[Row], warn: Callable[[str], None]) -> None:
    """Warns of lost records if the run has checkpoints; packed records have none."""
    for step in checkpoint_listing.saved_steps(run.run_dir)[-1:]:
        with contextlib.suppress(RunError):  # `runs --verify` reports the damage
            meta = checkpoint_reader.read_meta(
                checkpoint_listing.checkpoint_path(run.run_dir, step)
            )
            if missing := describe_missing(count_before(rows, step), meta.rows, step):
                warn(f"{run.name}: {missing}")


def _loss_curves(runs: Sequence[RunResult]) -> list[LossCurve]:
    """Joins the ends of runs with a horizon; the curve of a horizon-free run is its own."""
    families: dict[Any, list[RunResult]] = {}
    for run in runs:
        key = (run.kind, tuple(sorted(run.settings.items())), run.seed)
        families.setdefault(key, []).append(run)
    curves = []
    for family in families.values():
        run_at: dict[float, RunResult] = {}
        for run in family:
            ends = run.losses if run.horizon is None else run.losses.keys() & {run.horizon}
            for m in ends:
                if m in run_at:
                    raise InputError(
                        f"{run_at[m].name} and {run.name} have the same settings and both a loss "
                        f"at {m:g}x: take one of them out of the study"
                    )
                run_at[m] = run
        if run_at:
            first, stop = family[0], max(run.stop for run in family)
            curve = LossCurve(first.kind, first.settings, first.seed, first.label, stop, run_at)
            curves.append(curve)
    return curves


def _variant(settings: Mapping[str, Any]) -> dict[str, Any]:
    tuned = {k for k, v in settings.items() if k == "warmup" or is_number(v)} - {*DECAY}
    return {k: v for k, v in settings.items() if k not in tuned}
