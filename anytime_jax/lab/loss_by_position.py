"""Losses by the position in a window: how much a model gains from what it has read before.

    python -m anytime_jax.lab.loss_by_position --run=runs/quickstart --weights=f25
    python -m anytime_jax.lab.loss_by_position --run=A --run=B --step=8x

The first tokens of a window have little context, the last ones a whole window. A small decoder
learns to use its context at some point of its training, early or late by chance: its loss then
falls at late positions more than at early ones. The gain is the loss from a 16th to a quarter of
the window minus the loss in its second half.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence

import numpy as np

from anytime_jax.commands.command_line import exit_status, path, positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_jax.weights import evaluation, saved_run, weight_names
from anytime_jax.weights.saved_run import SavedRun


def main(argv: Sequence[str]) -> int:
    """Prints the table and returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m anytime_jax.lab.loss_by_position",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--run", action="append", required=True, type=path, help="run directory; may be repeated")
    add("--step", default="latest", help='"latest", a step, or a milestone such as "4x"')
    add("--weights", default="f25", help="name of the weights (default f25)")
    add("--tokens", type=positive_int, help="of each set (default: as in training)")
    options = parser.parse_args(argv)
    return exit_status(lambda: _print(options))


def _print(options: argparse.Namespace) -> int:
    runs = [saved_run.open_run(x, options.step) for x in options.run]
    losses = [position_losses(run, options.weights, options.tokens) for run in runs]
    if len({len(x) for x in losses}) > 1:
        raise InputError("the runs have windows of several lengths: give those of one model.length")
    ranges = _ranges(len(losses[0]))
    names = [f"{first + 1} to {end}" for first, end in ranges]
    title = f"loss of {options.weights} by position in the window, nats per token"
    table = Table(title, ["run", *numbers("mean", *names, "gain", format=".4f")])
    for run, by_position in zip(runs, losses, strict=True):
        means = [by_position[first:end].mean() for first, end in ranges]
        table.add_row(run.run_dir.name, by_position.mean(), *means, means[1] - means[-1])
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
    configure()
    sys.exit(main(sys.argv[1:]))
