"""Start of a run: everything that its loop needs, acquired in the order of its cost.

First comes all that may refuse the run, and writes nothing: checks that need no data, the data,
checks that need them. Only the built-in corpus is written meanwhile, if it has to be prepared. Then
the run directory is locked and claimed, the state restored, and the records opened. What was
acquired is released in reverse, however the run ends.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from rich.console import Console

from anytime_jax import __version__
from anytime_jax.checkpoints import (
    checkpoint_listing,
    checkpoint_reader,
    metric_records,
    run_directory,
)
from anytime_jax.checkpoints.manager import (
    CheckpointManager,
    RestoredCheckpoint,
    restore_checkpoint,
)
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import processes
from anytime_jax.errors import RunError
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import branching, events, preflight, pretrained, run_data, signals
from anytime_jax.training.branching import Trunk
from anytime_jax.training.evaluator import make_evaluator
from anytime_jax.training.failures import LastCheckpoint
from anytime_jax.training.metric_writers import check_wandb
from anytime_jax.training.pretrained import Pretrained
from anytime_jax.training.progress import Display
from anytime_jax.training.recorder import Recorder
from anytime_jax.training.start_summary import print_summary
from anytime_jax.training.started_run import FinishedRun, Run
from anytime_jax.training.step import Program, make_program

# Identity settings that the data, the trunk's checkpoint and the initial weights tell.
_FOUND_LATER = ("data.fingerprint", "branch.checkpoint", "initial_weights")


@contextlib.contextmanager
def start(
    config: Config,
    console: Console | None = None,
    *,
    interrupted: Callable[[], bool] | None = None,
    fall_back: bool = False,
    mesh: Mesh | None = None,
) -> Iterator[Run]:
    """Resumes a run from its latest checkpoint, or starts it, and yields it.

    The arguments, and what is raised, are those of `loop.train`. A run that is at its stop already
    is yielded without arrays, and nothing is written.
    """
    run_dir, clock = storage_path(config.run_dir), config.clock
    display = Display(clock, console or Console(quiet=True))
    with contextlib.ExitStack() as stack:
        with processes.fail_together():
            preflight.check_paths(config)
            mesh = mesh or preflight.make_mesh(config)
        found = _find(config, mesh, run_dir, fall_back, display.say)
        dataset, program, step = found.dataset, found.program, found.step
        stop, reason = found.stop(step)
        if found.is_complete(run_dir):
            yield FinishedRun(program.abstract_state, step, reason, found.samples, found.windows)
            return

        last = LastCheckpoint(run_dir, found.saved_step)
        stack.enter_context(last.explain_failures())
        interrupted = interrupted or stack.enter_context(signals.interruptible())
        confirm_lock = _claim(stack, found, run_dir, display.say)
        print_summary(config, mesh, dataset, display.say, program, step, stop)

        checkpoints = CheckpointManager(run_dir, retention_policy(config), display.say)
        stack.callback(checkpoints.close)
        restored = checkpoints.restore_latest(program.abstract_state, fall_back)
        last.step = restored.meta["step"] if restored else 0
        if found.trunk and not restored:
            restored = restore_checkpoint(found.trunk.path, program.abstract_state)
        meta: Mapping[str, Any] = restored.meta if restored else {"step": 0}
        if meta["step"] != step:  # another checkpoint than the latest
            step = meta["step"]
            stop, reason = found.stop(step)
        end = "no end" if stop is None else clock.describe(stop)
        display.say(f"from     {clock.describe(step)} to {end}")
        averages_since = _averages_since(config, restored, display.say)
        state = restored.state if restored else found.first_state()

        recorder = Recorder(config, mesh, display, last, step, found.samples, meta.get("interval"))
        stack.callback(recorder.close)
        missing = metric_records.describe_missing(recorder.rows_before(step), meta)
        if missing and last.step and processes.is_primary():
            display.say(f"records  {missing}")
        samples = found.samples(step)
        batches = run_data.iterate_batches(config, mesh, dataset, step, samples, last)
        stack.enter_context(contextlib.closing(batches))
        until = math.inf if stop is None else stop
        evaluations = events.evaluations(config, until)
        misses_evaluation = evaluations.due(step) and not _was_evaluated(run_dir, step)
        stack.enter_context(display)
        yield Run(
            state=state,
            step=step,
            stop=until,
            reason=reason,
            samples=found.samples,
            windows=found.windows,
            batches=batches,
            saves=events.saves(config, until),
            evaluations=evaluations,
            interrupted=interrupted,
            misses_evaluation=misses_evaluation,
            about=found.about | {"averages_since": averages_since},
            clock=clock,
            mesh=mesh,
            program=program,
            evaluator=make_evaluator(config, mesh, dataset, program),
            checkpoints=checkpoints,
            recorder=recorder,
            last=last,
            confirm_lock=confirm_lock,
            say=display.say,
        )


@dataclasses.dataclass(frozen=True)
class _Found:
    """What a start finds before it writes anything.

    `step` is where training goes on: `saved_step`, that of the latest checkpoint, or the trunk's.
    """

    config: Config
    dataset: DatasetInfo
    program: Program
    trunk: Trunk | None
    initial: Pretrained | None
    saved_step: int
    step: int

    def samples(self, step: int) -> int:
        """Returns the windows of the dataset consumed after `step` updates."""
        clock, trunk = self.config.clock, self.trunk
        # Only a branch that reads other data than its trunk has not seen the trunk's windows.
        return clock.samples(step) + (trunk.samples - clock.samples(trunk.step) if trunk else 0)

    @property
    def windows(self) -> int:
        """Windows of the dataset."""
        return self.dataset.splits["train"].windows

    def stop(self, step: int) -> tuple[int | None, str]:
        """Returns the update at which a run that has made `step` of them stops, and the reason."""
        return preflight.find_stop(self.config, self.dataset, step, self.samples(step))

    @property
    def origin(self) -> dict[str, str]:
        """Digests of what the run starts from."""
        origin = {"branch.checkpoint": self.trunk.digest} if self.trunk else {}
        return origin | ({"initial_weights": self.initial.digest} if self.initial else {})

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a directory the run's."""
        return self.config.identity(self.dataset.fingerprint) | self.origin

    @property
    def about(self) -> dict[str, Any]:
        """What every checkpoint says of the run."""
        return {
            "config": self.config.to_dict(),
            "origin": self.origin,
            "fingerprint": self.dataset.fingerprint,
            "vocabulary": self.dataset.vocabulary_sha256,
        }

    def is_complete(self, run_dir: Path) -> bool:
        """Whether the run is at its stop, saved and evaluated."""
        stop, _ = self.stop(self.step)
        if stop is None or self.step < stop:
            return False
        if self.saved_step:
            path = checkpoint_listing.checkpoint_path(run_dir, self.saved_step)
            try:
                checkpoint_reader.read_meta(path)
            except RunError:
                return False  # to restore it fails, and names the damage
        return self.step > stop or _was_evaluated(run_dir, self.step)

    def first_state(self) -> TrainState:
        """Returns the state before the first update."""
        if self.initial:
            return pretrained.init_from_pretrained(self.initial, self.config, self.program)
        return self.program.init(self.config.seed)


def _find(
    config: Config, mesh: Mesh, run_dir: Path, fall_back: bool, say: Callable[[str], None]
) -> _Found:
    """Checks all that may refuse a run, the built-in corpus last as it may have to be prepared."""
    # Hosts may see files at different times: they believe the primary process.
    saved_step = processes.broadcast(max(checkpoint_listing.saved_steps(run_dir), default=0))
    is_prepared = processes.broadcast(run_data.is_prepared(config))
    with processes.fail_together():
        if processes.is_primary():
            check_wandb(config.log)
        _check_owner(config, run_dir)
        dataset = run_data.open_dataset(config) if is_prepared else None
        if dataset is None:
            run_data.check_place(config)
        trunk = branching.find_trunk(config)
        step = saved_step or (trunk.step if trunk else 0)
        program = make_program(config, mesh)
        stop = preflight.planned_stop(config, step)
        if stop is None or step < stop:
            preflight.check_capacity(config, mesh, program.abstract_state)
        initial = pretrained.find_pretrained(config)
    dataset = dataset or run_data.prepare_builtin(config, say)
    found = _Found(config, dataset, program, trunk, initial, saved_step, step)
    with processes.fail_together():
        if trunk:
            branching.check_data(config, trunk, dataset)
        if initial:
            pretrained.check_vocabulary(initial, dataset)
        run_directory.check_identity(run_dir, found.identity)
        if not (saved_step or fall_back):
            preflight.check_not_lost(config, step)
        found.stop(step)
    return found


def _check_owner(config: Config, run_dir: Path) -> None:
    """Raises an InputError if the directory is another run's, as far as is known without data."""
    owner = run_directory.read_identity(run_dir) or {}
    found_later = {name: owner[name] for name in _FOUND_LATER if name in owner}
    settings = config.select(lambda setting: setting.identity)
    run_directory.check_identity(run_dir, settings | found_later)


def _claim(
    stack: contextlib.ExitStack, found: _Found, run_dir: Path, say: Callable[[str], None]
) -> Callable[[], None]:
    """Locks the directory and makes it the run's; returns what confirms the lock."""
    config, trunk = found.config, found.trunk
    about: Mapping[str, Any] = {
        "name": config.name,
        "version": __version__,
        "config": config.to_dict(),
        "data_path": str(absolute_path(found.dataset.path)),  # wherever one reads the run
        **({"branch": trunk.provenance} if trunk else {}),
    }
    confirm = _confirm_nothing
    with processes.fail_together():
        if processes.is_primary():
            confirm = stack.enter_context(run_directory.lock(run_dir, say))
            run_directory.initialize(run_dir, found.identity, about)
    preflight.check_shared(run_dir)
    return confirm


def _confirm_nothing() -> None:
    """Confirms the lock in all processes but the primary one, which holds it."""


def _was_evaluated(run_dir: Path, step: int) -> bool:
    """Whether the records that the primary process reads have an evaluation at a step."""
    return bool(processes.broadcast(metric_records.is_evaluated(run_dir, step)))


def _averages_since(
    config: Config, restored: RestoredCheckpoint | None, say: Callable[[str], None]
) -> dict[str, int]:
    """Returns the step at which each average started; prints new and dropped ones."""
    since = restored.meta.get("averages_since", {}) if restored else {}
    since = {label: since.get(label, 0) for label in config.averaging_rules}
    if restored:
        step = restored.meta["step"]
        for label in restored.added_averages:
            since[label] = step
            say(f"average {label} is new: it starts from the weights at step {step:,}")
        for label in restored.dropped_averages:
            say(f"average {label} is no longer kept")
    return since
