"""What the runs of a study came to, from their records alone.

A `Result` is one run. A `Line` is what one choice of settings gives at every multiple: the
evaluations of a single horizon-free run on its way, or the ends of a family of runs with a horizon
(cosines, WSD branches), one for each multiple.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.records import read_records
from anytime_jax.checks import is_number
from anytime_jax.config import schema
from anytime_jax.config.clock import BRANCH, Clock
from anytime_jax.config.fields import flatten
from anytime_jax.config.schema import Config
from anytime_jax.errors import InputError
from anytime_jax.study.loss_table import LIVE, eval_losses
from anytime_jax.study.plan import Study, StudyRun

_WHOLE = 1e-3  # multiples are whole up to this: they fall on whole updates
_DECAY = ("floor", "shape", "decay", "data")

Losses = Mapping[str, float]  # by weight label: "last", "f25", ...
Key = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Result:
    """One run of a study.

    Attributes:
      name: of the run.
      kind: of its schedule: "cosine", "constant", "inverse_sqrt", "wsd", ...
      settings: what tells it apart from others of its kind, by short names: `peak`, `b2`, ...
      seed: of its weights and of the order of its data.
      horizon: end of its schedule in Chinchilla multiples; None if it has none.
      goal: multiple at which it is to stop.
      at: multiple of its last record; 0 if it has not begun.
      losses: validation losses in nats by multiple and weight label.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    seed: tuple[int, int]
    horizon: float | None
    goal: float
    at: float
    losses: Mapping[float, Losses]

    @property
    def key(self) -> Key:
        """Its settings, to find others with the same."""
        return tuple(sorted(self.settings.items()))

    @property
    def is_finished(self) -> bool:
        """Whether it was evaluated at its goal."""
        return self.goal in self.losses


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """What one choice of settings gives at every multiple.

    Attributes:
      kind: of the schedule.
      settings: by short names.
      seed: of weights and data.
      goal: the last multiple that its runs are to reach.
      losses: validation losses in nats by multiple and weight label.
    """

    kind: str
    settings: Mapping[str, Any]
    seed: tuple[int, int]
    goal: float
    losses: Mapping[float, Losses]

    def at(self, label: str) -> dict[float, float]:
        """Returns the losses of a weight label by multiple."""
        return {m: losses[label] for m, losses in sorted(self.losses.items()) if label in losses}

    @property
    def text(self) -> str:
        """The settings for people, without those of the decay."""
        return settings_text({k: v for k, v in self.settings.items() if k not in _DECAY})


def settings_text(settings: Mapping[str, Any]) -> str:
    """Returns settings as a legend has them: `η 0.01, α 1920`."""
    symbols = {"peak": "η", "b2": "β₂", "gamma": "γ", "alpha": "α"}
    first = [name for name in symbols if name in settings]  # the learning rate before all else
    settings = {k: settings[k] for k in [*first, *(k for k in settings if k not in first)]}
    shown = {k: f"{v:g}" if isinstance(v, float) else v for k, v in settings.items()}
    return ", ".join(f"{symbols.get(k, k)} {v}" for k, v in shown.items())


class Results:
    """All runs of a study, and the choices they offer."""

    def __init__(self, study: Study, remark: Callable[[str], None] = lambda text: None):
        """Reads the records of every run.

        Args:
          study: the plan.
          remark: is told of records that another version wrote or that are torn, one line each.

        Raises:
          InputError: if the runs do not share one clock, or no run has a record.
        """
        self.study = study
        configs = [_build(study, run) for run in study.runs]
        _check_validation(study, configs)
        self.clock = _clock(study, configs)
        varying = _varying(configs)
        self.results = [
            _read(run, config, varying, remark)
            for run, config in zip(study.runs, configs, strict=True)
        ]
        _check_data(study)
        if not any(result.losses for result in self.results):
            raise InputError(
                f"study {study.name}: no run in {study.root} has an evaluation yet: run it with "
                "python -m anytime_jax sweep --study=... --run"
            )
        self.first_seed = self.results[0].seed
        self.lines = _lines(self.results)

    @property
    def kinds(self) -> list[str]:
        """The kinds of schedule that have a line, those of the paper first."""
        there = dict.fromkeys(line.kind for line in self.lines)
        first = [kind for kind in ("cosine", "constant", "inverse_sqrt", "wsd") if kind in there]
        return [*first, *(kind for kind in there if kind not in first)]

    @property
    def multiples(self) -> list[float]:
        """The horizons of the cosines, or else the multiples that horizon-free runs reach."""
        found = {x.horizon for x in self.results if x.kind == "cosine" and x.horizon is not None}
        if not found:
            found = {m for x in self.results for m in x.losses if abs(m - round(m)) < _WHOLE}
        return sorted(found)

    @property
    def labels(self) -> list[str]:
        """Every weight label: the live weights, then the averages from wide to narrow."""
        found = {k for x in self.results for losses in x.losses.values() for k in losses}
        return [LIVE, *sorted(found - {LIVE}, key=_label_order)]

    def main(self, kind: str, seed: tuple[int, int] | None = None) -> list[Line]:
        """Returns the lines of a kind whose decay is that of the kind's first run.

        Args:
          kind: of the schedule.
          seed: of weights and data; by default that of the study's first run.
        """
        first = next((x for x in self.results if x.kind == kind), None)
        seed = seed or self.first_seed
        lines = [x for x in self.lines if x.kind == kind and x.seed == seed]
        return [x for x in lines if first and _decay(x.settings) == _decay(first.settings)]

    def replicates(self, line: Line) -> list[Line]:
        """Returns the line and those of other seeds with the same settings."""
        same = [x for x in self.lines if x.kind == line.kind and x.settings == line.settings]
        return sorted(same, key=lambda x: x.seed != line.seed)

    def other_decays(self, line: Line) -> list[Line]:
        """Returns the lines that differ from this one in the floor or shape of the decay alone."""
        rest = {k: v for k, v in line.settings.items() if k not in _DECAY}
        return [
            x
            for x in self.lines
            if (x.kind, x.seed) == (line.kind, line.seed)
            and x.settings != line.settings
            and {k: v for k, v in x.settings.items() if k not in _DECAY} == rest
        ]

    def missing(self, kinds: Iterable[str]) -> list[str]:
        """Returns what is not there yet of the runs of some kinds, for people."""
        return [
            f"{x.name} ({f'at {x.at:.3g}x' if x.at else 'not begun'})"
            for x in self.results
            if x.kind in kinds and not x.is_finished
        ]


def _read(
    run: StudyRun,
    config: Config,
    varying: Mapping[str, set[str]],
    remark: Callable[[str], None],
) -> Result:
    """What the records of a run hold."""
    clock, kind, end = config.clock, config.schedule.kind, config.learning_rate.horizon_steps
    flat = flatten(config.to_dict())
    chosen = {name.rpartition(".")[2]: flat[name] for name in sorted(varying[kind])}
    decay = config.schedule.to_dict()
    chosen |= {name: decay[name] for name in _DECAY if name in decay}
    chosen = {k: float(v) if is_number(v) else v for k, v in chosen.items()}
    chosen |= _about_branch(config)
    goal = config.stop_rule.step
    if goal is None:
        raise InputError(
            f"run {run.name}: config.stop = {config.stop!r}: a run of a study has one stop"
        )
    _check_run(run, flat)
    rows = read_records(run.run_dir, remark)
    return Result(
        name=run.name,
        kind=kind,
        settings=chosen,
        seed=(config.seed, config.data.seed),
        horizon=None if end is None else clock.multiple(end),
        goal=clock.multiple(goal),
        at=clock.multiple(rows[-1].step) if rows else 0.0,
        losses={clock.multiple(row.step): losses for row, losses in eval_losses(rows)},
    )


def _about_branch(config: Config) -> dict[str, Any]:
    """What makes a branch another one than the usual decay over the last 10% on the same data."""
    about: dict[str, Any] = {"data": config.branch.data} if config.branch.data else {}
    end, clock = config.learning_rate.horizon_steps, config.clock
    if config.branch.step and end is not None:
        part = 1 - clock.multiple(config.branch.step) / clock.multiple(end)
        if abs(part - (1 - float(BRANCH))) > 1e-3:
            about["decay"] = round(part, 4)
    return about


def _build(study: Study, run: StudyRun) -> Config:
    try:
        return schema.build(run.settings)
    except (InputError, AttributeError) as error:
        raise InputError(
            f"run {run.name} of study {study.name} has no usable settings ({error}): run the "
            "study's sweep again"
        ) from error


def _check_validation(study: Study, configs: Sequence[Config]) -> None:
    """Checks that all runs validate on as many tokens."""
    tokens: dict[int, str] = {}
    for run, config in zip(study.runs, configs, strict=True):
        tokens.setdefault(config.eval.tokens, run.name)
    if len(tokens) > 1:
        told = "; ".join(f"{name} on {count:,}" for count, name in tokens.items())
        raise InputError(
            f"study {study.name}: its runs are validated on unlike text (eval.tokens: {told}): "
            "losses are compared on one; make a study of each"
        )


def _check_data(study: Study) -> None:
    """Checks that all runs were trained and validated on the same data."""
    found: dict[str, str] = {}
    for run in study.runs:
        theirs = _identity(run)
        if theirs and not run.settings["branch"]["data"]:
            found.setdefault(str(theirs.get("data.fingerprint")), run.name)
    if len(found) > 1:
        names = " and ".join(list(found.values())[:2])
        raise InputError(
            f"study {study.name}: {names} were trained on unlike data (their fingerprints differ): "
            "losses are compared on one data set; train one of them again"
        )


def _identity(run: StudyRun) -> dict[str, Any] | None:
    """The settings that a run wrote down when it began; None if it has not."""
    return run_directory.read_identity(Path(run.run_dir), "take that run out of the study")


def _check_run(run: StudyRun, ours: Mapping[str, Any]) -> None:
    """Checks that what lies in a run's directory is that run."""
    theirs = _identity(run)
    if theirs is None:
        return
    unlike = [k for k in theirs if k in ours and ours[k] != theirs[k]]
    if unlike:
        told = "; ".join(f"{k} is {theirs[k]!r}, the study has {ours[k]!r}" for k in unlike)
        raise InputError(f"{run.run_dir} holds another run than {run.name} ({told})")


def _clock(study: Study, configs: Sequence[Config]) -> Clock:
    """The clock that all runs of a study share."""
    clocks = {config.clock for config in configs}
    if len(clocks) != 1:
        raise InputError(
            f"study {study.name}: its runs have {len(clocks)} clocks (batch_size, batch_growth, "
            "model.length, chinchilla_tokens): losses are compared on one; make a study of each"
        )
    return clocks.pop()


def _varying(configs: Sequence[Config]) -> dict[str, set[str]]:
    """For each kind of schedule the settings that are not the same in all its runs."""
    seen: dict[str, dict[str, set[str]]] = {}
    for config in configs:
        values = seen.setdefault(config.schedule.kind, {})
        for name, value in config.select(lambda x: x.identity and x.variant).items():
            values.setdefault(name, set()).add(json.dumps(value))
    always = {"schedule.peak"}
    return {
        kind: {k for k, given in values.items() if len(given) > 1} | (always & values.keys())
        for kind, values in seen.items()
    }


def _lines(results: Sequence[Result]) -> list[Line]:
    """Puts the ends of runs with a horizon together."""
    found: dict[tuple[str, Key, tuple[int, int]], dict[float, Result]] = {}
    goals: dict[tuple[str, Key, tuple[int, int]], float] = {}
    for result in results:
        place = (result.kind, result.key, result.seed)
        goals[place] = max(goals.get(place, 0.0), result.goal)
        there = found.setdefault(place, {})
        for m in result.losses:
            if result.horizon is not None and m != result.horizon:
                continue  # on its way to the end of its schedule
            if m in there:
                raise InputError(
                    f"{there[m].name} and {result.name} have the same settings and both a loss at "
                    f"{m:g}x: take one of them out of the study"
                )
            there[m] = result
    return [
        Line(
            kind=place[0],
            settings=next(iter(there.values())).settings,
            seed=place[2],
            goal=goals[place],
            losses={m: result.losses[m] for m, result in there.items()},
        )
        for place, there in found.items()
        if there
    ]


def _decay(settings: Mapping[str, Any]) -> list[Any]:
    return [settings.get(name) for name in _DECAY]


def _label_order(label: str) -> tuple[str, float]:
    kind = label.rstrip("0123456789.")
    number = label.removeprefix(kind)
    return kind, float(number) if number else 0.0
