"""Generate text with any weights of a run.

The prompt and its continuation go to standard output, everything else to standard error.
"""

import argparse
import sys

from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import name_weights
from anytime_jax.models.sampling import SamplingSettings
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.generation import generate_text

EXAMPLES = ('--run=runs/quickstart --weights=f25 --prompt="def main("',)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_weights(parser)
    run_options.add_vocabulary(parser)
    add = parser.add_argument
    add("--prompt", default="", help="beginning of the text (default: none)")
    add("--tokens", type=positive_int, default=200, metavar="N", help="largest number to generate")
    add("--temperature", type=float, default=0.8, metavar="T", help="0 for the likeliest token")
    add("--top-k", type=int, default=0, metavar="K", help="likeliest tokens to sample from, 0: all")
    add("--top-p", type=float, default=0.95, metavar="P", help="probability mass to sample from")
    add("--seed", type=int, default=0, help="the same seed gives the same text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the text token by token."""
    jax_settings.configure()
    jax_settings.find_devices()
    limits = run_options.sum_limits(arguments)
    sampling = _sampling(arguments)
    if sampling.temperature == 0:
        argument_parser.refuse(arguments, ("--top-k", "--top-p", "--seed"), "with --temperature=0")
    try:
        arguments.prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError("--prompt is not UTF-8") from error
    saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
    weighted_sum = weight_names.parse(saved, arguments.weights, limits)
    _, vocabulary = saved_run.find_vocabulary(saved, arguments.vocabulary)
    pieces = generate_text(
        saved, weighted_sum, vocabulary, arguments.prompt, sampling, arguments.tokens
    )
    name = name_weights(weight_names.format_sum(weighted_sum), weighted_sum.kernel_error)
    print(f"{name} of {saved.run_dir}", file=sys.stderr)
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)
    return 0


def _sampling(arguments: argparse.Namespace) -> SamplingSettings:
    try:
        return SamplingSettings(
            arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed
        )
    except InputError as error:
        option = f"--{error.setting.replace('_', '-')}"
        raise InputError(error.reason, option, error.value) from error
