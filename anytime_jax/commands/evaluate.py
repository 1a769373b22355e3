"""Loss and perplexity of any weights of a run, or their scores in tasks.

The default data are the validation windows of the run's own evaluations. Of several sets, each has
a column, and the other columns are of their mean. Differences are to the first weights, window by
window, with their standard error.

--tasks names tasks of lm-evaluation-harness, or YAML files of your own, instead of data. Their
scores also join the records of the run, which may be training. With --watch, every checkpoint that
has no scores yet is scored, and then each new one, until the run has saved at its stop, or Ctrl-C.
"""

import argparse
import math

from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.formatting import format_error
from anytime_jax.weights import saved_run, weight_names

EXAMPLES = (
    "--run=runs/quickstart --weights last f25 f=35",
    "--run=runs/quickstart --weights f25 --tasks=arc_easy,hellaswag",
    "--run=runs/quickstart --weights f25 --tasks=arc_easy --watch",
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
    watch = "score each checkpoint as the run saves it, until its stop, or Ctrl-C"
    add("--watch", action="store_true", help=watch)
    add("--limit", type=positive_int, metavar="N", help="documents of a task (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the losses of each weight tree as a row, or its scores as a table."""
    _check_options(arguments)
    jax_settings.configure()
    jax_settings.find_devices()
    limits = run_options.sum_limits(arguments)
    if arguments.tasks is not None:
        from anytime_jax.commands import task_scores  # needs the extra `tasks`

        task_scores.score(arguments, limits, open_console())
        return 0
    saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
    names = arguments.weights or saved.labels
    sums = {name: weight_names.parse(saved, name, limits) for name in names}
    console = open_console()
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


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.tasks is None:
        options = ("--shots", "--limit", "--like-hf", "--vocabulary", "--watch")
        argument_parser.refuse(arguments, options, "without --tasks")
    else:
        argument_parser.refuse(arguments, ("--data", "--tokens", "--split"), "with --tasks")
    if arguments.watch:  # whose scores are those that are recorded
        argument_parser.refuse(arguments, ("--step", "--limit", "--like-hf"), "with --watch")
