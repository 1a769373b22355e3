"""Generate text with any weights of a run.

The prompt and its continuation go to standard output, everything else to standard error.
"""

import argparse
import io
import os
import sys
from pathlib import Path

import jax

from anytime_jax.commands import run_options
from anytime_jax.distributed import runtime
from anytime_jax.errors import InputError
from anytime_jax.models.sampling import SamplingSettings, generate_tokens
from anytime_jax.weights import saved_run, weight_names

EXAMPLES = ('--run=runs/quickstart --weights=f25 --prompt="def main("',)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_options(parser)
    add = parser.add_argument
    add("--prompt", default="", help="what the text begins with (default: nothing)")
    add("--tokens", type=int, default=200, help="how many to make at most (default 200)")
    add("--temperature", type=float, default=0.8, help="0 for the likeliest token (default 0.8)")
    add("--top-k", type=int, default=0, help="tokens to draw from; 0 for all (default 0)")
    add("--top-p", type=float, default=0.95, help="share of them to draw from (default 0.95)")
    add("--seed", type=int, default=0, help="the same seed gives the same text (default 0)")
    add("--vocabulary", type=Path, metavar="FILE", help="if it is not with the data of the run")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    try:
        _generate(arguments)
    except BrokenPipeError:  # the reader has seen enough: what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _generate(arguments: argparse.Namespace) -> None:
    runtime.configure()
    allowed = run_options.limits(arguments)
    try:
        sampling = SamplingSettings(
            arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed
        )
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 1)}") from error
    if arguments.tokens < 1:
        raise InputError(f"--tokens={arguments.tokens}: give a number from 1")
    try:
        arguments.prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError("--prompt is not text in UTF-8: give it as such") from error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know few characters
    saved = saved_run.open_run(arguments.run, arguments.step)
    _, vocabulary = run_options.find_vocabulary(saved, arguments.vocabulary)
    mix, params = run_options.load(saved, arguments.weights, allowed)
    error = f", kernel error {mix.kernel_error:.2%}" if mix.kernel_error else ""
    print(f"{weight_names.describe(mix)} of {saved.run_dir}{error}", file=sys.stderr)
    (prompt,) = vocabulary.encode([arguments.prompt])
    # A single device: one text is too little to split.
    made = generate_tokens(
        saved.config.model,
        jax.device_put(params),
        prompt,
        sampling,
        arguments.tokens,
        vocabulary.eos_id,
    )
    decoder = vocabulary.incremental_decoder()
    for token in prompt:
        print(decoder.decode(int(token)), end="")
    for token in made:
        print(decoder.decode(token), end="", flush=True)
    print(decoder.flush(), flush=True)
