"""Tasks: the runs of a study with their cost, progress and directories."""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader, run_json, run_ownership
from anytime_jax.checkpoints.metric_records import is_evaluated
from anytime_jax.checkpoints.retention import checkpoint_bytes, retention_policy
from anytime_jax.checkpoints.run_json import Evaluation, RunFile
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import data_fingerprint, load_dataset
from anytime_jax.errors import InputError
from anytime_jax.models import flops
from anytime_jax.models.decoder import count_params
from anytime_jax.storage.files import is_directory
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import branching
from anytime_jax.training.plan import evaluation_entry
from anytime_lab.study.plan import Study, StudyRun


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A run to train, from `start_step` (of its trunk, or 0) to `stop_step`.

    `is_packed` is true if its records are finished and only need to be put in place.
    """

    run: StudyRun
    config: Config
    start_step: int
    stop_step: int
    is_packed: bool = False

    @property
    def tokens(self) -> int:
        """Training tokens, without the trunk's."""
        clock = self.config.clock
        return clock.tokens(self.stop_step) - clock.tokens(self.start_step)

    @property
    def remaining(self) -> float:
        """Fraction of the training after the latest checkpoint."""
        clock = self.config.clock
        left = clock.tokens(self.stop_step) - clock.tokens(self.step)
        return left / self.tokens

    @property
    def flops(self) -> float:
        """Floating-point operations of the training."""
        return float(self.tokens * flops.flops_per_token(self.config.model))

    @property
    def disk_bytes(self) -> int:
        """Disk space of the checkpoints that stay."""
        floats = count_params(self.config.model)["all"] * (3 + len(self.config.averages))
        policy = retention_policy(self.config)
        count = policy.count_kept(self.start_step, self.stop_step) + policy.rolling
        return count * checkpoint_bytes(4 * floats)

    @property
    def step(self) -> int:
        """Updates done at the latest checkpoint."""
        return max(checkpoint_listing.saved_steps(self.run.run_dir), default=self.start_step)

    @property
    def is_finished(self) -> bool:
        """Whether the run is evaluated at its stop, and saved there.

        A run that has records but no directory of checkpoints was saved elsewhere.
        """
        if self.is_packed:
            return True
        directory = self.run.run_dir / checkpoint_listing.DIRECTORY
        if self.step < self.stop_step and is_directory(directory):
            return False
        return is_evaluated(self.run.run_dir, self.stop_step)

    @property
    def state(self) -> str:
        """`finished`, `packed`, `at 2x` or `missing`."""
        if self.is_packed:
            return "packed"
        if self.is_finished:
            return "finished"
        at = f"at {self.config.clock.multiple(self.step):.3g}x"
        return at if self.step > self.start_step else "missing"


def log_file(study: Study, name: str) -> Path:
    """Returns the path of a run's log, in a directory that it creates."""
    directory = Path(study.root) / "logs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}.log"


def make_tasks(study: Study, packed: Collection[str] = ()) -> list[StudyTask]:
    """Returns a task for each run of a study; the runs named in `packed` are packed.

    Raises an InputError that names the run if a configuration is invalid, a branch does not fit
    its trunk, or a run directory belongs to another run.
    """
    tasks: dict[str, StudyTask] = {}
    # The keys are fingerprints of data, and what was evaluated; the values are the first such runs.
    fingerprints: dict[str, str] = {}
    evaluated: dict[Any, str] = {}
    for run in study.runs:
        task = dataclasses.replace(read_task(study, run), is_packed=run.name in packed)
        with _naming(study, run):
            saved = run_json.read_run_file(run.run_dir)
            _check_directory(task, saved, fingerprints)
            if saved:
                check_evaluation(run, task.config, saved, evaluated)
            if task.step > task.stop_step and not task.is_finished:
                raise InputError(
                    f"{run.run_dir} is at step {task.step:,}, and was not evaluated at its stop, "
                    f"step {task.stop_step:,}: give it a later stop, or another directory"
                )
            _check_trunk(task, tasks.get(run.trunk) if run.trunk else None)
        tasks[run.name] = task
    _check_data(study, tasks.values(), fingerprints, evaluated)
    return list(tasks.values())


def read_task(study: Study, run: StudyRun) -> StudyTask:
    """Returns the task of a run, whatever is on disk.

    Raises an InputError that names the run if its configuration is invalid.
    """
    with _naming(study, run):
        config = run.build()
        stop_step = config.stop_rule.step
        if stop_step is None or config.stop_rule.doubles:
            raise InputError(
                f"config.stop = {config.stop!r}: a run of a study stops once; give a point or "
                "'horizon'"
            )
        return StudyTask(run, config, config.branch_step or 0, stop_step)


@contextlib.contextmanager
def _naming(study: Study, run: StudyRun) -> Iterator[None]:
    """Adds the name of a run to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"study {study.name}, run {run.name}: {error}") from error


def _check_directory(task: StudyTask, saved: RunFile | None, fingerprints: dict[str, str]) -> None:
    """Checks that the run directory is new or the run's own, and that all runs share their data."""
    if saved is None:
        run_ownership.check_identity(task.run.run_dir, None, {})
        return
    fingerprint = saved.fingerprint
    if not task.config.branch.data:
        fingerprints.setdefault(fingerprint, task.run.name)
    if len(fingerprints) > 1:
        raise InputError(
            f"its data differ from the data of {next(iter(fingerprints.values()))} "
            "(by fingerprint): losses are compared on one dataset; move one of the run "
            "directories away"
        )
    expected = expected_identity(task, saved.identity, fingerprint)
    run_ownership.check_identity(task.run.run_dir, saved, expected)


def check_evaluation(
    run: StudyRun, config: Config, run_file: RunFile, evaluated: dict[Any, str]
) -> None:
    """Checks that a run was evaluated on what the study says, and on what its other runs were.

    `evaluated` has the name of the first run by what it was evaluated on; the run is added.
    """
    for evaluation in run_file.evaluations:
        _compare_evaluation(run, config, evaluation, evaluated)


def _compare_evaluation(
    run: StudyRun, config: Config, evaluation: Evaluation, evaluated: dict[Any, str]
) -> None:
    if evaluation.tokens != config.eval.tokens:
        raise InputError(
            f"{run.run_dir} was evaluated with eval.tokens = {evaluation.tokens}, the study has "
            f"{config.eval.tokens}: set it back, or move the run directory away"
        )
    if config.branch.data:
        return
    evaluated.setdefault(evaluation.text, run.name)
    if len(evaluated) > 1:
        raise InputError(
            "its validation sets or their weights are not those on which "
            f"{next(iter(evaluated.values()))} was evaluated: losses are compared on the same "
            "text; correct eval.sets and eval.weights, or move one of the run directories away"
        )


def _check_data(
    study: Study,
    tasks: Iterable[StudyTask],
    fingerprints: Mapping[str, str],
    evaluated: dict[Any, str],
) -> None:
    """Checks that the data and the validation sets here are those of the runs that exist."""
    load = functools.cache(load_dataset)
    for task in tasks:
        config = task.config
        if config.branch.data:
            continue
        try:
            names = [name for name, _ in config.run_stages[0].weights]
            found = data_fingerprint([load(config.sources[name]) for name in names])
            sets = {name: load(path) for name, path in config.sets.items()}
        except InputError:
            continue  # one is not prepared here, which training says
        for fingerprint, first in fingerprints.items():
            if found != fingerprint:
                paths = ", ".join(config.sources[name] for name in names)
                raise InputError(
                    f"study {study.name}: the data at {paths} (fingerprint {found[:12]}) are not "
                    f"those on which {first} was trained ({fingerprint[:12]}): losses are compared "
                    "on one dataset; set its path back, or move the run directories away"
                )
        with _naming(study, task.run):
            entry = evaluation_entry(config, sets, config.set_weights)
            _compare_evaluation(task.run, config, entry, dict(evaluated))


def expected_identity(
    task: StudyTask, saved: Mapping[str, Any], fingerprint: str
) -> dict[str, Any]:
    """Returns the identity settings that a run has on data with a fingerprint.

    The digests of what it starts from are in its `saved` identity settings, except for the digest
    of an existing checkpoint of its trunk.
    """
    config, identity = task.config, task.config.identity(fingerprint)
    if config.initial_weights:
        identity["initial_weights"] = saved.get("initial_weights")
    if task.start_step:
        from_run = storage_path(config.branch.from_run)
        identity["branch.checkpoint"] = saved.get("branch.checkpoint")
        if task.start_step in checkpoint_listing.saved_steps(from_run):
            path = checkpoint_listing.checkpoint_path(from_run, task.start_step)
            identity["branch.checkpoint"] = checkpoint_reader.read_meta(path).digest
    return identity


def _check_trunk(task: StudyTask, trunk: StudyTask | None) -> None:
    """Checks that a branch has a trunk that reaches it, and inherits from it."""
    if not task.start_step:
        return
    from_run = storage_path(task.config.branch.from_run)
    if trunk is None:
        if not (from_run / run_json.RUN_FILE).exists() and not task.is_finished:
            raise InputError(
                f"config.branch.from_run = {str(from_run)!r} is neither a run of the study nor one "
                "on disk: add the trunk to the study, or train it"
            )
        return
    if trunk.run.run_dir.absolute() != from_run.absolute():
        raise InputError(
            f"its trunk is {trunk.run.name}, but config.branch.from_run = {str(from_run)!r}: give "
            "the directory of the trunk"
        )
    branching.check_inheritance(task.config, trunk.config, task.start_step)
    point = task.config.clock.describe(task.start_step)
    if task.start_step > trunk.stop_step:
        raise InputError(
            f"it branches from {trunk.run.name} at {point}, after its stop: train the trunk further"
        )
    if task.state == "missing" and trunk.is_finished and trunk.step < trunk.stop_step:
        raise InputError(
            f"it branches from {trunk.run.name}, of which there are records but no checkpoints: "
            "put its checkpoints back, or move its directory and the directories of its branches "
            "away to train all of them again"
        )
    is_kept = retention_policy(trunk.config).keeps_forever(task.start_step)
    if not is_kept and task.start_step != trunk.stop_step:
        raise InputError(
            f"it branches from {trunk.run.name} at {point}, where no checkpoint is kept: choose a "
            "milestone, or set checkpoint.keep_every"
        )
