"""A started run, as its loop uses it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from anytime_jax import __version__
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import RunError
from anytime_jax.formatting import format_duration
from anytime_jax.training.due_steps import Event
from anytime_jax.training.evaluator import SetEvaluator, weight_trees
from anytime_jax.training.metric_recorder import Recorder
from anytime_jax.training.profiler import Profiler
from anytime_jax.training.run_failures import LastCheckpoint
from anytime_jax.training.start_plan import Plan
from anytime_jax.training.state_memory import describe_program
from anytime_jax.training.step import Metrics, rates_at


@dataclasses.dataclass(kw_only=True)
class Run:
    """A started run.

    Attributes:
      state: state at the start of the loop, which then keeps its own.
      batches: tokens of the batches of the updates, in order, on the devices.
      saves, evaluations: steps at which they are due.
      interrupted: whether the run was asked to save and end; every process asks equally often.
      misses_evaluation: whether an evaluation was due at `step` and has not been made.
      about: what every checkpoint says of the run.
      confirm_lock: raises an error if the lock was lost.
    """

    plan: Plan
    state: TrainState
    batches: Iterator[jax.Array]
    saves: Event
    evaluations: Event
    interrupted: Callable[[], bool]
    misses_evaluation: bool
    about: Mapping[str, Any]
    evaluator: SetEvaluator
    checkpoints: CheckpointManager
    recorder: Recorder
    profiler: Profiler
    last: LastCheckpoint
    confirm_lock: Callable[[], None]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._updates = self.plan.step
        self._compiled: dict[Any, jax.stages.Compiled] = {}  # by model and shape of the tokens

    @property
    def step(self) -> int:
        """Step at the start of the loop, which then counts its own."""
        return self.plan.step

    @property
    def stop(self) -> float:
        """Step at which the loop ends, `math.inf` for never."""
        return self.plan.stop

    @contextlib.contextmanager
    def profiled(self, step: int) -> Iterator[None]:
        """Marks the update after `step` in a trace, which begins before it or ends after it."""
        if self.profiler.begins(step):
            with self.recorder.paused():
                self.profiler.start()
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            yield
        if self.profiler.ends(step + 1):
            with self.recorder.paused():
                self.profiler.stop()

    @jax.profiler.annotate_function
    def read_batch(self) -> jax.Array:
        """Returns the next batch, which was read ahead."""
        return next(self.batches)

    @jax.profiler.annotate_function
    def update(self, state: TrainState, tokens: jax.Array) -> tuple[TrainState, Metrics]:
        """Makes the next update, donating `state`; returns the new state and metrics on the device.

        The run counts its updates, and computes the rates of each. They are scalars in host memory,
        which the call copies to the devices of this process: to put them on the devices of all
        processes beforehand would take a collective an update.
        """
        config = self.plan.config
        rates, model = rates_at(config, self._updates), config.stage_at(self._updates).model
        self._updates += 1
        if (key := (model, tokens.shape)) not in self._compiled:
            if not self._compiled:
                self.say("update   compiling ...")
            began = time.perf_counter()
            train_step = self.plan.programs[model].train_step
            compiled = train_step.lower(state, tokens, rates).compile()
            if not self._compiled:
                seconds = format_duration(time.perf_counter() - began)
                memory = describe_program(compiled, sharding.device_memory(self.plan.mesh))
                self.say(f"update   compiled in {seconds}: {memory}")
            self._compiled[key] = compiled
        return self._compiled[key](state, tokens, rates)

    @jax.profiler.annotate_function
    def record(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of the update just dispatched; they are read and written later."""
        self.recorder.push(step, metrics)

    @jax.profiler.annotate_function
    def save(self, step: int, state: TrainState) -> None:
        """Saves a checkpoint; returns when the state is copied to host memory."""
        with self.recorder.paused():
            with processes.fail_together("keep the lock of the run", RunError):
                self.confirm_lock()
            clock = self.plan.config.clock
            position = {
                "samples": self.plan.config.samples(step),
                "tokens": clock.tokens(step),
                "multiple": clock.multiple(step),
            }
            versions = {"version": __version__, "jax": jax.__version__}
            meta = {**position, **self.recorder.sync(step), **self.about, **versions}
            self.checkpoints.save(state, meta)
        self.last.step = step

    @jax.profiler.annotate_function
    def evaluate(self, step: int, state: TrainState) -> None:
        """Evaluates the weights and records their losses, unless it is interrupted."""
        with self.recorder.paused():
            began = time.perf_counter()
            with self.last.named():
                losses = self.evaluator.losses(step, weight_trees(state), self.interrupted)
            self.misses_evaluation = losses is None
            if losses is not None:
                self.recorder.record_losses(step, losses, time.perf_counter() - began)

    def finish(self, step: int, state: TrainState) -> None:
        """Saves the state unless it is saved already."""
        if step > self.last.step:
            self.save(step, state)
