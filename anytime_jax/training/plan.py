"""Plan of a run: what a start finds and checks before it writes anything.

    plan = make_plan(config, mesh)      reads only
    with open_run(plan) as run: ...     `active_run.py`, the only place that writes

A plan says at which step a run goes on, where it stops, what it starts from, which data it reads
and which programs it runs. The plan holds all that a start finds out; the configuration never
changes.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from anytime_jax import __version__
from anytime_jax.checkpoints import (
    checkpoint_listing,
    checkpoint_reader,
    metric_records,
    run_json,
    run_ownership,
)
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.run_json import Evaluation, RunFile, StageEntry
from anytime_jax.config.kinds import explain_errors
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.config.stages import MODEL_FIELDS, describe_weights
from anytime_jax.data.dataset_info import DatasetInfo, data_fingerprint
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import RunError
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import (
    branching,
    due_steps,
    microbatch_search,
    milestone_exports,
    preflight,
    pretrained,
    run_data,
)
from anytime_jax.training.branching import Trunk
from anytime_jax.training.evaluator import weight_trees
from anytime_jax.training.objective import DocumentRules, document_rules
from anytime_jax.training.pretrained import Pretrained
from anytime_jax.training.profiler import StepRange, check_steps
from anytime_jax.training.step import Program, make_program
from anytime_jax.training.trackers import Tracker, read_trackers

if TYPE_CHECKING:  # it needs the extra `tasks`
    from anytime_jax.training.task_evaluator import TaskEvaluator


def evaluation_entry(
    config: Config, sets: Mapping[str, DatasetInfo], weights: Mapping[str, float]
) -> Evaluation:
    """Returns the run file's entry on evaluations: datasets, weights and tokens of the sets."""
    shares = {x: (y.fingerprint, weights[x]) for x, y in sets.items() if weights[x]}
    return Evaluation(config.eval.tokens, shares)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a start has found for a configuration.

    Attributes:
      run_dir: the run directory.
      run_file: content of the run file; None for a run that has not begun.
      datasets: the dataset of every source, by name.
      sets: the dataset of every validation set, by name.
      set_weights: weight of every validation set in the mean (`RunFile.set_weights`).
      programs: the functions of the run, by the model of a stage.
      trackers: the trackers by name; none in processes other than the primary.
      tasks: the tasks that the run scores, with their data; None for a run without tasks.
      trunk: checkpoint that a branch leaves; None for a run without one.
      initial: model that the run starts from; None for random weights.
      saved_step: step of the latest checkpoint, 0 if there is none.
      step: step from which training goes on: `saved_step`, or the step where a branch begins.
      stop: step at which training ends, `math.inf` for never.
      reason: why training ends there: "stop", or "data" if all windows are used then.
      fall_back: whether a damaged checkpoint is set aside.
      profile: updates to trace.
    """

    config: Config
    mesh: Mesh
    run_dir: Path
    run_file: RunFile | None
    datasets: Mapping[str, DatasetInfo]
    sets: Mapping[str, DatasetInfo]
    set_weights: Mapping[str, float]
    programs: Mapping[ModelConfig, Program]
    trackers: Mapping[str, Tracker]
    tasks: "TaskEvaluator | None"
    trunk: Trunk | None
    initial: Pretrained | None
    saved_step: int
    step: int
    stop: float
    reason: str
    fall_back: bool = False
    profile: StepRange | None = None

    def starting_from(self, step: int) -> "Plan":
        """Returns the plan for another step, with the stop that follows from this step.

        Raises an InputError if the data end before the configured stop.
        """
        stop, reason = run_data.find_stop(self.config, self.datasets, step)
        return dataclasses.replace(self, step=step, stop=stop, reason=reason)

    @property
    def program(self) -> Program:
        """The program of the first stage; all stages have the same state."""
        return self.programs[self.config.model]

    def is_complete(self) -> bool:
        """Whether a run is at its stop, saved, evaluated and exported, as the primary sees it."""
        if self.step < self.stop:
            return False
        is_saved = True
        if self.saved_step:
            try:
                path = checkpoint_listing.checkpoint_path(self.run_dir, self.saved_step)
                checkpoint_reader.read_meta(path, self.run_file)
            except RunError:
                is_saved = False  # to restore it fails, and names the damage
        is_evaluated = self.step > self.stop or (
            metric_records.is_evaluated(self.run_dir, self.step) and not self.misses_scores()
        )
        is_exported = not milestone_exports.missing(self.config, self.stop)
        return bool(processes.broadcast(is_saved and is_evaluated and is_exported))

    def misses_scores(self) -> bool:
        """Whether the records lack scores that are due at the step, as this process sees them."""
        event = due_steps.task_event(self.config, self.stop)
        if self.tasks is None or not event.due(self.step):
            return False
        names = metric_records.recorded_names(self.run_dir, self.step)
        labels = jax.eval_shape(weight_trees, self.program.abstract_state)
        return not all(self.tasks.tasks.are_scored(label, names) for label in labels)

    @property
    def dataset(self) -> DatasetInfo:
        """The dataset of the first source; all sources have the same vocabulary."""
        return next(iter(self.datasets.values()))

    def has_data_to(self, step: int) -> bool:
        """Whether the data are enough for `step` updates."""
        return (
            self.config.data.repeat
            or run_data.find_exhausted(self.config, self.datasets, step) is None
        )

    @property
    def origin(self) -> dict[str, str]:
        """Digests of what the run starts from."""
        origin = {"branch.checkpoint": self.trunk.digest} if self.trunk else {}
        return origin | ({"initial_weights": self.initial.digest} if self.initial else {})

    @property
    def identity(self) -> dict[str, Any]:
        """The values by which a run knows its directory (`Config.identity`, and the origin)."""
        return self.config.identity(self._fingerprint) | self.origin

    @property
    def _fingerprint(self) -> str:
        """The fingerprint of the data of the first stage."""
        first = self.config.run_stages[0]
        return data_fingerprint([self.datasets[name] for name, _ in first.weights])

    @property
    def stages(self) -> tuple[StageEntry, ...]:
        """The run file's entries on the stages."""
        return tuple(
            StageEntry(
                step=stage.step,
                **{name: getattr(stage.model, name) for name in MODEL_FIELDS},
                mixture=describe_weights(stage.weights),
                sources=tuple((self.datasets[x].fingerprint, y) for x, y in stage.weights),
            )
            for stage in self.config.run_stages
        )

    @property
    def evaluated(self) -> Evaluation:
        """The run file's entry on evaluations."""
        return evaluation_entry(self.config, self.sets, self.set_weights)

    @property
    def about(self) -> Meta:
        """The metadata that every checkpoint of the run has, at step 0."""
        return Meta(
            config=self.config.to_dict(),
            origin=self.origin,
            fingerprint=self._fingerprint,
            stages=self.stages,
            vocabulary=self.dataset.vocabulary_sha256,
            microbatches=self.program.microbatches,
            version=__version__,
            jax=jax.__version__,
        )


def make_plan(
    config: Config,
    mesh: Mesh,
    *,
    fall_back: bool = False,
    profile: StepRange | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Finds and checks all that a run needs, cheap things first; writes nothing.

    The mesh is one that `preflight.check_start` has returned. Programs are compiled last, and only
    to find the number of microbatches.

    Raises an InputError if anything does not fit the configuration.
    """
    run_dir = storage_path(config.directory)
    # Hosts may see files at different times, so all take what the primary process sees.
    saved_step = processes.broadcast(max(checkpoint_listing.saved_steps(run_dir), default=0))
    with processes.fail_together():
        run_file = run_json.read_run_file(run_dir)
        own = run_file if saved_step else None
        trunk = branching.find_trunk(config, run_dir, own)
        initial = pretrained.find_pretrained(config, own)
        milestone_exports.check(config)
        trackers = read_trackers(config) if processes.is_primary() else {}
        datasets = run_data.open_datasets(config)
        sets = run_data.open_sets(config, datasets)
        tasks = _open_tasks(config, mesh, next(iter(datasets.values())))
    step = saved_step or (trunk.step if trunk else 0)
    known = processes.broadcast(_known_microbatches(config, mesh, run_file, trunk, say))
    numbers = [known] if known else microbatch_search.possible_numbers(config, mesh)
    rules = document_rules(config.data, next(iter(datasets.values())).delimiters)
    with processes.fail_together():
        stop, reason = run_data.find_stop(config, datasets, step)
        plan = Plan(
            config=config,
            mesh=mesh,
            run_dir=run_dir,
            run_file=run_file,
            datasets=datasets,
            sets=sets,
            set_weights=_set_weights(config, run_file, say),
            programs=_make_programs(config, mesh, rules, numbers[-1]),
            trackers=trackers,
            tasks=tasks,
            trunk=trunk,
            initial=initial,
            saved_step=saved_step,
            step=step,
            stop=stop,
            reason=reason,
            fall_back=fall_back,
            profile=profile,
        )
        if trunk:
            branching.check_data(config, trunk, datasets, plan.stages)
        if initial:
            pretrained.check_vocabulary(initial, plan.dataset)
        run_ownership.check_identity(run_dir, run_file, plan.identity)
        if run_file:
            run_file.check_stages(plan.stages, step)
            run_data.check_skip(config, run_file.config, step)
        if not (saved_step or fall_back):
            preflight.check_not_lost(config, run_dir, step)
        if profile:
            check_steps(profile, step, None if math.isinf(stop) else int(stop))
        if step < stop:
            preflight.check_capacity(plan.program, run_dir)
    if known or step >= stop:
        return plan
    # The memory of a CPU device is that of the machine, which other programs use too.
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    memory = None if is_cpu else sharding.device_memory(mesh)
    number = microbatch_search.find(config, mesh, rules, numbers, memory, say)
    return dataclasses.replace(plan, programs=_make_programs(config, mesh, rules, number))


def _open_tasks(config: Config, mesh: Mesh, dataset: DatasetInfo) -> "TaskEvaluator | None":
    if not config.eval.tasks:
        return None
    from anytime_jax.training import task_evaluator  # needs the extra `tasks`

    return task_evaluator.open_tasks(config, mesh, dataset)


def _make_programs(
    config: Config, mesh: Mesh, rules: DocumentRules, microbatches: int
) -> dict[ModelConfig, Program]:
    """Returns the programs of a run by the model of a stage; checks classes of other packages."""
    programs = {}
    with explain_errors(config.packages()):
        for model in config.models:
            program = make_program(config, mesh, rules, model=model, microbatches=microbatches)
            preflight.check_update(program)
            programs[model] = program
    return programs


def _known_microbatches(
    config: Config,
    mesh: Mesh,
    run_file: RunFile | None,
    trunk: Trunk | None,
    say: Callable[[str], None],
) -> int:
    """Returns the number of microbatches if it is known, else 0.

    A configured number is known. With "auto", the number with which the run, or its trunk, began is
    kept, because losses depend on it in their last bits. It is not known if the devices cannot
    share such microbatches.
    """
    if not isinstance(config.microbatches, str):
        return config.microbatches
    kept = 0
    if config.microbatches == "auto":
        began = run_file or (trunk.meta if trunk else None)
        kept = began.microbatches if began else 0
    if kept and kept not in microbatch_search.possible_numbers(config, mesh):
        say(f"update   microbatches = {kept} before, which these {mesh.size} devices cannot share")
        return 0
    if kept:
        say(f"update   microbatches = {kept}, as before")
    return kept


def _set_weights(
    config: Config, run_file: RunFile | None, say: Callable[[str], None]
) -> dict[str, float]:
    """Returns the weight of every validation set in the mean.

    Says so if the run keeps weights that differ from those of the configuration.
    """
    weights = run_file.set_weights(config) if run_file else config.set_weights
    if weights != config.set_weights:
        text = ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items() if weight)
        say(f"eval     the mean keeps the weights {text}: config.eval.weights gives it others")
    return weights
