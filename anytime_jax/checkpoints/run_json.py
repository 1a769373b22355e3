"""Content of `run.json`, the file of a run directory: identity, settings, last start and stages."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config, build_saved
from anytime_jax.data.dataset_info import Delimiters
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
    """The last start of a run: its id and, for people, where and when; empty in packed records."""

    id: str = ""
    host: str = ""
    process: int = 0
    time: str = ""


@dataclasses.dataclass(frozen=True)
class BranchPoint:
    """The point at which a branch has left its trunk.

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
    """The data of an evaluation's mean loss.

    Attributes:
      tokens: number of tokens of each validation set, or "all".
      sets: fingerprint and weight in the mean of each set that counts in the mean, by name.
    """

    tokens: int | str
    sets: Mapping[str, tuple[str, float]]

    @property
    def text(self) -> tuple[tuple[str, float], ...]:
        """Fingerprint and weight of each set, without their names."""
        return tuple(sorted(self.sets.values()))


@dataclasses.dataclass(frozen=True)
class EvaluationChange:
    """The data of evaluations at later steps than `step`."""

    step: int
    now: Evaluation


@dataclasses.dataclass(frozen=True)
class StageEntry:
    """A stage of a run, from `step` on. Two entries may be equal with other names of sources.

    Attributes:
      mixture: the sources by name, with their weights, as text.
      sources: fingerprint and weight of each source.
    """

    step: int
    length: int
    rope_theta: float
    rope_scaling: tuple[float, ...]
    mixture: str = dataclasses.field(compare=False)
    sources: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class StageChange:
    """The stages of a run before the start at `step` changed later ones."""

    step: int
    was: tuple[StageEntry, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFile:
    """Content of `run.json`. Packed records lack the entries that have a default.

    Attributes:
      id: an id that no other run has; the directory keeps the id when it is moved.
      identity: settings that a start must have to go on with this run (`Config.identity`), and
        digests of the weights that the run starts from.
      version: version of this package at the first start.
      config: the settings of the last start, as JSON has them.
      microbatches: number of microbatches at the last start.
      data_paths: absolute paths of the sources by name at the last start.
      set_paths: absolute paths of the validation sets by name at the last start.
      delimiters: the tokens that begin and end every document of the data; None if unknown.
      evaluated: data of the evaluations when the run began; None if unknown.
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
    delimiters: Delimiters | None = None
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
        """Returns a text on the differences from other identity settings, "" if there are none."""
        return format_differences(self.identity, json.loads(json.dumps(identity)))

    @property
    def evaluations(self) -> list[Evaluation]:
        """The data of all evaluations, from the first start to the last, as far as known."""
        first = [] if self.evaluated is None else [self.evaluated]
        return [*first, *(x.now for x in self.evaluation_changes)]

    def evaluation_at(self, step: float) -> Evaluation | None:
        """Returns the data of an evaluation after `step` updates; None if unknown."""
        changes = [x.now for x in self.evaluation_changes if x.step < step]
        return changes[-1] if changes else self.evaluated

    def set_weights(self, config: Config) -> dict[str, float]:
        """Returns the weight of every validation set in the mean, for a start of the run.

        Without `eval.weights`, the configuration takes the weights from the last stage. A start may
        change this stage, and the mean would jump. So a run keeps the weights with which it began;
        a validation set that was added later has no weight. The sum is 1.
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
        """Returns the path of a source: the configured path if it exists, or the recorded one.

        A configured path that is relative exists only in the working directory of the start.
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
        """Returns the content after a start that resumes at `step`; `now` describes this start.

        If the start changes stages, `stage_changes` keeps the old ones; if it changes evaluations,
        `evaluation_changes` has the new ones. Both have the step of the change.
        """
        latest = ("config", "microbatches", "start", "data_paths", "set_paths", "delimiters")
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

    Raises an InputError if the file cannot be read, and an InputError that ends with `advice` if it
    is damaged. Raises a BucketError if the bucket cannot be reached.
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
    if the directory holds no run, or a run whose settings cannot be used here.
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
    """Writes `run.json`, and makes the directory if it does not exist.

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
    """Returns whether a directory holds another run than the one with an id, if both are known."""
    with contextlib.suppress(InputError):
        return "" not in (found := run_id(run_dir), id) and found != id
    return False


def stages_before(stages: Iterable[StageEntry], step: int) -> list[StageEntry]:
    """Returns the stages that begin before a step."""
    return [stage for stage in stages if stage.step < step]


def is_same_evaluation(evaluations: Iterable[Evaluation]) -> bool:
    """Returns whether evaluations have the same sets and weights; names of sets do not matter."""
    return len({(x.tokens, x.text) for x in evaluations}) <= 1


def _find(path: str, recorded: str | None) -> str:
    is_moved = recorded and not storage_path(path).exists() and storage_path(recorded).exists()
    return recorded if recorded and is_moved else path
