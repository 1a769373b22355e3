"""Losses by the position in a window: how much a model gains from what it has read before.

The first tokens of a window have little context, the last ones a whole window. A small decoder
learns to use its context at some point of its training, early or late by chance: its loss then
falls at late positions more than at early ones. The gain is the loss from a 16th to a quarter of
the window minus the loss in its second half.
"""

import argparse
import functools
import itertools
import sys

import numpy as np

from anytime_jax.commands import config_file
from anytime_jax.commands.argument_parser import path, positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import name_weights
from anytime_jax.models.decoder import Params
from anytime_jax.tables import Table, numbers
from anytime_jax.training.evaluator import EvaluationRequest, Evaluators
from anytime_jax.weights import saved_run, saved_run_evaluators, weight_names
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = ("--run=runs/quickstart", "--run=A --run=B --step=8x --weights=f12.5")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("--run", action="append", required=True, type=path, help="run directory; may be repeated")
    add("--step", default="latest", help='"latest", a step, or a milestone such as "4x"')
    add("--weights", default="f25", help="name of the weights (default: f25)")
    add(
        "--tokens",
        type=positive_int,
        help="validation tokens of each set (default: as in training)",
    )
    config_file.add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; returns the exit status."""
    jax_settings.configure()
    say = functools.partial(print, file=sys.stderr)
    found = [saved_run.open_saved_run(x, arguments.step, arguments.trust) for x in arguments.run]
    weights = [weight_names.parse(each, arguments.weights) for each in found]
    request = EvaluationRequest(tokens=arguments.tokens)
    evaluators = [
        saved_run_evaluators.open_evaluators(each, request, say).of_mean for each in found
    ]
    lengths = [_length(each, x) for each, x in zip(found, evaluators, strict=True)]
    if len(set(lengths)) > 1:
        shown = ", ".join(f"{x.run_dir}: {n}" for x, n in zip(found, lengths, strict=True))
        raise InputError(f"the runs have windows of several lengths ({shown}): give those of one")
    ranges = _ranges(lengths[0])
    names = [f"{first + 1} to {end}" for first, end in ranges]
    title = f"loss of {arguments.weights} by position in the window, nats per token"
    table = Table(title, ["run", *numbers("mean", *names, "gain", format=".4f")])
    for each, weighted_sum, of_run in zip(found, weights, evaluators, strict=True):
        params = saved_run.load_weights(each, weighted_sum, of_run.mesh)
        by_position = position_losses(of_run, params)
        means = [by_position[first:end].mean() for first, end in ranges]
        gain = means[min(1, len(means) - 1)] - means[-1]
        run_name = name_weights(each.run_dir.absolute().name, weighted_sum.kernel_error)
        table.add_row(run_name, by_position.mean(), *means, gain)
    open_console().print(table)
    return 0


def _length(run: SavedRun, evaluators: Evaluators) -> int:
    lengths = {x.length for x in evaluators.by_set.values()}
    if len(lengths) > 1:
        raise InputError(f"--run={run.run_dir} is evaluated at several lengths: give another run")
    return lengths.pop()


def position_losses(evaluators: Evaluators, params: Params) -> np.ndarray:
    """Returns the mean token loss in nats at each position in a window, float64.

    It is the mean over the sets, which have windows of one length, by their weights.
    """
    mean = 0.0
    for name, share in evaluators.weights.items():
        evaluator, sums = evaluators.by_set[name], 0.0
        for batch, weight_of_row in evaluator.batches(evaluator.count):
            losses, _ = evaluator.program.token_losses(params, batch)
            rows = np.asarray(losses, np.float64).reshape(-1, evaluator.length)
            sums = sums + np.asarray(weight_of_row, np.float64) @ rows
        mean = mean + share * sums / evaluator.count
    return np.asarray(mean)


def _ranges(length: int) -> list[tuple[int, int]]:
    """Returns first position and end of the first 16th of a window, and up to a 4th, half, all."""
    ends = sorted({0, *(-(-length * share // 16) for share in (1, 4, 8, 16))})
    return list(itertools.pairwise(ends))
