"""The runs of a study as tasks: their cost, how far they are, and whether they can be made."""

import dataclasses
import json
from pathlib import Path

from anytime_jax.checkpoints import checkpoint_directory, checkpoint_reader, run_directory
from anytime_jax.checkpoints.records import is_evaluated
from anytime_jax.checkpoints.retention import checkpoint_bytes, retention_policy
from anytime_jax.config import schema
from anytime_jax.config.fields import without
from anytime_jax.config.schema import Config
from anytime_jax.errors import InputError
from anytime_jax.models import flops
from anytime_jax.models.decoder import count_params
from anytime_jax.study.plan import Study, StudyRun
from anytime_jax.training import branching

# What runs of one shape may differ in: all that a program can take as data.
_OWN = (
    *("name", "run_dir", "seed", "initial_weights", "stop", "schedule", "data.seed"),
    *("branch.from_run", "branch.multiple", "branch.step", "branch.change"),
    *("optimizer.b1", "optimizer.b2", "optimizer.epsilon"),
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A run with what can be known of it before it is made.

    Attributes:
      run: its place in the study.
      config: its checked configuration.
      start: updates done by the trunk it begins from; 0 if it has none.
      goal: update at which it stops.
    """

    run: StudyRun
    config: Config
    start: int
    goal: int

    @property
    def tokens(self) -> int:
        """Tokens it trains on itself."""
        return self.config.clock.tokens(self.goal) - self.config.clock.tokens(self.start)

    @property
    def flops(self) -> float:
        """Floating-point operations of its training."""
        return float(self.tokens * flops.flops_per_token(self.config.model))

    @property
    def disk_bytes(self) -> int:
        """Space of the checkpoints it leaves."""
        floats = count_params(self.config.model)["all"] * (3 + len(self.config.averages))
        policy = retention_policy(self.config)
        kept = policy.count_kept(self.start, self.goal) + policy.rolling
        return kept * checkpoint_bytes(4 * floats)

    @property
    def step(self) -> int:
        """The update at which it stands."""
        return max(checkpoint_directory.saved_steps(self.run.run_dir), default=self.start)

    @property
    def shape(self) -> str | None:
        """What runs that are trained as one program have in common; None if it must be alone."""
        mesh = self.config.mesh
        one_device = mesh.data in (-1, 1) and mesh.fsdp == mesh.tensor == 1
        if self.config.clock.growth or self.config.average_memory != "device" or not one_device:
            return None
        phase = self.step % self.config.average_every  # the averages of all move at once
        return json.dumps([without(self.config.source, _OWN), phase], sort_keys=True)

    @property
    def is_finished(self) -> bool:
        """Whether it is at its stop, and evaluated there."""
        return self.step >= self.goal and is_evaluated(self.run.run_dir, self.goal)


def log_file(study: Study, name: str) -> Path:
    """Returns the file that holds what a run of a study says; its directory is there."""
    folder = Path(study.root) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def check(study: Study) -> list[Task]:
    """Returns the runs of a study as tasks, once all their settings are known to be good.

    Raises:
      InputError: if a run cannot be made, or its directory belongs to another; the message says
        which.
    """
    tasks: dict[str, Task] = {}
    data: dict[str, str] = {}  # by fingerprint, a run that was begun on them
    for run in study.runs:
        try:
            settings = schema.build(run.settings)
            goal = settings.stop.after(0, settings.clock)
            if goal is None or settings.stop.doubles:
                given = run.settings["stop"]
                raise InputError(f"config.stop = {given!r}: a run of a study has one stop")
            task = Task(run, settings, settings.branch_step or 0, goal)
            _check_directory(task, data)
            _check_trunk(task, tasks.get(run.trunk) if run.trunk else None)
        except InputError as error:
            raise InputError(f"study {study.name}, run {run.name}: {error}") from error
        tasks[run.name] = task
    return list(tasks.values())


def _check_directory(task: Task, data: dict[str, str]) -> None:
    """Checks that a run's directory is new, or its own, and that its data are those of others."""
    theirs = run_directory.read_identity(task.run.run_dir)
    if theirs is None:
        run_directory.check_identity(task.run.run_dir, {})
        return
    fingerprint = str(theirs.get("data.fingerprint"))
    if not task.config.branch.data:
        data.setdefault(fingerprint, task.run.name)
    if len(data) > 1:
        raise InputError(
            f"it was begun on other data than {next(iter(data.values()))} (the fingerprints "
            "differ): losses are compared on one data set; move one of them away"
        )
    ours = task.config.identity(fingerprint)
    if task.start:
        from_run = Path(task.config.branch.from_run)
        ours["branch.checkpoint"] = theirs.get("branch.checkpoint")
        if task.start in checkpoint_directory.saved_steps(from_run):
            path = from_run / checkpoint_directory.DIRECTORY / str(task.start)
            ours["branch.checkpoint"] = checkpoint_reader.read_meta(path)["digest"]
    run_directory.check_identity(task.run.run_dir, ours)


def _check_trunk(task: Task, trunk: Task | None) -> None:
    """Checks that a branch has a trunk that reaches it, and inherits from it."""
    if not task.start:
        return
    from_run = Path(task.config.branch.from_run)
    if trunk is None:
        if not (from_run / run_directory.RUN_FILE).exists() and not task.is_finished:
            raise InputError(
                f"config.branch.from_run = {str(from_run)!r} is neither a run of the study nor one "
                "on disk: add the trunk to the study, or train it"
            )
        return
    if trunk.run.run_dir.absolute() != from_run.absolute():
        raise InputError(
            f"it comes after {trunk.run.name}, but its config.branch.from_run = {str(from_run)!r}: "
            "give it that run's directory"
        )
    branching.check_inheritance(task.config, trunk.config, task.start)
    kept = retention_policy(trunk.config).keeps_forever(task.start)
    if task.start > trunk.goal or not (kept or task.start == trunk.goal):
        held = "after its last checkpoint" if task.start > trunk.goal else "where it keeps none"
        raise InputError(
            f"it would leave {trunk.run.name} at {task.config.clock.describe(task.start)}, {held}: "
            "train the trunk further, or choose another point"
        )
