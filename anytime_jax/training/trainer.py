"""The training loop."""

import time
from collections.abc import Callable

from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.errors import RunError
from anytime_jax.training.loop_program import LoopProgram
from anytime_jax.training.progress import Display
from anytime_jax.training.step import TrainState, rate_of_update
from anytime_jax.training.training_run import Outcome, TrainingRun, closing


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
    run = TrainingRun(config, mesh, dataset, display)
    with closing(run):
        state = run.start(fall_back)
        if state is None:
            return run.outcome(False)
        program = LoopProgram(config, mesh, dataset, run.program, display.say)
        if run.missed_evaluation:
            _evaluate(run, program, state, interrupted)
        while not (is_interrupted := interrupted()) and not run.is_at_stop():
            state, metrics = program.update(
                state, run.read_batch(), rate_of_update(config, run.step)
            )
            run.finish_update(metrics)
            # Before the evaluation: one that is cut short is made up for at the next start.
            if run.is_save_due():
                run.save(state)
            if run.is_evaluation_due():
                _evaluate(run, program, state, interrupted)
        if run.step > run.saved_step:
            run.save(state)
    return run.outcome(is_interrupted)


def _evaluate(
    run: TrainingRun, program: LoopProgram, state: TrainState, interrupted: Callable[[], bool]
) -> None:
    """Evaluates the weights and records their losses."""
    run.pause_meter()
    began = time.perf_counter()
    try:
        losses = program.evaluate(state, interrupted)
    except RunError as error:  # damaged data
        raise run.error(str(error)) from error
    if losses is not None:
        run.record_evaluation(losses, time.perf_counter() - began)
