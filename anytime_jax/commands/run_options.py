"""Options that select a saved run, its weights and its data."""

import argparse
from pathlib import Path

from rich.console import Console

from anytime_jax.checks import is_number
from anytime_jax.commands import argument_parser, config_file
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.errors import InputError
from anytime_jax.training.evaluator import EvaluationRequest, Evaluators
from anytime_jax.weights import saved_run_evaluators, weight_names
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.weight_names import DEFAULT_LIMITS, SumLimits


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a saved run and of its post-hoc averages."""
    add = parser.add_argument
    add("--run", type=argument_parser.path, required=True, metavar="DIR", help="run directory")
    config_file.add_trust(parser)
    add("--step", default="latest", help='checkpoint: "latest", a step, or a milestone such as 4x')
    add(
        "--max-error",
        type=float,
        default=DEFAULT_LIMITS.kernel_error,
        metavar="ERROR",
        help="largest relative error of the averaging kernel of a post-hoc average",
    )
    add(
        "--checkpoints",
        type=positive_int,
        default=DEFAULT_LIMITS.checkpoints,
        metavar="N",
        help="largest number of checkpoints to mix",
    )


def add_weights(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Adds the option that selects one weight tree, or several."""
    text = f"last, a label such as f25 (x, ema, theta: the optimizer's), or {weight_names.FORMS}"
    if several:
        text += " (default: all in the checkpoint)"
        parser.add_argument("--weights", nargs="+", action="extend", metavar="NAME", help=text)
    else:
        parser.add_argument("--weights", default="f25", metavar="NAME", help=text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the evaluation data."""
    add = parser.add_argument
    add(
        "--data",
        type=argument_parser.path,
        metavar="DIR",
        help="prepared dataset (default: the run's validation sets)",
    )
    add("--split", choices=("validation", "train"), default="validation", help="part of it")
    add("--tokens", type=positive_int, metavar="N", help="(default: as many as in training)")
    add("--batch-size", type=positive_int, metavar="N", help="windows (default: as in training)")


def add_vocabulary(parser: argparse.ArgumentParser) -> None:
    """Adds the option that selects a vocabulary file."""
    text = "vocabulary of the run (default: the one with its data)"
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help=text)


def sum_limits(arguments: argparse.Namespace) -> SumLimits:
    """Returns the limits of a post-hoc average; raises an InputError if they are out of range."""
    if not (is_number(arguments.max_error) and arguments.max_error >= 0):
        reason = "give a number from 0, such as 0.05"
        raise InputError(reason, "--max-error", arguments.max_error)
    return SumLimits(arguments.max_error, arguments.checkpoints)


def open_evaluators(
    run: SavedRun, arguments: argparse.Namespace, console: Console, parts: int = 1
) -> Evaluators:
    """Returns evaluators on the selected data (`saved_run_evaluators.open_evaluators`)."""
    request = EvaluationRequest(
        arguments.data, arguments.split, arguments.tokens, arguments.batch_size, parts
    )
    return saved_run_evaluators.open_evaluators(
        run, request, lambda text: console.print(f"note: {text}")
    )
