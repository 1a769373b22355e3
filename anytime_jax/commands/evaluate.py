"""Loss and perplexity of any weights of a run, or their scores in tasks.

The default data are the validation windows of the run's own evaluations. Of several sets, each has
a column, and the other columns are of their mean. Differences are to the first weights, window by
window, with their standard error.

--tasks names tasks of lm-evaluation-harness, or YAML files of your own, instead of data. Their
scores also join the records of the run, unless it is being trained.
"""

import argparse
import math
from collections.abc import Mapping

from rich.console import Console

from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_error, name_weights
from anytime_jax.tables import Column, Table, numbers
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = (
    "--run=runs/quickstart --weights last f25 f=35",
    "--run=runs/quickstart --weights f25 --tasks=arc_easy,hellaswag",
)

_LONGEST = 20  # longest name, in characters, that shares a line with its losses


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_weights(parser, several=True)
    run_options.add_data(parser)
    run_options.add_vocabulary(parser)
    add = parser.add_argument
    add("--tasks", metavar="A,B", help="tasks of lm-evaluation-harness, or YAML files")
    add(
        "--shots",
        type=argument_parser.count,
        metavar="N",
        help="examples in a prompt (default: the task's)",
    )
    like = "begin texts as the harness's own model `hf` does, which may count two BOS"
    add("--like-hf", action="store_true", help=like)
    add("--limit", type=positive_int, metavar="N", help="documents of a task (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the losses of each weight tree as a row, or its scores as a table."""
    _check_options(arguments)
    jax_settings.configure()
    jax_settings.find_devices()
    limits = run_options.sum_limits(arguments)
    saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
    names = arguments.weights or saved.labels
    sums = {name: weight_names.parse(saved, name, limits) for name in names}
    console = open_console()
    if arguments.tasks is not None:
        _score_tasks(saved, sums, arguments, console)
        return 0
    evaluators = run_options.open_evaluators(saved, arguments, console)
    console.print(f"{saved.title}, on {evaluators.describe(arguments.split)}")
    # Each row is printed at once, as it may take minutes.
    reference = names[0] if len(names[0]) <= _LONGEST else "the first"
    sets = list(evaluators.by_set) if len(evaluators.by_set) > 1 else []
    titles = ("mean" if sets else "loss", "perplexity", f"minus {reference}", "kernel error")
    width = max(len(name) for name in ("weights", *names) if len(name) <= _LONGEST)
    layout = f"{{:{width}}} {{:>8}} {{:>11}} {{:>{max(18, len(titles[2]) + 1)}}} {{:>13}}"
    cells = " ".join([layout, *(f"{{:>{max(8, len(x) + 1)}}}" for x in sets)]).format
    console.print(cells("weights", *titles, *sets), soft_wrap=True)
    first = None
    for name, weighted_sum in sums.items():
        losses = evaluators.window_losses(
            saved_run.load_weights(saved, weighted_sum, evaluators.mesh)
        )
        first = losses if first is None else first
        mean, (gap, error) = losses.mean, losses.minus(first)
        difference = "" if first is losses else f"{gap:+.4f} ± {error:.4f}"
        kernel = format_error(weighted_sum.kernel_error)
        if len(name) > _LONGEST:
            console.print(name)
            name = ""
        each = [f"{losses.by_set[x].mean():.4f}" for x in sets]
        row = cells(name, f"{mean:.4f}", f"{math.exp(mean):.3f}", difference, kernel, *each)
        console.print(row.rstrip(), soft_wrap=True)
    return 0


def _score_tasks(
    saved: SavedRun,
    sums: Mapping[str, WeightedSum],
    arguments: argparse.Namespace,
    console: Console,
) -> None:
    names = [name for name in arguments.tasks.split(",") if name]
    if not names:
        raise InputError("--tasks is empty: give names of tasks, such as --tasks=arc_easy")
    _, vocabulary = saved_run.find_vocabulary(saved, arguments.vocabulary)
    from anytime_jax.weights import task_evaluation, text_scorer  # needs the extra `tasks`

    tasks = task_evaluation.load_tasks(
        names,
        vocabulary,
        saved.model.length,
        arguments.shots,
        arguments.limit,
        arguments.like_hf,
    )
    scorer = text_scorer.open_scorer(
        saved, arguments.batch_size, lambda text: console.print(f"note: {text}")
    )
    console.print(f"{saved.title}, on the tasks {', '.join(tasks.names)}")
    for name, weighted_sum in sums.items():
        params = saved_run.load_weights(saved, weighted_sum, scorer.mesh)
        model = task_evaluation.RunModel(
            scorer, params, vocabulary, saved.delimiters, tasks.like_hf
        )
        scores = task_evaluation.score_tasks(tasks, model)
        title = name_weights(name, weighted_sum.kernel_error)
        table = Table(title, ["task", *numbers("shots"), Column("metric"), *numbers("score", "±")])
        for x in scores:
            error = None if x.error is None else _format(x.error)
            table.add_row(x.task, x.shots, x.metric, _format(x.value), error)
        console.print(table)
        error = weighted_sum.kernel_error
        if problem := task_evaluation.record_scores(saved, name, tasks, scores, error):
            console.print(f"note: {problem}")


def _format(score: float) -> str:
    """Four decimals, or five digits of a score such as a perplexity by word."""
    return f"{score:.4f}" if abs(score) < 10_000 else f"{score:.4e}"


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.tasks is None:
        options = ("--shots", "--limit", "--like-hf", "--vocabulary")
        argument_parser.refuse(arguments, options, "without --tasks")
    else:
        argument_parser.refuse(arguments, ("--data", "--tokens", "--split"), "with --tasks")
