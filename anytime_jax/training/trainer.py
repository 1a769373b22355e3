"""The training loop, for one run and for a fleet of runs as one program."""

import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.errors import RunError
from anytime_jax.training import batches, fleet
from anytime_jax.training.loop_program import LoopProgram
from anytime_jax.training.progress import Display
from anytime_jax.training.step import TrainState, make_program
from anytime_jax.training.training_run import Outcome, TrainingRun, end_on_error


def train(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    interrupted: Callable[[], bool] = lambda: False,
    fall_back: bool = False,
) -> Outcome:
    """Trains a run from its latest checkpoint, or from the start, to its stop.

    `interrupted` is called before every update and between the batches of an evaluation; once it
    returns true, the run saves and ends. With `fall_back`, a damaged checkpoint is set aside and
    the newest intact one is restored. On return, the state is saved.

    Raises an InputError before anything is compiled if the data, the devices or the disk do not fit
    the configuration, and a RunError that names the last good checkpoint if the training fails.
    """
    (result,) = train_fleet([config], mesh, dataset, [display], interrupted, fall_back)
    if isinstance(result, Exception):
        raise result
    return result


def train_fleet(
    configs: Sequence[Config],
    mesh: Mesh,
    dataset: DatasetInfo,
    displays: Sequence[Display],
    interrupted: Callable[[], bool] = lambda: False,
    fall_back: bool = False,
) -> list[Outcome | Exception]:
    """Trains runs of one shape (`study.tasks.StudyTask.fleet_key`) as one program; see `train`.

    Several runs need a mesh of a single device; each has its own display. Returns for each run its
    outcome, or the error that ended it without ending the others. Raises an InputError if the
    device's memory is too small for all of them.
    """
    shared_program, read_batches = None, batches.read_ahead(dataset)
    if len(configs) > 1:
        shared_program, read_batches = make_program(configs[0], mesh), batches.read_once(dataset)
        fleet.check_memory(len(configs), mesh, shared_program)
    runs = [
        TrainingRun(config, mesh, dataset, display, read_batches)
        for config, display in zip(configs, displays, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        states = []
        for run in runs:
            stack.callback(run.close)
            with end_on_error(run):
                states.append(run.start(shared_program, fall_back))
        started = [run for run in runs if run.result is None]
        states = [state for state in states if state is not None]
        if started:
            single = started[0].program if len(configs) == 1 else None
            started_configs = [run.config for run in started]
            program = LoopProgram(started_configs, mesh, dataset, single, displays[0].say)
            state = states[0] if single else fleet.stack(states, mesh)
            _train(started, program, state, interrupted)
    return [run.result for run in runs if run.result is not None]


def _train(
    runs: Sequence[TrainingRun],
    program: LoopProgram,
    state: TrainState,
    interrupted: Callable[[], bool],
) -> None:
    """Trains started runs, each until its stop, an interruption or an error of its own."""
    _evaluate(runs, program, state, lambda run: run.missed_evaluation, interrupted)
    while _active(runs):
        is_interrupted, next_batches = interrupted(), []
        for i, run in _active(runs):
            with end_on_error(run):
                if is_interrupted or run.is_at_stop():
                    if run.step > run.saved_step:
                        run.save(program.state_of_run(state, i))
                    run.end(is_interrupted)
                else:
                    next_batches.append(run.read_batch())

        active = _active(runs)
        if not active:
            return
        if len(active) < len(runs):
            program, state = program.subset(state, [i for i, _ in active])
            runs = [run for _, run in active]

        metrics = {}
        with end_on_error(*runs):
            state, metrics = program.update(state, next_batches, runs[0].updates_averages())

        for i, run in _active(runs):
            with end_on_error(run):
                run.finish_update(metrics, i)
                # Before the evaluation: one that is cut short is made up for at the next start.
                if run.is_save_due():
                    run.save(program.state_of_run(state, i))
        _evaluate(runs, program, state, TrainingRun.is_evaluation_due, interrupted)


def _evaluate(
    runs: Sequence[TrainingRun],
    program: LoopProgram,
    state: TrainState,
    is_due: Callable[[TrainingRun], bool],
    interrupted: Callable[[], bool],
) -> None:
    """Evaluates the weights of the runs for which `is_due`, and records their losses."""
    for _, run in _active(runs):
        with end_on_error(run):
            if is_due(run):
                run.pause_meter()
    due = [(i, run) for i, run in _active(runs) if is_due(run)]
    if not due:
        return
    began = time.perf_counter()
    losses = None
    with end_on_error(*(run for _, run in due)):
        try:
            losses = program.evaluate(state, [i for i, _ in due], interrupted)
        except RunError as error:  # damaged data
            for _, run in due:
                run.fail(run.error(str(error)))
    if losses is None:
        return
    seconds = time.perf_counter() - began
    for i, (_, run) in enumerate(due):
        with end_on_error(run):
            losses_of_run = {k: float(np.ravel(x)[i]) for k, x in losses.items()}
            run.record_evaluation(losses_of_run, seconds)


def _active(runs: Sequence[TrainingRun]) -> list[tuple[int, TrainingRun]]:
    """Returns the runs that have not ended, with their positions."""
    return [(i, run) for i, run in enumerate(runs) if run.result is None]
