"""Start of a run: everything that its loop needs, acquired in the order of its cost.

All checks that can reject the run come first and write nothing: those without data, then opening
the data, then those with it. Only the built-in corpus is written meanwhile, if it has to be
prepared. Then the run directory is locked and claimed, the state restored, and the records opened.
What was acquired is released in reverse, however the run ends.
"""

import contextlib
import dataclasses
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
from anytime_jax.config.kinds import explain_errors
from anytime_jax.config.schema import Config
from anytime_jax.corpus.sentencepiece_tokenizer import TRAINED_END_OF_TEXT
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import (
    branching,
    due_steps,
    microbatches,
    preflight,
    pretrained,
    run_data,
    signals,
)
from anytime_jax.training.evaluator import SetEvaluator
from anytime_jax.training.metric_recorder import Recorder
from anytime_jax.training.metric_writers import check_wandb
from anytime_jax.training.profiler import Profiler, StepRange, check_steps
from anytime_jax.training.progress import Display
from anytime_jax.training.run_failures import LastCheckpoint
from anytime_jax.training.start_plan import Plan
from anytime_jax.training.start_summary import print_summary
from anytime_jax.training.started_run import Run
from anytime_jax.training.step import make_program

# Identity settings that the data, the trunk's checkpoint and the initial weights tell.
_FOUND_LATER = ("data.fingerprint", "branch.checkpoint", "initial_weights")


class AtStop(InputError):
    """The run is at its stop, saved and evaluated: there is nothing to do."""

    def __init__(self, plan: Plan):
        config = plan.config
        super().__init__(
            f"config.stop = {config.stop!r}: the run in {config.run_dir} is at "
            f"{config.clock.describe(plan.step)} already, where it stops: set a later stop"
        )
        self.plan = plan


@contextlib.contextmanager
def start(
    config: Config,
    console: Console | None = None,
    *,
    interrupted: Callable[[], bool] | None = None,
    fall_back: bool = False,
    mesh: Mesh | None = None,
    profile: StepRange | None = None,
) -> Iterator[Run]:
    """Resumes a run from its latest checkpoint, or starts it, and yields it.

    Takes the arguments of `loop.train`, and raises the same errors. If the run is at its stop,
    raises `AtStop` before anything is written.
    """
    run_dir, clock = storage_path(config.run_dir), config.clock
    display = Display(clock, console or Console(quiet=True))
    with contextlib.ExitStack() as stack:
        with processes.fail_together():
            preflight.check_thread()
            preflight.check_paths(config)
            mesh = mesh or preflight.make_mesh(config)
        preflight.check_agreement(config, fall_back)
        with processes.fail_together():
            _check_owner(config, run_dir)
        config = microbatches.resolve(config, mesh, display.say)
        plan = _make_plan(config, mesh, run_dir, fall_back, profile, display.say)
        if _is_complete(plan, run_dir):
            raise AtStop(plan)

        last = LastCheckpoint(run_dir, plan.saved_step)
        stack.enter_context(last.explain_failures())
        interrupted = interrupted or stack.enter_context(signals.interruptible())
        confirm_lock = _claim(stack, plan, run_dir, display.say)

        checkpoints = CheckpointManager(run_dir, retention_policy(config), display.say)
        stack.callback(checkpoints.close)
        abstract_state = plan.program.abstract_state
        restored = checkpoints.restore_latest(abstract_state, fall_back)
        last.step = restored.meta["step"] if restored else 0
        if plan.trunk and not restored:
            restored = restore_checkpoint(plan.trunk.path, abstract_state)
        meta: Mapping[str, Any] = restored.meta if restored else {"step": 0}
        if meta["step"] != plan.step:  # another checkpoint than the latest
            plan = plan.starting_from(meta["step"])
        evaluator = SetEvaluator(plan.config, mesh, plan.sets, plan.programs)
        print_summary(plan, evaluator, display.say)
        averages_since = _averages_since(config, restored, display.say)
        state = restored.state if restored else _first_state(plan)

        recorder = Recorder(plan, display, last, meta)
        stack.callback(recorder.close)
        batches = run_data.iterate_batches(plan, last)
        stack.enter_context(contextlib.closing(batches))
        evaluations = due_steps.evaluations(config, plan.stop)
        # A model that is continued, or a branch on other data, is evaluated first, to see what the
        # training gains.
        is_continued = plan.initial is not None or bool(config.branch.data)
        is_first = is_continued and plan.saved_step == 0
        misses_evaluation = (is_first or evaluations.due(plan.step)) and not processes.broadcast(
            metric_records.is_evaluated(run_dir, plan.step)
        )
        profiler = Profiler(run_dir, profile, display.say)
        stack.callback(profiler.close)
        stack.enter_context(display)
        yield Run(
            plan=plan,
            state=state,
            batches=batches,
            saves=due_steps.saves(config, plan.stop),
            evaluations=evaluations,
            interrupted=interrupted,
            misses_evaluation=misses_evaluation,
            about=plan.about | {"averages_since": averages_since},
            evaluator=evaluator,
            checkpoints=checkpoints,
            recorder=recorder,
            profiler=profiler,
            last=last,
            confirm_lock=confirm_lock,
            say=display.say,
        )


def _make_plan(
    config: Config,
    mesh: Mesh,
    run_dir: Path,
    fall_back: bool,
    profile: StepRange | None,
    say: Callable[[str], None],
) -> Plan:
    """Checks all that may refuse a run, the built-in corpus last as it may have to be prepared."""
    # Hosts may see files at different times: they believe the primary process.
    saved_step = processes.broadcast(max(checkpoint_listing.saved_steps(run_dir), default=0))
    is_prepared = processes.broadcast(run_data.is_prepared(config))
    with processes.fail_together():
        config = _with_kept_weights(config, run_dir, say)
        if processes.is_primary():
            check_wandb(config.log)
        datasets = run_data.open_datasets(config) if is_prepared else None
        if datasets is None:
            run_data.check_place(config)
        first = next(iter(datasets.values())) if datasets else None
        end_of_text = TRAINED_END_OF_TEXT if first is None else first.eos_id
        config = dataclasses.replace(config, end_of_text=end_of_text)
        trunk = branching.find_trunk(config, resumes=saved_step > 0)
        step = saved_step or (trunk.step if trunk else 0)
        with explain_errors(config.packages()):
            stages = {x.model: config.at(x.step) for x in reversed(config.stages)}
            programs = {model: make_program(x, mesh) for model, x in stages.items()}
            program = programs[config.model]
            for model, x in stages.items():
                preflight.check_update(x, mesh, programs[model])
        stop = config.stop_rule.after(step, config.clock)
        if profile:
            check_steps(profile, step, stop)
        if stop is None or step < stop:
            preflight.check_capacity(config, mesh, program.abstract_state)
        initial = pretrained.find_pretrained(config, resumes=saved_step > 0)
    datasets = datasets or run_data.prepare_builtin(config, say)
    with processes.fail_together():
        sets = run_data.open_sets(config, datasets)
    plan = Plan(
        config=config,
        mesh=mesh,
        datasets=datasets,
        sets=sets,
        programs=programs,
        trunk=trunk,
        initial=initial,
        saved_step=saved_step,
        step=step,
    )
    with processes.fail_together():
        if trunk:
            branching.check_data(config, trunk, datasets, plan.stages)
        if initial:
            pretrained.check_vocabulary(initial, plan.dataset)
        run_directory.check_identity(run_dir, plan.identity)
        run_directory.check_stages(run_dir, plan.stages, step)
        if not (saved_step or fall_back):
            preflight.check_not_lost(config, step)
        return plan.starting_from(step)


def _with_kept_weights(config: Config, run_dir: Path, say: Callable[[str], None]) -> Config:
    """Returns a configuration whose mean of validation sets is the one that the run began with.

    Settings without `eval.weights` have those of the last stage, which a resume may change; the
    mean would jump. A set that has joined has no weight.
    """
    began = (run_directory.read_run_file(run_dir) or {}).get("evaluated", {"sets": {}})["sets"]
    kept = {name: weight for name, (_, weight) in began.items() if name in config.sets}
    now = {name: weight for name, weight in config.set_weights.items() if weight}
    if config.eval.weights or not kept or kept == now:
        return config
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in kept.items())
    say(f"eval     the mean keeps the weights {weights}: config.eval.weights gives it others")
    return config.replace(eval=dataclasses.replace(config.eval, weights=tuple(kept.items())))


def _check_owner(config: Config, run_dir: Path) -> None:
    """Raises an InputError if the directory is another run's, as far as is known without data."""
    owner = run_directory.read_identity(run_dir) or {}
    found_later = {name: owner[name] for name in _FOUND_LATER if name in owner}
    settings = config.select(lambda setting: setting.identity)
    run_directory.check_identity(run_dir, settings | found_later)


def _is_complete(plan: Plan, run_dir: Path) -> bool:
    """Whether the run is at its stop, saved and evaluated, as the primary process sees it."""
    if plan.step < plan.stop:
        return False
    is_saved = True
    if plan.saved_step:
        try:
            checkpoint_reader.read_meta(
                checkpoint_listing.checkpoint_path(run_dir, plan.saved_step)
            )
        except RunError:
            is_saved = False  # to restore it fails, and names the damage
    is_evaluated = plan.step > plan.stop or metric_records.is_evaluated(run_dir, plan.step)
    return bool(processes.broadcast(is_saved and is_evaluated))


def _claim(
    stack: contextlib.ExitStack, plan: Plan, run_dir: Path, say: Callable[[str], None]
) -> Callable[[], None]:
    """Locks the directory and makes it the run's; returns what confirms the lock."""
    config, trunk = plan.config, plan.trunk
    about: Mapping[str, Any] = {
        "name": config.name,
        "version": __version__,
        "config": config.to_dict(),
        # Wherever one reads the run.
        "data_paths": {x: str(absolute_path(y.path)) for x, y in plan.datasets.items()},
        "set_paths": {x: str(absolute_path(y.path)) for x, y in plan.sets.items()},
        "evaluated": plan.evaluated,
        "stages": plan.stages,
        **({"branch": trunk.provenance} if trunk else {}),
    }

    def confirm() -> None:  # the primary process alone holds the lock
        pass

    with processes.fail_together():
        if processes.is_primary():
            confirm = stack.enter_context(run_directory.lock(run_dir, say))
            run_directory.initialize(run_dir, plan.identity, about)
            if run_directory.record_settings(run_dir, about, plan.step):
                say(f"stages   changed from {config.clock.describe(plan.step)} on, and recorded")
            began = run_directory.evaluations(run_directory.read_run_file(run_dir))[:1]
            if not run_directory.is_same_evaluation([*began, plan.evaluated]):
                say(
                    "eval     other validation sets, weights or tokens than when the run began: "
                    "its losses from here on are of those"
                )
    preflight.check_shared(run_dir)
    return confirm


def _first_state(plan: Plan) -> TrainState:
    """Returns the state before the first update."""
    if plan.initial:
        return pretrained.init_from_pretrained(plan.initial, plan.config, plan.program)
    return plan.program.init(plan.config.seed)


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
