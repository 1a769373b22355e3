"""Export weights of a run for other software.

Models of the paper's shape are written as AI2's `ai2-olmo` has them (--format=olmo), models of the
OLMo-2 shape as `transformers` has them (--format=olmo2): safetensors, configuration, tokenizer, and
the logits of a fixed prompt as they are computed here. --verify loads the directory with that
library, in the interpreter --verify-python, and compares.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from anytime_jax import __version__
from anytime_jax.commands import run_options
from anytime_jax.commands.console import open_console
from anytime_jax.data.dataset import VOCABULARY_NAME
from anytime_jax.data.vocabulary import Vocabulary
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats import model_reader, model_writer, verifiers
from anytime_jax.formats.tokenizer import write_tokenizer
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc import Mixture
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = ("--run=runs/quickstart --weights=f25 --output=quickstart-f25",)

VERIFIERS = Path(verifiers.__file__).parent
LARGEST_DIFFERENCE = 1e-4  # of any logit, in float32
_PROMPT = "def mean(xs):\n    return sum(xs) / len(xs)  # any weights, at any f: café, 3.14\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_options(parser)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="DIR", help="directory to write")
    add(
        "--format",
        choices=sorted(model_reader.FORMATS),
        help="by default that of the model's shape",
    )
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    add("--vocabulary", type=Path, metavar="FILE", help="if it is not with the data of the run")
    add("--overwrite", action="store_true", help="take the place of an earlier export")
    add("--verify", action="store_true", help="load it with the target library and compare")
    add(
        "--verify-python",
        default=sys.executable,
        metavar="PYTHON",
        help="an interpreter that has that library (default: this one)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    allowed = run_options.limits(arguments)
    model_writer.check_output(arguments.output, arguments.overwrite)
    if arguments.verify and shutil.which(arguments.verify_python) is None:
        raise InputError(
            f"--verify-python={arguments.verify_python} is no interpreter: give its path"
        )
    saved = saved_run.open_run(arguments.run, arguments.step)
    shape = saved.config.model
    form = model_reader.FORMATS[arguments.format or shape.architecture]
    form.check(shape)
    file, vocabulary = run_options.find_vocabulary(saved, arguments.vocabulary)
    mix, params = run_options.load(saved, arguments.weights, allowed)
    console = open_console()
    console.print(
        f"{arguments.weights} of {saved.run_dir} at step {saved.step:,} "
        f"({format_count(saved.tokens)} tokens)",
        markup=False,
    )
    if len(mix.parts) > 1:
        console.print(f"mixed: {weight_names.describe(mix)}", markup=False)
    if mix.kernel_error:
        console.print(f"kernel error {mix.kernel_error:.2%}")
    about = _about(saved, arguments, mix, vocabulary)
    with model_writer.create_directory(arguments.output, arguments.overwrite) as part:
        model_writer.write_model(part, form, shape, params, vocabulary.eos_id, arguments.dtype)
        write_tokenizer(file, part, shape.length)
        (part / VOCABULARY_NAME).write_bytes(vocabulary.model)
        (part / model_reader.PROVENANCE).write_text(json.dumps(about, indent=1), encoding="utf-8")
        written = (part / model_reader.WEIGHTS).stat().st_size
        if arguments.verify:
            for line in verify(part, form.name, arguments.verify_python):
                console.print(line, markup=False)
    console.print(
        f"wrote {arguments.output} ({format_bytes(written)}, {form.name}, {arguments.dtype})",
        markup=False,
    )
    return 0


def verify(model: Path, form: str, python: str) -> list[str]:
    """Loads an exported model with the library it is for, and compares its logits and its tokens.

    Args:
      model: its directory.
      form: the name of its format.
      python: an interpreter that has the library.

    Returns:
      lines that say what was compared.

    Raises:
      InputError: if the interpreter lacks the library, or is none.
      RunError: if the model does not load, or is not alike.
    """
    library = model_reader.FORMATS[form].library
    command = [python, str(VERIFIERS / f"{form}.py"), str(model)]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"--verify-python={python} is no interpreter ({error.strerror}): give its path"
        ) from error
    last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    if done.returncode:
        if last.startswith("ModuleNotFoundError"):
            raise InputError(
                f"--verify-python={python} lacks a library ({last}): give an interpreter that has "
                f"{library}, torch and safetensors"
            )
        raise RunError(f"{library} does not load the model: {last}")
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        logits = {str(name): float(x) for name, x in dict(found["logits"]).items()}
        same_tokens = bool(found["same_tokens"])
    except (IndexError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"--verify-python={python} does not say how the model compares, so it is no Python "
            "interpreter: give the path of one"
        ) from error
    for name, difference in logits.items():
        if not difference <= LARGEST_DIFFERENCE:
            raise RunError(
                f"{name} gives other logits: they differ by {difference:.2g}, more than "
                f"{LARGEST_DIFFERENCE:g}"
            )
    if not same_tokens:
        raise RunError(f"{library} gives other tokens for {_PROMPT!r}")
    return [f"verified: {name}: {x:.1e} between logits" for name, x in logits.items()]


def _about(
    saved: SavedRun, arguments: argparse.Namespace, mix: Mixture, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Where the weights come from."""
    parts = {
        part.name: coefficient
        for part, coefficient in zip(mix.parts, mix.coefficients, strict=True)
    }
    return {
        "written_by": f"anytime_jax {__version__}",
        "run": saved.config.name,
        "step": saved.step,
        "tokens": saved.tokens,
        "weights": arguments.weights,
        "mix": parts,
        "kernel_error": mix.kernel_error,
        "vocab_size": vocabulary.size,
        "vocabulary": saved.vocabulary,
        "fingerprint": saved.fingerprint,
        "prompt": {"text": _PROMPT, "ids": vocabulary.encode([_PROMPT])[0].tolist()},
        "config": saved.config.to_dict(),
    }
