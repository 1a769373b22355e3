"""Export weights of a run for other software.

Models of the paper's shape are written for AI2's `ai2-olmo`, models of the shapes of OLMo-2, Llama
and Qwen for `transformers`: safetensors, configuration, tokenizer, and the logits of a fixed
prompt. --verify loads the directory with that library, in the interpreter --verify-python, and
compares logits and tokens.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax import __version__
from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.rich_console import open_console
from anytime_jax.corpus import companion_files
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import VOCABULARY_NAME, DatasetInfo, load_dataset
from anytime_jax.data.token_arrays import TokenReader
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError, RunError, needs_extra
from anytime_jax.formats import model_reader, model_writer, verifiers
from anytime_jax.formats.tokenizer_writer import write_tokenizer
from anytime_jax.formatting import format_bytes, format_error
from anytime_jax.storage.atomic import remove_unfinished
from anytime_jax.storage.json_files import as_type
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun

EXAMPLES = ("--run=runs/quickstart --weights=f25 --output=quickstart-f25",)

_VERIFY_PYTHON = "--verify-python"
_VERIFIERS = Path(verifiers.__file__).parent
_PROBE_SECONDS = 60  # to start an interpreter, perhaps from a slow network file system
_VERIFY_SECONDS = 3600  # to load a model
_MAX_DIFFERENCE = 1e-4  # largest difference of a logit, in float32
# Texts of which --verify compares the tokens: each of these between each of those.
_SCRIPTS = (
    "def mean(xs):\n    return sum(xs) / len(xs)  # any weights, at any f: café, 3.14",
    "Ünïcödé  naïve Åland",
    "Ελληνικά και русский",
    "עברית العربية",
    "हिन्दी ไทย",
    "漢字かな한국어",
    "👩‍👩‍👧 😀 ½ ﬁ",
)
_EDGES = ("", " ", "  ", "\t", "\n", "\n\n", "\r\n", " \n\t ")
_DOCUMENT_TOKENS = 20_000  # of the data, whose documents are compared too
_MOST_DOCUMENTS = 32


@dataclasses.dataclass(frozen=True)
class _Report:
    """What a verifier prints.

    Attributes:
      logits: largest difference of a logit, by the way of loading.
      ids: tokens of each text; empty if the library does not read the tokenizer.
      around: tokens of "a", as the tokenizer gives them by default and without special tokens.
    """

    logits: Mapping[str, float]
    ids: tuple[tuple[int, ...], ...] = ()
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_weights(parser)
    run_options.add_vocabulary(parser)
    argument_parser.add_output(parser, "export")
    add = parser.add_argument
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
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
    vocabulary_path, vocabulary = saved_run.find_vocabulary(saved, arguments.vocabulary)
    of_model, of_data = _model_files(saved), companion_files.of_vocabulary(vocabulary_path)
    dataset = _find_data(saved) if arguments.verify else None
    begin: tuple[int, ...] | None = None
    with contextlib.suppress(InputError):  # a run of an older version whose data are gone
        begin = saved.delimiters.begin
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
        token_ids = companion_files.token_ids(of_model, vocabulary.eos_id)
        model_writer.write_model(part, model_format, config, layers, token_ids, arguments.dtype)
        companions = companion_files.choose(of_model, of_data, vocabulary)
        write_tokenizer(vocabulary, part, config.length, companions)
        (part / VOCABULARY_NAME).write_bytes(vocabulary.model)
        about = _provenance(saved, arguments, weighted_sum, vocabulary, begin)
        model_writer.write_provenance(part, about)
        files = model_reader.weight_files(part)
        size = format_bytes(sum(file.stat().st_size for file in files))
        if arguments.verify:
            python, texts = arguments.verify_python, _texts(vocabulary, dataset)
            for line in verify(part, model_format.name, python, texts, begin):
                console.print(line)
    about = f"{size}, {model_format.name}, {arguments.dtype}"
    console.print(f"wrote {arguments.output} ({about}): {model_reader.describe_loader(config)}")
    return 0


def verify(
    model: Path,
    format_name: str,
    python: str,
    texts: Mapping[str, tuple[int, ...]],
    begin: tuple[int, ...] | None = None,
) -> list[str]:
    """Compares an exported model's logits and tokens with its library's; returns a report.

    `texts` has the tokens of texts, by text. `begin` has those that begin the documents of the
    data, None if unknown.

    Raises:
      InputError: if the interpreter `python` does not run or lacks the library.
      RunError: if the model does not load or differs.
    """
    library = model_reader.FORMATS[format_name].library
    script = str(_VERIFIERS / f"load_{library.replace('-', '_')}.py")
    arguments = (script, str(model))
    result = _run_python(python, *arguments, seconds=_VERIFY_SECONDS, text=json.dumps([*texts]))
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
        report = as_type(_Report, json.loads(result.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError, KeyError) as error:
        reason = "it did not report a comparison: give a Python interpreter"
        raise InputError(reason, _VERIFY_PYTHON, python) from error
    for name, difference in report.logits.items():
        if not difference <= _MAX_DIFFERENCE:  # rejects NaN too
            raise RunError(
                f"{name} gives other logits: they differ by {difference:.2g}, allowed is "
                f"{_MAX_DIFFERENCE:g}"
            )
    pairs = zip(texts.items(), report.ids, strict=False)
    if differ := [text for (text, ours), theirs in pairs if ours != theirs]:
        # An error's line keeps no runs of spaces.
        shown = ", ".join(repr(text[:40]).replace(" ", "␣") for text in differ[:3])
        raise RunError(
            f"{library} gives other tokens for {len(differ)} of {len(texts)} texts: {shown}"
        )
    lines = [f"verified: {name}: {x:.1e} between logits" for name, x in report.logits.items()]
    if report.ids:
        lines.append(f"verified: the tokens of {len(report.ids)} texts")
    if report.ids and begin not in (None, theirs := _begin(*report.around)):
        lines.append(
            f"note: the tokenizer puts {_format_begin(theirs)} before a text, and the documents of "
            f"the data begin with {_format_begin(begin)}"
        )
    return lines


def _begin(around: Sequence[int], plain: Sequence[int]) -> tuple[int, ...]:
    """Returns the tokens before a text, given its tokens with special tokens and without."""
    around, plain = tuple(around), tuple(plain)
    starts = (i for i in range(len(around)) if around[i : i + len(plain)] == plain)
    return around[: next(starts, 0)]


def _format_begin(ids: Sequence[int] | None) -> str:
    return f"token {', '.join(map(str, ids))}" if ids else "no token"


def _texts(vocabulary: Vocabulary, dataset: DatasetInfo | None) -> dict[str, tuple[int, ...]]:
    """Returns the tokens of texts, by text: odd ones, and documents of a run's data."""
    texts = [before + text + after for text in _SCRIPTS for before in _EDGES for after in _EDGES]
    if dataset is not None:
        count = min(_DOCUMENT_TOKENS, dataset.splits["validation"].tokens)
        (tokens,) = TokenReader([dataset], "validation").read([0], count)
        ends = np.flatnonzero(tokens == dataset.eos_id)[:_MOST_DOCUMENTS]
        texts += [vocabulary.decode(document) for document in np.split(tokens, ends)]
    texts = list(dict.fromkeys(texts))
    return {x: tuple(y.tolist()) for x, y in zip(texts, vocabulary.encode(texts), strict=True)}


def _find_data(saved: SavedRun) -> DatasetInfo | None:
    """Returns the first source of a run's data, None if it is gone."""
    with contextlib.suppress(InputError):
        if (dataset := load_dataset(saved.data_path)).vocabulary_sha256 == saved.vocabulary:
            return dataset
    return None


def _check_python(python: str) -> None:
    """Raises an InputError if an interpreter does not run."""
    if _run_python(python, "-c", "", seconds=_PROBE_SECONDS).returncode:
        reason = "it is not a Python interpreter that works: give the path of one"
        raise InputError(reason, _VERIFY_PYTHON, python)


def _run_python(
    python: str, *arguments: str, seconds: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs an interpreter with a text as its input.

    Raises an InputError if it cannot start, or does not end in time.
    """
    try:
        process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.PIPE,
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
        output, errors = process.communicate(text, timeout=seconds)
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


def _model_files(saved: SavedRun) -> dict[str, bytes]:
    """Returns the files of the model that a run has started from; none if they are unknown.

    A run of an older version has not kept them: the model's directory may still have them.
    """
    files, initial = companion_files.load(saved.run_dir), Path(saved.config.initial_weights)
    if files or not saved.config.initial_weights:
        return files
    with contextlib.suppress(InputError, OSError):
        if model_reader.weights_digest(initial) == saved.run_file.identity.get("initial_weights"):
            return companion_files.collect(initial)
    return {}


def _provenance(
    saved: SavedRun,
    arguments: argparse.Namespace,
    weighted_sum: WeightedSum,
    vocabulary: Vocabulary,
    begin: tuple[int, ...] | None,
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
        "text_begins": {"tokenizer": vocabulary.begin, "data": begin},
        "config": saved.config.to_dict(),
    }
