"""Tables of scores of tasks, which `evaluate --tasks` prints and records."""

import argparse
import contextlib
import time
from collections.abc import Iterator

from rich.console import Console

from anytime_jax.checkpoints import checkpoint_listing, metric_records, run_json
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_score, name_weights
from anytime_jax.tables import Column, Table, numbers
from anytime_jax.training.signals import until_interrupted
from anytime_jax.training.task_evaluation import Tasks, load_tasks
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.checkpoint_scorer import CheckpointScorer, has_ended
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.weight_names import SumLimits

_EVERY = 10.0  # seconds between looks of --watch


def score(arguments: argparse.Namespace, limits: SumLimits, console: Console) -> None:
    """Scores the weights of one checkpoint, or with --watch of every checkpoint."""
    names = [name for name in arguments.tasks.split(",") if name]
    if not names:
        raise InputError("--tasks is empty: give names of tasks, such as --tasks=arc_easy")
    with contextlib.ExitStack() as stack:
        if arguments.watch:
            stack.enter_context(until_interrupted())
            _wait_for_checkpoint(arguments, console)
        saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
        chosen = arguments.weights or saved.labels
        sums = {name: weight_names.parse(saved, name, limits) for name in chosen}
        _, vocabulary = saved_run.find_vocabulary(saved, arguments.vocabulary)
        options = arguments.shots, arguments.limit, arguments.like_hf
        tasks = load_tasks(names, vocabulary, saved.model.length, *options)
        scorer = CheckpointScorer(
            tasks, vocabulary, arguments.batch_size, lambda text: console.print(f"note: {text}")
        )
        stack.enter_context(contextlib.closing(scorer))
        if arguments.watch:
            _watch(scorer, tasks, arguments, limits, console)
            return
        console.print(f"{saved.title}, on the tasks {', '.join(tasks.names)}")
        for name, weighted_sum in sums.items():
            _score(scorer, saved, name, weighted_sum, console)


def _wait_for_checkpoint(arguments: argparse.Namespace, console: Console) -> None:
    """Returns once a run has a checkpoint; raises an InputError if there is no run."""
    run_json.read_run(str(arguments.run), "run", arguments.trust)
    if not checkpoint_listing.saved_steps(arguments.run):
        console.print(f"{arguments.run} has no checkpoint yet: waiting for the first, or Ctrl-C")
    while not checkpoint_listing.saved_steps(arguments.run):
        time.sleep(_EVERY)


def _watch(
    scorer: CheckpointScorer,
    tasks: Tasks,
    arguments: argparse.Namespace,
    limits: SumLimits,
    console: Console,
) -> None:
    """Scores every checkpoint that has no scores, the oldest first, until the run has ended."""
    seen: list[int] = []
    tried: set[tuple[int, str]] = set()

    def score_step(step: int, names: set[str]) -> None:
        saved = saved_run.open_saved_run(arguments.run, str(step), arguments.trust)
        missing = [
            name
            for name in arguments.weights or saved.labels
            if (step, name) not in tried and not tasks.are_scored(name, names)
        ]
        if missing:
            console.print(f"{saved.title}, on the tasks {', '.join(tasks.names)}")
        for name in missing:
            tried.add((step, name))
            with _passing_over(f"{name} of step {step:,}", console):
                weighted_sum = weight_names.parse(saved, name, limits)
                _score(scorer, saved, name, weighted_sum, console)

    while True:
        steps = checkpoint_listing.saved_steps(arguments.run)
        if steps != seen:
            rows = {x.step: {*x.values} for x in metric_records.read_records(arguments.run)}
            for step in steps:
                with _passing_over(f"step {step:,}", console):
                    score_step(step, rows.get(step, set()))
            seen = steps
        elif has_ended(arguments.run, steps[-1] if steps else 0, arguments.trust):
            console.print(f"{arguments.run} has ended, and nothing is left to score")
            return
        time.sleep(_EVERY)


@contextlib.contextmanager
def _passing_over(what: str, console: Console) -> Iterator[None]:
    """Turns an error of the block into a note: the run may have deleted a checkpoint."""
    try:
        yield
    except (InputError, RunError) as error:
        console.print(f"note: {what} is passed over: {error}")


def _score(
    scorer: CheckpointScorer,
    saved: SavedRun,
    name: str,
    weighted_sum: WeightedSum,
    console: Console,
) -> None:
    """Prints the scores of weights as a table, and records them."""
    scores, error = scorer.score(saved, weighted_sum), weighted_sum.kernel_error
    table = Table(
        name_weights(name, error),
        ["task", *numbers("shots"), Column("metric"), *numbers("score", "±")],
    )
    for x in scores:
        deviation = None if x.error is None else format_score(x.error)
        table.add_row(x.task, x.shots, x.metric, format_score(x.value), deviation)
    console.print(table)
    if problem := scorer.record(saved, name, scores, error):
        console.print(f"note: {problem}")
