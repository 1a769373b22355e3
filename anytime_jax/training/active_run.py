"""A run that is open: `open_run` is the only place where a start writes.

It locks the directory, restores the state, and opens the records. If another start has trained the
run since the plan was made, it makes a new plan first. However the run ends, everything is closed
in reverse order.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from anytime_jax import __version__
from anytime_jax.checkpoints import checkpoint_listing, metric_records, run_json, run_ownership
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.manager import (
    CheckpointManager,
    RestoredCheckpoint,
    restore_checkpoint,
)
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.checkpoints.run_json import RunFile, Start
from anytime_jax.config.run_config import Config
from anytime_jax.corpus import companion_files
from anytime_jax.distributed import processes, sharding, silence
from anytime_jax.errors import RunError
from anytime_jax.formatting import format_duration
from anytime_jax.models.decoder import Params
from anytime_jax.storage.files import file_versions
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.train_state import TrainState
from anytime_jax.training import (
    due_steps,
    milestone_exports,
    preflight,
    pretrained,
    run_data,
    signals,
)
from anytime_jax.training.due_steps import Event
from anytime_jax.training.evaluator import RunEvaluators, weight_trees
from anytime_jax.training.milestone_exports import MilestoneExports
from anytime_jax.training.plan import Plan, make_plan
from anytime_jax.training.plan_summary import print_summary
from anytime_jax.training.profiler import Profiler
from anytime_jax.training.progress import Display
from anytime_jax.training.recorder import Recorder
from anytime_jax.training.run_failures import LastCheckpoint
from anytime_jax.training.state_memory import describe_program
from anytime_jax.training.step import Metrics, rates_at
from anytime_jax.training.trackers import Mirrors

_POLL_SECONDS = 0.2  # between looks at the last exports
_SILENCE_MINUTES = 30.0  # the default where several processes run


@dataclasses.dataclass
class DueEvaluation:
    """An evaluation that a run makes of its weights: of their losses, or of their scores in tasks.

    Attributes:
      event: steps at which it is due.
      is_missing: whether it was due at the plan's step, or was interrupted, and is not recorded.
      measure: returns the results after a number of updates for weight trees by label, or None if
        the run is interrupted.
      record: records the results after a number of updates, which took some seconds.
    """

    event: Event
    is_missing: bool
    measure: Callable[[int, Mapping[str, Params], Callable[[], bool]], Any]
    record: Callable[[int, Any, float], None]


@dataclasses.dataclass(kw_only=True)
class Run:
    """An open run, as its loop uses it. The loop counts the updates and has the state.

    Attributes:
      state: state at the step of the plan; the loop donates it.
      batches: tokens of the batches from the step of the plan on, in order, on the devices.
      saves: steps at which saves are due.
      interrupted: whether the run was asked to save and end; every process must call this function
        equally often.
      about: metadata that every checkpoint of the run has.
      mirrors: the open trackers.
      watch: ends the process if the run is stuck.
      confirm_start: raises a RunError if another start has taken over.
      exports: exports at milestones; None in processes that make none.
    """

    plan: Plan
    state: TrainState
    batches: Iterator[jax.Array]
    saves: Event
    evaluations: Sequence[DueEvaluation]
    interrupted: Callable[[], bool]
    about: Meta
    checkpoints: CheckpointManager
    mirrors: Mirrors
    watch: silence.Watch
    recorder: Recorder
    profiler: Profiler
    last: LastCheckpoint
    confirm_start: Callable[[], None]
    say: Callable[[str], None]
    exports: MilestoneExports | None

    def __post_init__(self) -> None:
        self._compiled: dict[Any, jax.stages.Compiled] = {}  # by function and shape of the tokens

    @contextlib.contextmanager
    def profiled(self, step: int) -> Iterator[None]:
        """Marks the update after `step` in a trace; starts or stops the trace if it is time."""
        if self.profiler.begins(step):
            with self.recorder.paused("profiling"):
                self.profiler.start()
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            yield
        if self.profiler.ends(step + 1):
            with self.recorder.paused("profiling"):
                self.profiler.stop()

    @jax.profiler.annotate_function
    def read_batch(self) -> jax.Array:
        """Returns the next batch, which was read ahead."""
        with self.last.named(), self.recorder.spent("waiting for data"):
            return next(self.batches)

    @jax.profiler.annotate_function
    def update(self, step: int, state: TrainState, tokens: jax.Array) -> tuple[TrainState, Metrics]:
        """Makes the update after `step`, donating `state`; returns state and metrics on the device.

        The rates are scalars in host memory, which the call copies to the devices of this process.
        To put them on the devices of all processes first would cost a collective in every update.
        The layers are measured, if it is time, before the update.
        """
        config = self.plan.config
        program, every = self.plan.programs[config.stage_at(step).model], config.layer_steps
        measures: dict[str, Any] = {}
        if every is not None and (step + 1) % every == 0:
            measures = self._call("layers", program.measure_layers, state.params, tokens)
        state, metrics = self._call(
            "update", program.train_step, state, tokens, rates_at(config, step)
        )
        return state, metrics | {metric_records.LAYERS: measures}

    def _call(self, name: str, function: Any, state: Any, tokens: jax.Array, *more: Any) -> Any:
        """Calls a jitted function, which is compiled first unless it was for such a batch."""
        key = function, tokens.shape
        if key not in self._compiled:
            with self.recorder.paused("compiling"):
                lowered = function.lower(state, tokens, *more)
                self._compiled[key] = self._compile(name, lowered)
                with self.watch.paused():
                    processes.barrier()
        return self._compiled[key](state, tokens, *more)

    def _compile(self, name: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        self.say(f"{name:8} compiling ...")
        began = time.perf_counter()
        compiled = lowered.compile()
        memory = describe_program(compiled, sharding.device_memory(self.plan.mesh))
        self.say(f"{name:8} compiled in {format_duration(time.perf_counter() - began)}: {memory}")
        return compiled

    @jax.profiler.annotate_function
    def record(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of the update just dispatched, which are read and written later."""
        self.recorder.push(step, metrics)

    @jax.profiler.annotate_function
    def save(self, step: int, state: TrainState) -> None:
        """Saves a checkpoint; returns when the state is copied to host memory."""
        with self.recorder.paused("saving"):
            with processes.fail_together("keep the run", RunError):
                self.confirm_start()
            config, clock = self.plan.config, self.plan.config.clock
            meta = dataclasses.replace(
                self.about,
                step=step,
                samples=config.samples(step),
                tokens=clock.tokens(step),
                multiple=clock.multiple(step),
                **self.recorder.sync(step),
            )
            self.checkpoints.save(state, meta)
        self.last.step = step
        self.recorder.store_seconds()
        if self.exports and milestone_exports.is_due(config, step, self.plan.stop):
            self.exports.add(step)

    @jax.profiler.annotate_function
    def evaluate(self, evaluation: DueEvaluation, step: int, state: TrainState) -> None:
        """Makes an evaluation of the weights and records it, unless the run is interrupted."""
        with self.recorder.paused("evaluation"):
            began = time.perf_counter()
            with self.last.named():
                results = evaluation.measure(step, weight_trees(state), self.interrupted)
            evaluation.is_missing = results is None
            if results is not None:
                with processes.fail_together("record an evaluation", RunError):
                    evaluation.record(step, results, time.perf_counter() - began)

    def finish(self, step: int, state: TrainState) -> str:
        """Saves the state unless it is saved already; returns why the run ends (`Outcome`).

        At the stop, it waits for the exports.
        """
        if step > self.last.step:
            self.save(step, state)
        if self.plan.config.checkpoint.export and step >= self.plan.stop:
            with self.recorder.spent("waiting for exports"):
                self.checkpoints.wait()
                while not processes.broadcast(self.exports is None or self.exports.is_done):
                    if self.interrupted():
                        break
                    time.sleep(_POLL_SECONDS)
        is_missing = any(evaluation.is_missing for evaluation in self.evaluations)
        is_interrupted = step < self.plan.stop or is_missing
        reason = "interrupted" if is_interrupted else self.plan.reason
        place = self.plan.config.clock.describe(step)
        self.mirrors.end(reason, step, f"ended ({reason}) and saved at {place}")
        return reason


@contextlib.contextmanager
def open_run(
    plan: Plan,
    console: Console | None = None,
    interrupted: Callable[[], bool] | None = None,
    verbose: bool = False,
) -> Iterator[Run]:
    """Opens a run and yields it, at the step of its plan, or a later one if the run has moved on.

    Arguments and errors are those of `loop.train`.
    """
    config, mesh, run_dir = plan.config, plan.mesh, plan.run_dir
    display = Display(config.clock, console or Console(quiet=True))
    with contextlib.ExitStack() as stack:
        last = LastCheckpoint(run_dir, plan.saved_step)
        stack.enter_context(last.explain_failures())
        asked = interrupted or stack.enter_context(signals.interruptible())
        with processes.fail_together():
            if processes.is_primary():
                stack.enter_context(run_ownership.lock(run_dir))
        mirrors = stack.enter_context(Mirrors(display.say))
        if processes.broadcast(_has_moved_on(plan)):
            options = {"fall_back": plan.fall_back, "profile": plan.profile}
            plan = make_plan(config, mesh, **options, say=display.say)
        start = run_ownership.new_start(processes.broadcast_text(run_ownership.new_id()))
        _write_run_file(plan, start, display.say)
        _keep_companions(plan)
        preflight.check_shared(run_dir, start.id)
        stack.enter_context(run_ownership.explain_lost_run(run_dir, start.id))

        def confirm_start() -> None:
            if processes.is_primary():
                run_ownership.confirm(run_dir, start.id)

        exports = None
        if config.checkpoint.export and processes.is_primary():
            exports = MilestoneExports(config, display.say)
            stack.callback(exports.close)
        watch = stack.enter_context(_watch_silence(config, last))

        def is_interrupted() -> bool:
            watch.alive()  # at every update and batch of an evaluation; compilations and saves too
            return asked()

        checkpoints = CheckpointManager(run_dir, retention_policy(config), display.say)
        stack.callback(checkpoints.close)
        abstract_state = plan.program.abstract_state
        restored = checkpoints.restore_latest(abstract_state, plan.fall_back)
        last.step = restored.meta.step if restored else 0
        if plan.trunk and not restored:
            restored = restore_checkpoint(plan.trunk.path, abstract_state)
        meta = restored.meta if restored else plan.about
        if meta.step != plan.step:  # the latest checkpoint was damaged, and is set aside
            plan = plan.starting_from(meta.step)
        print_summary(plan, display.say, verbose)
        display.stop = plan.stop
        averages_since = _averages_since(config, restored, display.say)
        state = restored.state if restored else _first_state(plan)

        recorder = Recorder(
            plan, display, mirrors, last, meta, averages_since, start.id, confirm_start
        )
        stack.callback(recorder.close)
        batches = run_data.iterate_batches(
            config, mesh, plan.datasets, plan.program.rules, plan.step
        )
        stack.enter_context(contextlib.closing(batches))
        if exports:
            for step in milestone_exports.missing(config, plan.stop):
                exports.add(step)
        profiler = Profiler(run_dir, plan.profile, display.say)
        stack.callback(profiler.close)
        stack.enter_context(display)
        yield Run(
            plan=plan,
            state=state,
            batches=batches,
            saves=due_steps.save_event(config, plan.stop),
            evaluations=_evaluations(plan, recorder, is_first=last.step == 0),
            interrupted=is_interrupted,
            about=dataclasses.replace(plan.about, averages_since=averages_since),
            checkpoints=checkpoints,
            mirrors=mirrors,
            watch=watch,
            recorder=recorder,
            profiler=profiler,
            last=last,
            confirm_start=confirm_start,
            say=display.say,
            exports=exports,
        )


def _evaluations(plan: Plan, recorder: Recorder, is_first: bool) -> list[DueEvaluation]:
    """Returns what a run evaluates; `is_first` says whether it has saved no checkpoint yet."""
    config = plan.config
    evaluators = RunEvaluators(config, plan.mesh, plan.sets, plan.set_weights, plan.programs)
    event = due_steps.evaluation_event(config, plan.stop)
    # A model that is continued, or a branch on other data, is evaluated first, to see what the
    # training gains.
    is_continued = plan.initial is not None or bool(config.branch.data)
    is_missing = ((is_first and is_continued) or event.due(plan.step)) and not processes.broadcast(
        metric_records.is_evaluated(plan.run_dir, plan.step)
    )
    evaluations = [DueEvaluation(event, is_missing, evaluators.losses, recorder.record_losses)]
    if plan.tasks:
        event = due_steps.task_event(config, plan.stop)
        is_missing = bool(processes.broadcast(plan.misses_scores()))
        record = functools.partial(recorder.record_scores, plan.tasks.tasks)
        evaluations.append(DueEvaluation(event, is_missing, plan.tasks.scores, record))
    return evaluations


def _watch_silence(config: Config, last: LastCheckpoint) -> silence.Watch:
    """Returns a watch that ends a start that is stuck; it begins with the first update."""
    minutes = config.guard.silence
    if minutes == "auto":
        minutes = 0 if processes.is_single() else _SILENCE_MINUTES
    saves = last.run_dir / checkpoint_listing.DIRECTORY
    return silence.Watch(60 * minutes, lambda: file_versions(saves), lambda: f"; {last}")


def _has_moved_on(plan: Plan) -> bool:
    """Whether another start has trained the run since the plan was made."""
    saved_step = max(checkpoint_listing.saved_steps(plan.run_dir), default=0)
    run_file = run_json.read_run_file(plan.run_dir)
    return saved_step != plan.saved_step or run_file != plan.run_file


def _write_run_file(plan: Plan, start: Start, say: Callable[[str], None]) -> None:
    """Makes the directory the run's, or records the settings of this start."""
    config, run_dir = plan.config, plan.run_dir
    now = RunFile(
        id=run_ownership.new_id(),
        identity=plan.identity,
        name=config.name,
        version=__version__,
        config=config.to_dict(),
        microbatches=plan.program.microbatches,
        start=start,
        # Wherever one reads the run.
        data_paths={x: str(absolute_path(y.path)) for x, y in plan.datasets.items()},
        set_paths={x: str(absolute_path(y.path)) for x, y in plan.sets.items()},
        delimiters=plan.dataset.delimiters,
        evaluated=plan.evaluated,
        stages=plan.stages,
        branch=plan.trunk.point if plan.trunk else None,
    )
    with processes.fail_together():
        if not processes.is_primary():
            return
        if plan.run_file is None:
            run_json.write_run_file(run_dir, now)
            return
        run_json.write_run_file(run_dir, plan.run_file.resumed(now, plan.step))
        if plan.run_file.stages != plan.stages:
            say(f"stages   changed from {config.clock.describe(plan.step)} on, and recorded")
        if not run_json.is_same_evaluation([*plan.run_file.evaluations[:1], plan.evaluated]):
            say(
                "eval     other validation sets, weights or tokens than when the run began: losses "
                "from here on compare only with each other"
            )


def _keep_companions(plan: Plan) -> None:
    """Copies the files beside the weights that a run starts from into its directory, for exports.

    A branch copies those of its trunk.
    """
    with processes.fail_together():
        if not processes.is_primary():
            return
        if plan.initial and plan.initial.description:
            files = companion_files.collect(plan.initial.description.directory)
            companion_files.save(files, plan.run_dir)
        elif plan.trunk and plan.trunk.meta:
            files = companion_files.load(storage_path(plan.trunk.point.from_run))
            companion_files.save(files, plan.run_dir)


def _first_state(plan: Plan) -> TrainState:
    """Returns the state before the first update."""
    if plan.initial:
        return pretrained.init_from_pretrained(plan.initial, plan.config, plan.program)
    return plan.program.init(plan.config.seed)


def _averages_since(
    config: Config, restored: RestoredCheckpoint | None, say: Callable[[str], None]
) -> dict[str, int]:
    """Returns the step at which each average started; prints averages that are new or dropped."""
    since = restored.meta.averages_since if restored else {}
    since = {label: since.get(label, 0) for label in config.averaging_rules}
    if restored:
        step = restored.meta.step
        for label in restored.added_averages:
            since[label] = step
            say(f"average {label} is new: it starts from the weights at step {step:,}")
        for label in restored.dropped_averages:
            say(f"average {label} is no longer kept")
    return since
