"""Average models, such as checkpoints of any trainer.

The models are directories of safetensors that have tensors of the same names, shapes and types, of
any architecture. The average is a directory like the first of them. Its `provenance.json` has the
digests and the coefficients of the models.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from anytime_jax import __version__
from anytime_jax.averaging import is_label, parse_rule
from anytime_jax.checks import is_number, require
from anytime_jax.commands import argument_parser
from anytime_jax.commands.rich_console import open_console
from anytime_jax.formats import model_average, model_reader, model_writer
from anytime_jax.formatting import format_bytes, format_error
from anytime_jax.storage.atomic import remove_unfinished
from anytime_jax.storage.paths import absolute_path
from anytime_jax.weights.post_hoc_averages import DecayedRate, sum_checkpoints

EXAMPLES = (
    "--inputs step-800 step-900 step-1000 --steps 800 900 1000 --kernel=f25 --output=average",
    "--inputs seed-1 seed-2 --kernel=uniform --output=soup",
)

_OF_TOKENIZER = ("vocab_size", "vocabulary", "text_begins")  # what an export has in its provenance


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "--inputs",
        type=Path,
        nargs="+",
        required=True,
        metavar="DIR",
        help="models, in the order of their steps",
    )
    kernel = parser.add_mutually_exclusive_group(required=True)
    kernel.add_argument(
        "--kernel",
        help="uniform, 1-sqrt (checkpoints at equal distances, as if the rate had decayed), or an "
        "average such as f25, in which a checkpoint stands for the updates since the one before",
    )
    kernel.add_argument(
        "--coefficients",
        type=float,
        nargs="+",
        metavar="X",
        help="of the models; they are divided by their sum",
    )
    add(
        "--steps",
        type=argument_parser.count,
        nargs="+",
        metavar="STEP",
        help="updates before each checkpoint, for an average such as f25",
    )
    argument_parser.add_output(parser, "average")


def run(arguments: argparse.Namespace) -> int:
    """Writes the average."""
    coefficients, kernel_error = _weigh(arguments)
    outside = absolute_path(arguments.output) not in map(absolute_path, arguments.inputs)
    require(outside, "--output", arguments.output, "another directory than those of --inputs")
    models = model_average.open_models(arguments.inputs)
    digests = [model_reader.check_digests(directory) for directory in models]
    console = open_console()
    for path in remove_unfinished(arguments.output):
        console.print(f"removed {path}, left by an average that was killed")
    with model_writer.create_directory(arguments.output, arguments.overwrite) as part:
        for coefficient, directory in zip(coefficients, models, strict=True):
            console.print(f"{coefficient:+.4g} {directory}")
        if error := format_error(kernel_error or 0.0):
            console.print(f"kernel error {error}")
        model_average.write_average(part, models, coefficients)
        steps = arguments.steps or [None] * len(models)
        about = {
            "written_by": f"anytime_jax {__version__}",
            "weights": arguments.kernel or "coefficients",
            "kernel_error": kernel_error,
            "inputs": [
                {
                    "directory": str(directory),
                    "weights_sha256": digest,
                    "step": step,
                    "coefficient": coefficient,
                }
                for directory, digest, step, coefficient in zip(
                    models, digests, steps, coefficients, strict=True
                )
            ],
        }
        recorded = model_reader.read_provenance(arguments.inputs[0])
        about |= {name: recorded[name] for name in _OF_TOKENIZER if name in recorded}
        model_writer.write_provenance(part, about)
        size = format_bytes(sum(file.stat().st_size for file in model_reader.weight_files(part)))
    console.print(f"wrote {arguments.output} ({size})")
    return 0


def _weigh(arguments: argparse.Namespace) -> tuple[Sequence[float], float | None]:
    """Returns the coefficients of the models, and the kernel error of an average of updates.

    A rate that decays as "1-sqrt" over n checkpoints has the factor w_i = 1 - sqrt(i/n) in the
    updates before checkpoint i = 0 ... n - 1, and w_n = 0. The sum of the checkpoints with the
    coefficients w_i - w_(i+1) is what these updates give with such a rate.

    Source: Tian et al. (2025), "WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging";
    Megatron-LM has the same coefficients ("minus-sqrt").
    """
    count, kernel, given = len(arguments.inputs), arguments.kernel, arguments.coefficients
    require(count > 1, "--inputs", count, "several models")
    if given or kernel in ("uniform", "1-sqrt"):
        argument_parser.refuse(arguments, ["--steps"], "with this choice of coefficients")
    if given:
        require(len(given) == count, "--coefficients", given, f"{count} numbers, one of each model")
        total = sum(given)
        require(is_number(total) and total > 0, "--coefficients", given, "of a sum above 0")
        return [x / total for x in given], None
    if kernel == "uniform":
        return [1 / count] * count, None
    if kernel == "1-sqrt":
        return DecayedRate(1.0, kernel).kernel(count)[1:].tolist(), None
    require(is_label(kernel), "--kernel", kernel, "uniform, 1-sqrt or an average such as f25")
    steps = arguments.steps or []
    require(len(steps) == count, "--steps", steps, f"{count} numbers, one of each model")
    weighted_sum = sum_checkpoints(parse_rule(kernel), steps)
    return weighted_sum.coefficients, weighted_sum.kernel_error
