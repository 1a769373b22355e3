"""Training one run: it is begun or taken up, and given what it asks for until it ends."""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import __version__
from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError
from anytime_jax.training import branching, pretrained
from anytime_jax.training.evaluator import Evaluator
from anytime_jax.training.loop import (
    Asks,
    Current,
    Outcome,
    Run,
    Update,
    read_stream,
    was_evaluated,
)
from anytime_jax.training.metrics import check_mirrors
from anytime_jax.training.preflight import announce, checked_program, find_goal
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Program


def train(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    interrupted: Callable[[], bool] = lambda: False,
    fall_back: bool = False,
) -> Outcome:
    """Trains from the run's latest checkpoint, or from the start, to its stop.

    Args:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      display: what a person sees.
      interrupted: asked after every update and between the batches of an evaluation; once true, the
        run saves and ends.
      fall_back: whether to set a damaged checkpoint aside and go on from the newest good one.

    Returns:
      how it ended; the state is saved in any case.

    Raises:
      InputError: if the data, the devices or the disk do not fit the configuration; before anything
        is compiled.
      RunError: if the run breaks in flight; the message names the last good checkpoint.
    """
    with begun(config, mesh, dataset, display, fall_back) as run:
        if isinstance(run, Outcome):
            return run
        with display:
            return _drive(run, run.asks(interrupted), interrupted)


def _drive(run: Run, asks: Asks, interrupted: Callable[[], bool]) -> Outcome:
    """Answers all that a run asks for."""
    program, state, mesh = run.program, run.take_state(), run.mesh
    evaluate = make_evaluator(run.config, mesh, run.dataset, program.eval_step)
    answer = asks.send
    given: Any = None
    while True:
        try:
            ask = answer(given)
        except StopIteration as end:
            return end.value
        answer = asks.send
        try:
            if isinstance(ask, Update):
                tokens = sharding.put_batch(mesh, ask.tokens, ask.batch_size)
                state, given = program.train_step(state, tokens, ask.update_averages)
            else:
                given = state if isinstance(ask, Current) else evaluate(state, interrupted)
        except Exception as error:  # the run has a word for it
            answer, given = asks.throw, error


def make_evaluator(config: Config, mesh: Mesh, dataset: DatasetInfo, eval_step: Any) -> Evaluator:
    """Returns what evaluates weight trees as a run's configuration wants it.

    Args:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      eval_step: sum of the token losses of a batch.
    """
    length = config.model.length
    windows = Windows(dataset, "validation", length=length, seed=0, repeat=True, shuffle=False)
    return Evaluator(eval_step, windows, length, config.eval_windows, config.eval.batch_size, mesh)


@contextlib.contextmanager
def begun(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    fall_back: bool = False,
    program: Program | None = None,
    read: Callable[..., Iterator[np.ndarray]] = read_stream,
) -> Iterator[Run | Outcome]:
    """Begins a run or takes it up, and holds its directory inside a `with`.

    Args:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      display: what a person sees.
      fall_back: whether to set a damaged checkpoint aside and go on from the newest good one.
      program: the functions of the run, if they are made already.
      read: iterates over its batches, as `read_stream` does.

    Yields:
      the run, ready for its first update; its outcome, if there is nothing to do.

    Raises:
      InputError, RunError: as `train`.
    """
    run_dir, named = Path(config.run_dir), config.identity(dataset.fingerprint)
    with processes.fail_together():
        if trunk := branching.find_trunk(config, dataset):
            named["branch.checkpoint"] = trunk.digest
        if given := pretrained.find_initial(config, dataset):
            named["initial_weights"] = given.digest
        run_directory.check_identity(run_dir, named)
    begin, first = (trunk.step, trunk.samples) if trunk else (0, 0)

    def consumed(step: int) -> int:
        return first + config.clock.samples(step) - config.clock.samples(begin)

    start = processes.broadcast(max(saved_steps(run_dir), default=begin))
    with processes.fail_together():
        goal, reason = find_goal(config, dataset, start, consumed(start))
    if goal is not None and (start > goal or (start == goal and was_evaluated(run_dir, start))):
        yield Outcome(start, reason, consumed(start))
        return
    about = {"name": config.name, "version": __version__, "config": dict(config.source)}
    about |= {"branch": trunk.provenance} if trunk else {}
    with contextlib.ExitStack() as stack:
        with processes.fail_together():
            if processes.is_primary():
                check_mirrors(config.log)
            program = program or checked_program(config, mesh)
            if processes.is_primary():
                run_directory.initialize(run_dir, named, about)
                stack.enter_context(run_directory.lock(run_dir))
        _check_shared(run_dir)
        announce(config, mesh, dataset, display, program, start, goal, trunk)
        checkpoints = CheckpointManager(run_dir, retention_policy(config), display.say)
        stack.callback(checkpoints.close)
        restored = checkpoints.restore_latest(program.abstract_state, fall_back)
        if trunk and not restored:
            restored = branching.restore(trunk, program.abstract_state)
        if given and not restored:
            restored = pretrained.begin(given, config, program)
        if (found := restored.meta["step"] if restored else 0) != start:
            goal, reason = find_goal(config, dataset, start := found, consumed(found))
        end = "no end" if goal is None else config.clock.describe(goal)
        display.say(f"from     {config.clock.describe(start)} to {end}")
        yield Run(
            config, mesh, dataset, display, program, checkpoints, restored, read, goal, reason
        )


def _check_shared(run_dir: Path) -> None:
    """Checks that every process sees the run's directory, which the first holds from now on."""

    def mark() -> int:
        return zlib.crc32(run_directory.lock_holder(run_dir).encode("utf-8")) >> 1

    held = processes.broadcast(mark() if processes.is_primary() else 0)
    with processes.fail_together():
        if not processes.wait_until_visible(lambda: mark() == held):
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} is not the same place on every host (process "
                f"{jax.process_index()} does not see what process 0 wrote there): give a directory "
                "on storage that all of them share"
            )
