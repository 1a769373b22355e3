"""Losses by the position in a window: how much a model gains from what it has read before.

The first tokens of a window have little context, the last ones a whole window. A small decoder
learns to use its context at some point of its training, early or late by chance: its loss then
falls at late positions more than at early ones. The gain is the loss from a 16th to a quarter of
the window minus the loss in its second half.
"""

import argparse
import itertools
import sys

import numpy as np

from anytime_jax.commands.command_line import path, positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.lab import module_command
from anytime_jax.tables import Table, numbers
from anytime_jax.weights import evaluation, saved_run, weight_names
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = ("--run=runs/quickstart", "--run=A --run=B --step=8x --weights=f12.5")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("--run", action="append", required=True, type=path, help="run directory; may be repeated")
    add("--step", default="latest", help='"latest", a step, or a milestone such as "4x"')
    add("--weights", default="f25", help="name of the weights (default: f25)")
    add("--tokens", type=positive_int, help="of each set (default: as in training)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; returns the exit status."""
    jax_settings.configure()
    found = [saved_run.open_run(x, arguments.step) for x in arguments.run]
    losses = [position_losses(each, arguments.weights, arguments.tokens) for each in found]
    if len({len(x) for x in losses}) > 1:
        raise InputError("the runs have windows of several lengths: give those of one model.length")
    ranges = _ranges(len(losses[0]))
    names = [f"{first + 1} to {end}" for first, end in ranges]
    title = f"loss of {arguments.weights} by position in the window, nats per token"
    table = Table(title, ["run", *numbers("mean", *names, "gain", format=".4f")])
    for each, by_position in zip(found, losses, strict=True):
        means = [by_position[first:end].mean() for first, end in ranges]
        gain = means[min(1, len(means) - 1)] - means[-1]
        table.add_row(each.run_dir.name, by_position.mean(), *means, gain)
    open_console().print(table)
    return 0


def position_losses(run: SavedRun, weights: str, tokens: int | None = None) -> np.ndarray:
    """Returns the mean token loss in nats at each position in a window, float64.

    It is the mean over the validation sets that count in the mean of an evaluation.
    """
    evaluators = evaluation.open_evaluators(run, tokens=tokens).of_mean
    params = saved_run.load_weights(run, weight_names.resolve(run, weights), evaluators.mesh)
    total = np.zeros(run.config.model.length)
    for name, share in evaluators.weights.items():
        evaluator = evaluators.by_set[name]
        sums = np.zeros_like(total)
        for batch, weight_of_row in evaluator.batches(evaluator.count):
            found, _ = evaluator.program.token_losses(params, batch)
            rows = np.asarray(found, np.float64)
            sums += (rows.reshape(-1, len(total)) * np.asarray(weight_of_row)[:, None]).sum(0)
        total += share * sums / evaluator.count
    return total


def _ranges(length: int) -> list[tuple[int, int]]:
    """Returns first position and end of the first 16th of a window, and up to a 4th, half, all."""
    ends = sorted({0, *(-(-length * share // 16) for share in (1, 4, 8, 16))})
    return list(itertools.pairwise(ends))


if __name__ == "__main__":
    module_command.run_and_exit(sys.modules[__name__], "loss_by_position")
