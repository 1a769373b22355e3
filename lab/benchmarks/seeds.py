"""Trains many seeds of each setting of a study at once, by `jax.vmap`, on one device.

    python -m lab.benchmarks.seeds --study=leaderboard --seeds=32 --directory=DIR
    anytime leaderboard --study=DIR

A small model leaves a GPU idle. Here one update is that of all seeds: the runs of the study without
their own seeds are trained with the seeds FIRST, FIRST + 1, ... Each has the losses of a run of its
own but for rounding. DIR is a study with the records of the evaluations; there are no checkpoints.
A setting whose seeds are all in DIR is not trained again. One that would not end within
`--seconds`, at the speed of those before, is left for the next start.

The leaderboard with 32 seeds has 2.1 billion tokens. A GPU needs 4.3 million tokens a second for it
in 500 seconds.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checkpoints import metric_records, run_json, run_ownership
from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.checkpoints.run_json import RunFile
from anytime_jax.commands.argument_parser import positive_int, seconds
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import run_data
from anytime_jax.training.due_steps import evaluation_event
from anytime_jax.training.evaluator import RunEvaluators, weight_trees
from anytime_jax.training.plan import Plan, make_plan
from anytime_jax.training.step import Program, rates_at
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, StudyRun, runs, seeds, without_seed
from benchmarks import harness, record


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.seeds", __doc__)
    add = parser.add_argument
    add("--directory", type=Path, required=True, metavar="DIR", help="where the runs are written")
    add("--study", required=True, metavar="PATH", help="study by file or name, without branches")
    add("--seeds", type=positive_int, default=32, help="seeds of each setting (default 32)")
    add("--first", type=positive_int, default=101, help="the first seed (default 101)")
    add("--data", help="prepared training text in place of the study's")
    add("--seconds", type=seconds, default=500, help="in all (default 500)")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    deadline = time.monotonic() + options.seconds
    study = study_files.load_file(options.study)
    groups = group_runs(study, range(options.first, options.first + options.seeds), options)
    every = [run for group in groups.values() for run in group]
    study_files.write_plan(dataclasses.replace(study, root=str(options.directory), runs=every))
    rows: list[dict[str, Any]] = []
    programs: dict[str, Together] = {}
    slowest = math.inf  # tokens a second
    for name, group in groups.items():
        clock, stop = group[0].build().clock, int(group[0].build().stop_rule.step or 0)
        tokens = len(group) * clock.tokens(stop)
        row = {"setting": name, "state": "trained", "tokens_per_s": None, "loss": None}
        rows.append(row)
        if all(metric_records.is_evaluated(run.run_dir, stop) for run in group):
            row["state"] = "trained before"
        elif time.monotonic() + tokens / slowest > deadline:
            row["state"] = "left for the next start"
        else:
            plans, began = make_plans(group), time.monotonic()
            key = json.dumps([plans[0].config.to_dict()[x] for x in ("optimizer", "averages")])
            together = programs.setdefault(key, Together.of(plans[0]))
            row["loss"] = float(np.mean(train(plans, together)))
            row["tokens_per_s"] = tokens / (time.monotonic() - began)
            slowest = min(slowest, row["tokens_per_s"])
        print(row, flush=True)
    return record.Result(f"{options.seeds} seeds together", rows)


def group_runs(
    study: Study, numbers: Sequence[int], options: argparse.Namespace
) -> dict[str, list[StudyRun]]:
    """Returns the runs of each setting with some seeds, by the name of the setting."""
    groups: dict[str, list[StudyRun]] = {}
    for run in study.runs:
        name = without_seed(run.name)
        if run.trunk:
            raise InputError(f"{run.name} is a branch of {run.trunk}: give a study without any")
        if name not in groups:
            config = run.settings
            config["log"]["trackers"] = ()
            if options.data:
                config["data"]["path"] = options.data
            groups[name] = runs(name, config, seeds(*numbers), str(options.directory))
    return groups


def make_plans(group: Sequence[StudyRun]) -> list[Plan]:
    """Returns the plans of runs that differ in their seeds alone; all have the first's programs."""
    first, *others = (run.build() for run in group)
    plan = make_plan(first, sharding.make_mesh(first.mesh, jax.devices()[:1]))
    if len(plan.programs) > 1:
        raise InputError(f"{group[0].name} has stages of several models: give a study without any")
    return [plan] + [
        dataclasses.replace(plan, config=config, run_dir=storage_path(config.directory))
        for config in others
    ]


@dataclasses.dataclass(frozen=True)
class Together:
    """Functions of a program for all seeds at once: every array has a first axis S for the seeds.

    Attributes:
      init: `(seeds_S) -> states`.
      update: `(states, tokens_SxBxT, rates) -> states`.
      trees: `(states) -> weight trees by label`.
      program: the program, whose `eval_step` takes the trees of all seeds and returns sums_SxL.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]
    trees: Callable[..., Any]
    program: Program

    @classmethod
    def of(cls, plan: Plan) -> "Together":
        """Returns the functions of a plan's program."""
        program = plan.program
        update = jax.vmap(program.train_step, in_axes=(0, 0, None))
        evaluate = jax.vmap(program.eval_step, in_axes=(0, None, None))
        return cls(
            init=jax.jit(jax.vmap(program.init)),
            update=jax.jit(lambda *arguments: update(*arguments)[0], donate_argnums=0),
            trees=jax.jit(jax.vmap(weight_trees)),
            program=dataclasses.replace(program, eval_step=jax.jit(evaluate)),
        )


def train(plans: Sequence[Plan], together: Together) -> list[float]:
    """Trains the runs of some plans, which differ in their seeds alone, and writes their records.

    Returns the last mean loss of each by its last weights.
    """
    plan, config = plans[0], plans[0].config
    stop, mesh = int(plan.stop), plan.mesh
    due = evaluation_event(config, stop).due
    evaluators = RunEvaluators(
        config, mesh, plan.sets, plan.set_weights, {config.model: together.program}
    )
    rows: list[dict[int, Mapping[str, float]]] = [{} for _ in plans]
    states = together.init(np.array([x.config.seed for x in plans]))
    for step, tokens_SxBxT in zip(range(stop), _batches(plans), strict=False):
        states = together.update(states, tokens_SxBxT, rates_at(config, step))
        if due(step + 1):
            at, trees = evaluators.at(step + 1), together.trees(states)
            by_set = {
                name: evaluator.position_losses(trees) or {}
                for name, evaluator in at.by_set.items()
            }
            for i, of_seed in enumerate(rows):
                of_seed[step + 1] = at.name_losses(
                    {
                        name: {label: losses_SxL[i] for label, losses_SxL in by_label.items()}
                        for name, by_label in by_set.items()
                    }
                )
    for each, of_seed in zip(plans, rows, strict=True):
        _write(each, of_seed)
    return [of_seed[stop]["last/loss"] for of_seed in rows]


def _batches(plans: Sequence[Plan]) -> Iterator[jax.Array]:
    """Yields the batches of all runs; their sizes may grow."""
    with contextlib.ExitStack() as stack:
        each = [
            run_data.iterate_batches(x.config, x.mesh, x.datasets, x.program.rules, step=0)
            for x in plans
        ]
        for batches in each:
            stack.enter_context(contextlib.closing(batches))
        yield from map(jnp.stack, zip(*each, strict=True))


def _write(plan: Plan, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Writes the run file and the records of a run."""
    config = plan.config
    run_file = RunFile(
        id=run_ownership.new_id(),
        identity=plan.identity,
        name=config.name,
        version=plan.about.version,
        config=config.to_dict(),
        delimiters=plan.dataset.delimiters,
        evaluated=plan.evaluated,
        stages=plan.stages,
    )
    run_json.write_run_file(plan.run_dir, run_file)
    writer = RecordWriter(plan.run_dir, 0, {"together": True})
    for step, losses in rows.items():
        values = {f"eval/{name}": loss for name, loss in losses.items()}
        writer.write(step, config.clock.tokens(step), values)
    writer.close()


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
