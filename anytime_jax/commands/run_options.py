"""Options that select a saved run, its weights and its data, and functions that load them."""

import argparse
from pathlib import Path

from anytime_jax.checks import is_number
from anytime_jax.commands import command_line, config_file
from anytime_jax.commands.command_line import positive_int
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.weights import evaluation_data, saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.scoring import Scorer
from anytime_jax.weights.weight_names import MixtureLimits

_LIMITS = MixtureLimits()


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a saved run and of its post-hoc averages."""
    add = parser.add_argument
    add("--run", type=command_line.path, required=True, metavar="DIR", help="run directory")
    config_file.add_trust(parser)
    add("--step", default="latest", help='checkpoint: "latest", a step, or a milestone such as 4x')
    add(
        "--max-error",
        type=float,
        default=_LIMITS.kernel_error,
        metavar="ERROR",
        help="largest relative error of the averaging kernel of a post-hoc average",
    )
    add(
        "--checkpoints",
        type=positive_int,
        default=_LIMITS.checkpoints,
        metavar="N",
        help="largest number of checkpoints to mix",
    )


def add_weights(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Adds the option that selects one weight tree, or several."""
    text = f"last, a label such as f25 (x, ema, theta: the optimizer's), or {weight_names.FORMS}"
    if several:
        text += " (default: all in the checkpoint)"
        parser.add_argument("--weights", nargs="+", metavar="NAME", help=text)
    else:
        parser.add_argument("--weights", default="f25", metavar="NAME", help=text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the evaluation data."""
    add = parser.add_argument
    add(
        "--data",
        type=command_line.path,
        metavar="DIR",
        help="prepared dataset (default: the run's)",
    )
    add("--split", choices=("validation", "train"), default="validation", help="part of it")
    add("--tokens", type=positive_int, metavar="N", help="(default: as many as in training)")
    add("--batch-size", type=positive_int, metavar="N", help="windows (default: as in training)")


def add_vocabulary(parser: argparse.ArgumentParser) -> None:
    """Adds the option that selects a vocabulary file."""
    text = "vocabulary of the run (default: the one with its data)"
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help=text)


def mixture_limits(arguments: argparse.Namespace) -> MixtureLimits:
    """Returns the limits of a post-hoc average; raises an InputError if they are out of range."""
    if not (is_number(arguments.max_error) and arguments.max_error >= 0):
        raise InputError(f"--max-error={arguments.max_error}: give a number from 0, such as 0.05")
    return MixtureLimits(arguments.max_error, arguments.checkpoints)


def load_named_weights(run: SavedRun, name: str, limits: MixtureLimits) -> tuple[Mixture, Params]:
    """Returns weights of a run by name, float32 in host memory, and the mixture that gave them."""
    mixture = weight_names.resolve(run, name, limits)
    return mixture, saved_run.load_weights(run, mixture)


def open_scorer(run: SavedRun, arguments: argparse.Namespace, parts: int = 1) -> tuple[Scorer, int]:
    """Returns a scorer on the selected data, and the number of windows; see `evaluation_data`."""
    return evaluation_data.open_scorer(
        run, arguments.data, arguments.split, arguments.tokens, arguments.batch_size, parts
    )
