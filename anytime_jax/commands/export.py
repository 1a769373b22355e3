"""Export weights of a run for other software.

Models of the paper's shape are written for AI2's `ai2-olmo`, models of the shapes of OLMo-2, Llama
and Qwen for `transformers`: safetensors, configuration, tokenizer, and the logits of a fixed
prompt. --verify loads the directory with that library, in the interpreter --verify-python, and
compares logits and tokens.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from anytime_jax import __version__
from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.rich_console import open_console
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError, RunError, needs_extra
from anytime_jax.formats import model_reader, model_writer, verifiers
from anytime_jax.formats.tokenizer_writer import write_tokenizer
from anytime_jax.formatting import format_bytes, format_error
from anytime_jax.storage.atomic import remove_unfinished
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = ("--run=runs/quickstart --weights=f25 --output=quickstart-f25",)

_VERIFY_PYTHON = "--verify-python"
_VERIFIERS = Path(verifiers.__file__).parent
_PROBE_SECONDS = 60  # to start an interpreter, perhaps from a slow network file system
_VERIFY_SECONDS = 3600  # to load a model
_MAX_DIFFERENCE = 1e-4  # largest difference of a logit, in float32
_PROMPT = "def mean(xs):\n    return sum(xs) / len(xs)  # any weights, at any f: café, 3.14\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_weights(parser)
    run_options.add_vocabulary(parser)
    add = parser.add_argument
    add(
        "--output",
        type=argument_parser.path,
        required=True,
        metavar="DIR",
        help="directory to create",
    )
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    add("--overwrite", action="store_true", help="replace an earlier export at --output")
    add("--verify", action="store_true", help="load the export with its library and compare")
    add(
        _VERIFY_PYTHON,
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter with that library (default: this one)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the directory and verifies it."""
    if not arguments.verify:
        argument_parser.refuse(arguments, [_VERIFY_PYTHON], "without --verify")
    limits = run_options.sum_limits(arguments)
    jax_settings.find_devices()
    with needs_extra("export"):
        import safetensors.numpy  # noqa: F401
        import tokenizers  # noqa: F401
        import yaml  # noqa: F401
    if arguments.verify:
        _check_python(arguments.verify_python)
    saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
    config = saved.model
    model_format = model_reader.find_format(config)
    _, vocabulary = saved_run.find_vocabulary(saved, arguments.vocabulary)
    weighted_sum = weight_names.parse(saved, arguments.weights, limits)
    layers = saved_run.read_layers(saved, weighted_sum)
    console = open_console()
    for path in remove_unfinished(arguments.output):
        console.print(f"removed {path}, left by an export that was killed")
    with model_writer.create_directory(arguments.output, arguments.overwrite) as part:
        console.print(f"{arguments.weights} of {saved.title}")
        if len(weighted_sum.parts) > 1:
            console.print(f"mixed: {weight_names.format_sum(weighted_sum)}")
        if error := format_error(weighted_sum.kernel_error):
            console.print(f"kernel error {error}")
        model_writer.write_model(
            part, model_format, config, layers, vocabulary.eos_id, arguments.dtype
        )
        write_tokenizer(vocabulary, part, config.length)
        (part / VOCABULARY_NAME).write_bytes(vocabulary.model)
        about = _provenance(saved, arguments, weighted_sum, vocabulary)
        model_writer.write_provenance(part, about)
        files = model_reader.weight_files(part)
        size = format_bytes(sum(file.stat().st_size for file in files))
        if arguments.verify:
            for line in verify(part, model_format.name, arguments.verify_python):
                console.print(line)
    about = f"{size}, {model_format.name}, {arguments.dtype}"
    console.print(f"wrote {arguments.output} ({about}): {model_reader.describe_loader(config)}")
    return 0


def verify(model: Path, format_name: str, python: str) -> list[str]:
    """Compares an exported model's logits and tokens with its library's; returns a report.

    Raises:
      InputError: if the interpreter `python` does not run or lacks the library.
      RunError: if the model does not load or differs.
    """
    library = model_reader.FORMATS[format_name].library
    script = str(_VERIFIERS / f"load_{library.replace('-', '_')}.py")
    result = _run_python(python, script, str(model), seconds=_VERIFY_SECONDS)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        if last.startswith("ModuleNotFoundError"):
            raise InputError(
                f"it lacks a library ({last}): give an interpreter that has {library}, torch and "
                "safetensors",
                _VERIFY_PYTHON,
                python,
            )
        raise RunError(f"{library} does not load the model: {last}")
    try:
        report = json.loads(result.stdout.splitlines()[-1])
        logits = {str(name): float(x) for name, x in dict(report["logits"]).items()}
        same_tokens = bool(report["same_tokens"])
    except (IndexError, ValueError, TypeError, KeyError) as error:
        reason = "it did not report a comparison: give a Python interpreter"
        raise InputError(reason, _VERIFY_PYTHON, python) from error
    for name, difference in logits.items():
        if not difference <= _MAX_DIFFERENCE:  # rejects NaN too
            raise RunError(
                f"{name} gives other logits: they differ by {difference:.2g}, allowed is "
                f"{_MAX_DIFFERENCE:g}"
            )
    if not same_tokens:
        raise RunError(f"{library} gives other tokens for {_PROMPT!r}")
    return [f"verified: {name}: {x:.1e} between logits" for name, x in logits.items()]


def _check_python(python: str) -> None:
    """Raises an InputError if an interpreter does not run."""
    if _run_python(python, "-c", "", seconds=_PROBE_SECONDS).returncode:
        reason = "it is not a Python interpreter that works: give the path of one"
        raise InputError(reason, _VERIFY_PYTHON, python)


def _run_python(python: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs an interpreter; raises an InputError if it cannot start, or does not end in time."""
    try:
        process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            process_group=0,  # kills its children too, which may hold the pipes open
        )
    except OSError as error:
        reason = f"it is not an interpreter ({error.strerror}): give the path of one"
        raise InputError(reason, _VERIFY_PYTHON, python) from error
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise InputError(
                f"it did not answer within {seconds:g} s: give the path of a Python interpreter, "
                "or leave out --verify",
                _VERIFY_PYTHON,
                python,
            ) from error
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def _provenance(
    saved: SavedRun,
    arguments: argparse.Namespace,
    weighted_sum: WeightedSum,
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    parts = [part.name for part in weighted_sum.parts]
    return {
        "written_by": f"anytime_jax {__version__}",
        "run": saved.config.name,
        "step": saved.step,
        "tokens": saved.tokens,
        "weights": arguments.weights,
        "mix": dict(zip(parts, weighted_sum.coefficients, strict=True)),
        "kernel_error": weighted_sum.kernel_error,
        "vocab_size": vocabulary.size,
        "vocabulary": saved.vocabulary,
        "fingerprint": saved.fingerprint,
        "prompt": {"text": _PROMPT, "ids": vocabulary.encode([_PROMPT])[0].tolist()},
        "config": saved.config.to_dict(),
    }
