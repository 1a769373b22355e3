"""Content of `run.json`, which makes a directory a run's: identity, settings, starts and stages."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config, build_saved
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_differences
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import read_failure, storage_errors
from anytime_jax.storage.json_files import as_type, load_json
from anytime_jax.storage.paths import storage_path

RUN_FILE = "run.json"
_ADVICE = "choose another run_dir"


@dataclasses.dataclass(frozen=True)
class Start:
    """The last start of a run: an id, and where and when for people; empty for packed records."""

    id: str = ""
    host: str = ""
    process: int = 0
    time: str = ""


@dataclasses.dataclass(frozen=True)
class BranchPoint:
    """Where a branch has left its trunk.

    Attributes:
      from_run: directory of the trunk.
      checkpoint: digest of the metadata of the checkpoint.
      run_id: id of the trunk, "" if it has none.
    """

    from_run: str
    step: int
    checkpoint: str = ""
    run_id: str = ""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the mean loss of an evaluation is of.

    Attributes:
      tokens: tokens of each validation set, "all" for all of them.
      sets: fingerprint and weight in the mean of each set that has a weight, by its name.
    """

    tokens: int | str
    sets: Mapping[str, tuple[str, float]]

    @property
    def text(self) -> tuple[tuple[str, float], ...]:
        """Fingerprint and weight of each set, without their names."""
        return tuple(sorted(self.sets.values()))


@dataclasses.dataclass(frozen=True)
class EvaluationChange:
    """What the evaluations after `step` updates are of."""

    step: int
    now: Evaluation


@dataclasses.dataclass(frozen=True)
class StageEntry:
    """A stage of a run, from `step` on; the names in the mixture make no difference.

    Attributes:
      mixture: the sources by name, with their weights, as text.
      sources: fingerprint and weight of each of them.
    """

    step: int
    length: int
    rope_theta: float
    rope_scaling: tuple[float, ...]
    mixture: str = dataclasses.field(compare=False)
    sources: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class StageChange:
    """What the stages of a run were before the start at `step` changed those to come."""

    step: int
    was: tuple[StageEntry, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFile:
    """Content of `run.json`. Packed records lack the entries that have a default.

    Attributes:
      id: what no other run is called, whatever its name; the directory keeps it when it is moved.
      identity: what makes a directory the run's (`Config.identity`), and the digests of what the
        run starts from.
      version: version of this package at the first start.
      config: the settings of the last start, as JSON has them.
      microbatches: their number at the last start.
      data_paths: absolute paths of the sources by name at the last start.
      set_paths: the same of the validation sets.
      evaluated: what the evaluations were of when the run began; None if that is not known.
    """

    id: str = ""
    identity: Mapping[str, Any]
    name: str
    version: str
    config: Mapping[str, Any]
    microbatches: int = 0
    start: Start = Start()
    data_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    set_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    evaluated: Evaluation | None = None
    evaluation_changes: tuple[EvaluationChange, ...] = ()
    stages: tuple[StageEntry, ...] = ()
    stage_changes: tuple[StageChange, ...] = ()
    branch: BranchPoint | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the data of the first stage, "" if it is not known."""
        return self.identity.get("data.fingerprint", "")

    def differences(self, identity: Mapping[str, Any]) -> str:
        """Returns text about the identity settings that differ from others, "" if none do."""
        return format_differences(self.identity, json.loads(json.dumps(identity)))

    @property
    def evaluations(self) -> list[Evaluation]:
        """What a run has evaluated, from its first start to its last, as far as is known."""
        first = [] if self.evaluated is None else [self.evaluated]
        return [*first, *(x.now for x in self.evaluation_changes)]

    def evaluation_at(self, step: float) -> Evaluation | None:
        """Returns what an evaluation after `step` updates was of; None if that is not known."""
        changes = [x.now for x in self.evaluation_changes if x.step < step]
        return changes[-1] if changes else self.evaluated

    def set_weights(self, config: Config) -> dict[str, float]:
        """Returns the weight of every validation set in the mean, for a start of the run.

        Without `eval.weights`, the weights follow from the last stage, which a start may change;
        the mean would jump. So a run keeps the weights that it began with. A set that has joined
        has none. The sum is 1.
        """
        weights, began = config.set_weights, self.evaluated
        if config.eval.weights or began is None:
            return weights
        kept = {name: weight for name, (_, weight) in began.sets.items() if name in config.sets}
        if not kept or kept == {name: weight for name, weight in weights.items() if weight}:
            return weights
        total = sum(kept.values())
        return {name: kept.get(name, 0.0) / total for name in config.sets}

    def find_source(self, name: str, path: str) -> str:
        """Returns where a source is: as configured, or as recorded if nothing is at that path.

        A relative path exists only from the working directory of the start.
        """
        return _find(path, self.data_paths.get(name))

    def find_set(self, name: str, path: str) -> str:
        """Returns where a validation set is, as `find_source`."""
        return _find(path, self.set_paths.get(name))

    def check_stages(self, stages: Sequence[StageEntry], step: int) -> None:
        """Raises an InputError if stages differ from the run's before `step` updates."""
        past = (stages_before(x, max(step, 1)) for x in (self.stages, stages))
        for old, new in itertools.zip_longest(*past):
            if old == new:
                continue
            was, now = ({} if x is None else dataclasses.asdict(x) for x in (old, new))
            # The names of the sources say more than their fingerprints, if they differ.
            hidden = "mixture" if was.get("mixture") == now.get("mixture") else "sources"
            for entry in (was, now):
                entry.pop(hidden, None)
            at = (new or old).step
            raise InputError(
                f"the stage from step {at:,} has changed ({format_differences(was, now)}), and the "
                f"run has made {step:,} updates: change stages that are still to come, or set this "
                "one back",
                "config.stages" if at else "config.data.mixture",
            )

    def resumed(self, now: "RunFile", step: int) -> "RunFile":
        """Returns the content after a start that resumes at `step`, of which `now` speaks.

        `stage_changes` keeps what the stages were, `evaluation_changes` what is evaluated since,
        each with the step of the change.
        """
        latest = ("config", "microbatches", "start", "data_paths", "set_paths")
        content = dataclasses.replace(self, **{name: getattr(now, name) for name in latest})
        if self.stages != now.stages:
            changes = (*self.stage_changes, StageChange(step, self.stages))
            content = dataclasses.replace(content, stages=now.stages, stage_changes=changes)
        if now.evaluated and not is_same_evaluation([*self.evaluations[-1:], now.evaluated]):
            change = EvaluationChange(step, now.evaluated)
            changes = (*self.evaluation_changes, change)
            content = dataclasses.replace(content, evaluation_changes=changes)
        return content


def read_run_file(run_dir: Path, advice: str = _ADVICE) -> RunFile | None:
    """Returns the content of `run.json`, or None if the run has not started.

    Raises an InputError if the file cannot be read, or if it is damaged, with `advice` at the end;
    raises a BucketError if its bucket is out of reach.
    """
    file = run_dir / RUN_FILE
    try:
        return as_type(RunFile, load_json(file))
    except FileNotFoundError:
        return None
    except storage_errors() as error:
        raise read_failure(file, error) from error
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}): {advice}") from error


def read_run(directory: str, setting: str, trust: Trust = NOBODY) -> tuple[Config, RunFile]:
    """Returns the settings of a run and the content of its run file; errors name the `setting`.

    `trust` says which packages are imported for the kinds that the run names. Raises an InputError
    if the directory holds no run, or one whose settings cannot be used here.
    """
    run_file = read_run_file(storage_path(directory), "give another run")
    if run_file is None:
        raise InputError(
            f"it is not a run (it has no {RUN_FILE}): give the directory of a run; "
            "anytime runs lists them",
            setting,
            directory,
        )
    return build_saved(run_file.config, f"{setting} = {directory!r}", trust), run_file


def write_run_file(run_dir: Path, run_file: RunFile) -> None:
    """Writes `run.json`, in a directory that need not exist.

    Raises an InputError if the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with atomic_write(run_dir / RUN_FILE) as file:
            content = json.dumps(dataclasses.asdict(run_file), indent=1)
            file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"it cannot be written ({error.strerror or error}): choose another directory",
            "config.run_dir",
            str(run_dir),
        ) from error


def run_id(run_dir: Path) -> str:
    """Returns the id of a run, "" if it has none; raises the errors of `read_run_file`."""
    run_file = read_run_file(run_dir)
    return run_file.id if run_file else ""


def start_id(run_dir: Path) -> str:
    """Returns the id of the last start of a run; raises the errors of `read_run_file`."""
    run_file = read_run_file(run_dir)
    return run_file.start.id if run_file else ""


def is_other_run(run_dir: Path, id: str) -> bool:
    """Returns whether a directory holds a run that is known not to be the one with an id."""
    with contextlib.suppress(InputError):
        return "" not in (found := run_id(run_dir), id) and found != id
    return False


def stages_before(stages: Iterable[StageEntry], step: int) -> list[StageEntry]:
    """Returns the stages that begin before a step."""
    return [stage for stage in stages if stage.step < step]


def is_same_evaluation(evaluations: Iterable[Evaluation]) -> bool:
    """Returns whether evaluations are of the same sets, under whatever names."""
    return len({(x.tokens, x.text) for x in evaluations}) <= 1


def _find(path: str, recorded: str | None) -> str:
    is_moved = recorded and not storage_path(path).exists() and storage_path(recorded).exists()
    return recorded if recorded and is_moved else path
