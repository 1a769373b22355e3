"""Loss and perplexity of any weights of a run.

The default data are the validation windows of the run's own evaluations. Differences are to the
first weights, window by window, with their standard error.
"""

import argparse
import math

from anytime_jax.commands import run_options
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.formatting import format_count
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.evaluation import mean_and_standard_error

EXAMPLES = ("--run=runs/quickstart --weights last f25 f=35",)

_LONGEST = 20  # longest name, in characters, that shares a line with its losses


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_weights(parser, several=True)
    run_options.add_data(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the losses of each weight tree as a row."""
    jax_settings.configure()
    limits = run_options.mixture_limits(arguments)
    saved = saved_run.open_run(arguments.run, arguments.step, arguments.trust)
    names = arguments.weights or saved.labels
    mixtures = {name: weight_names.resolve(saved, name, limits) for name in names}
    console = open_console()
    evaluator = run_options.open_evaluator(saved, arguments, console)
    tokens = format_count(evaluator.count * evaluator.length)
    console.print(f"{saved.title}, on {tokens} tokens of {arguments.split}")
    # Each row is printed at once, as it may take minutes.
    reference = names[0] if len(names[0]) <= _LONGEST else "the first"
    titles = ("loss", "perplexity", f"minus {reference}", "kernel error")
    width = max(len(name) for name in ("weights", *names) if len(name) <= _LONGEST)
    cells = f"{{:{width}}} {{:>8}} {{:>11}} {{:>{max(18, len(titles[2]) + 1)}}} {{:>13}}".format
    console.print(cells("weights", *titles))
    first = None
    for name, mixture in mixtures.items():
        losses = evaluator.window_losses(saved_run.load_weights(saved, mixture, evaluator.mesh))
        first = losses if first is None else first
        mean, (gap, error) = float(losses.mean()), mean_and_standard_error(losses - first)
        difference = "" if first is losses else f"{gap:+.4f} ± {error:.4f}"
        kernel = f"{mixture.kernel_error:.2%}" if mixture.kernel_error else ""
        if len(name) > _LONGEST:
            console.print(name)
            name = ""
        row = cells(name, f"{mean:.4f}", f"{math.exp(mean):.3f}", difference, kernel)
        console.print(row.rstrip())
    return 0
