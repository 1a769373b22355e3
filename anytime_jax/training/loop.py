"""The training loop, from a run's latest checkpoint to its stop."""

import dataclasses
import time
from collections.abc import Callable

from jax.sharding import Mesh
from rich.console import Console

from anytime_jax.config.run_config import Config
from anytime_jax.training import preflight, run_data
from anytime_jax.training.active_run import open_run
from anytime_jax.training.plan import make_plan
from anytime_jax.training.profiler import StepRange


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a start of a run ended, after `step` updates in all.

    `reason` is "stop" (it reached its stop), "interrupted", or "data" (all windows were used).
    `has_data_to` says whether the data are enough for a number of updates; `seconds` is the time in
    the loop.
    """

    step: int
    reason: str
    has_data_to: Callable[[int], bool] = dataclasses.field(
        default=lambda step: True, compare=False, repr=False
    )
    seconds: float = dataclasses.field(default=0.0, compare=False)


def train(
    config: Config,
    console: Console | None = None,
    *,
    interrupted: Callable[[], bool] | None = None,
    fall_back: bool = False,
    mesh: Mesh | None = None,
    profile: StepRange | None = None,
    verbose: bool = False,
) -> Outcome:
    """Trains a run from its latest checkpoint, or from the start, to its stop.

    `interrupted` is called before every update and between the batches of an evaluation. Once it
    returns true, the run saves and ends. The default is `signals.interruptible`: Ctrl-C, SIGTERM
    and the like. With `fall_back`, a damaged checkpoint is set aside, and the newest intact one is
    restored. The default `mesh` is over all devices. The updates of `profile` are traced into the
    run directory (`profiler.py`). With `verbose`, it prints all that its plan has found. On return,
    the state is saved.

    Raises an InputError, before anything is compiled, if the data, the devices or the disk do not
    fit the configuration. Raises a RunError, which names the last good checkpoint, if the training
    fails.
    """
    say = (console or Console(quiet=True)).print
    mesh = preflight.check_start(config, mesh, fall_back)
    run_data.make_builtin(config, say)
    plan = make_plan(config, mesh, fall_back=fall_back, profile=profile, say=say)
    if plan.is_complete():
        return Outcome(plan.step, plan.reason, plan.has_data_to)
    with open_run(plan, console, interrupted, verbose) as run:
        plan, state, began = run.plan, run.state, time.monotonic()
        step = plan.step
        for evaluation in run.evaluations:
            if evaluation.is_missing:  # the last start ended before it
                run.evaluate(evaluation, step, state)
        while step < plan.stop and not run.interrupted():
            with run.profiled(step):
                state, metrics = run.update(step, state, run.read_batch())
                step += 1
                run.record(step, metrics)
                # Before the evaluation: one that is cut short is made up for at the next start.
                if run.saves.due(step):
                    run.save(step, state)
                for evaluation in run.evaluations:
                    if evaluation.event.due(step):
                        run.evaluate(evaluation, step, state)
        reason = run.finish(step, state)
    return Outcome(step, reason, plan.has_data_to, time.monotonic() - began)
