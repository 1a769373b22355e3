"""Turn text into a dataset of token windows.

After a kill or Ctrl-C the same command resumes; for a finished dataset it does nothing. --share=I/N
does one of N shares of the work, which can run at the same time; the same command without it does
the rest. --verify reads the dataset at --output whole and compares its checksums.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence

from anytime_jax.checks import require
from anytime_jax.commands import command_line
from anytime_jax.commands.command_line import positive_int
from anytime_jax.config import fields
from anytime_jax.config.kinds import EVERY_PACKAGE, Kinds, explain_errors
from anytime_jax.corpus.installed_python import BuiltinSource
from anytime_jax.corpus.preparation import RemainingWork, prepare_share
from anytime_jax.corpus.preparation_lock import Share
from anytime_jax.corpus.sources import FileSource, Source
from anytime_jax.corpus.tfds_source import TfdsSource
from anytime_jax.corpus.validation_split import default_fraction
from anytime_jax.corpus.verification import verify_dataset
from anytime_jax.corpus.worker_pool import Progress, ProgressCallback
from anytime_jax.data.dataset_info import METADATA_NAME, DatasetInfo
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import count_noun
from anytime_jax.storage.paths import is_address

EXAMPLES = (
    "--source=folder --input=my_text --train-vocabulary=8000 --length=512 --output=data/mine",
    "--verify --output=data/mine",
)

_DEFAULT_LENGTH = 1024
_BUILTIN_MEGABYTES = 12.0
_FEW_WINDOWS = 8
_LINE_SECONDS = 5.0  # seconds between lines of progress in a log
# Options that only some sources have.
_SOURCES = {
    "input": ("json", "folder", "tfds"),
    "validation_input": ("json", "folder"),
    "text_field": ("json", "folder", "tfds"),
    "split": ("tfds",),
    "validation_split": ("tfds",),
    "megabytes": ("builtin",),
}
_SOURCE_OPTIONS = ("validation_fraction", *_SOURCES)
_OWN_KINDS = ("builtin", "json", "folder", "tfds")
_CLASSES = Kinds("anytime_jax.corpus.sources", "parts", setting="--source")
_PREPARATION_OPTIONS = (
    "source",
    "option",
    "vocabulary",
    "train_vocabulary",
    "length",
    "share",
    *_SOURCE_OPTIONS,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "--source",
        metavar="KIND",
        help="kind of the text: builtin, json, folder, tfds, or a class of your own as "
        "package.module:Class (docs/extend.md)",
    )
    add(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="field of a source of your own; may be repeated",
    )
    add("--input", metavar="PATH", help="file, folder or quoted glob; for tfds the data directory")
    add("--validation-input", metavar="PATH", help="validation text of its own (json, folder)")
    add(
        "--validation-fraction",
        type=float,
        metavar="X",
        help="fraction of the documents to validate on (default: 0.01, and more of up to 2,000 "
        "documents; 0.05 for builtin)",
    )
    add("--text-field", metavar="NAME", help="key or feature of the text (default: text)")
    add("--split", help="tfds: split to train on (default: train)")
    add("--validation-split", help="tfds: split to validate on (default: validation)")
    add(
        "--megabytes",
        type=float,
        metavar="X",
        help=f"builtin: 10^6 bytes of text (default: {_BUILTIN_MEGABYTES:g})",
    )
    add(
        "--vocabulary",
        metavar="FILE",
        help="SentencePiece model, tokenizer.json, or the directory of a model or dataset",
    )
    add("--train-vocabulary", metavar="SIZE", type=int, help="pieces of a vocabulary to train")
    add("--length", type=int, help=f"tokens of a window (default: {_DEFAULT_LENGTH})")
    add("--output", required=True, type=command_line.path, metavar="DIR", help="dataset directory")
    add("--workers", type=positive_int, metavar="N", help="processes (default: one per core)")
    add("--share", metavar="I/N", help="do share I of N, from 0 to N - 1 (see docs/data.md)")
    add("--verify", action="store_true", help="verify the dataset at --output")


def run(arguments: argparse.Namespace) -> int:
    """Prepares or verifies a dataset; returns the exit status."""
    if arguments.verify:
        for option in _PREPARATION_OPTIONS:
            if getattr(arguments, option) is not None:
                raise InputError(f"{_flag(option)} has no meaning for --verify: leave it out")
        with _progress_display() as progress:
            info = verify_dataset(arguments.output, arguments.workers, progress)
        print(f"{_summary(info)}\nverified: {info.path}, fingerprint {info.fingerprint}")
        return 0
    if arguments.source is None:
        raise InputError(f"--source is missing: give one of {', '.join(_OWN_KINDS)}")
    if (arguments.vocabulary is None) == (arguments.train_vocabulary is None):
        raise InputError("give one of --vocabulary and --train-vocabulary")
    try:
        print(_prepare(arguments))
    except KeyboardInterrupt:
        print("\nthe same command resumes the preparation", file=sys.stderr)
        raise
    except (RunError, OSError) as error:
        is_unnamed = isinstance(error, OSError) and error.filename is None  # a write failed
        place = f"--output={arguments.output}: " if is_unnamed else ""
        raise RunError(f"{place}{error}; the same command resumes the preparation") from error
    return 0


def _prepare(arguments: argparse.Namespace) -> str:
    """Prepares the dataset or a share of it, and returns a summary."""
    start = time.monotonic()
    existed = (arguments.output / METADATA_NAME).is_file()
    share = None if arguments.share is None else Share.parse(arguments.share)
    vocabulary = arguments.vocabulary
    if vocabulary is None:
        vocabulary = arguments.train_vocabulary
    length = _DEFAULT_LENGTH if arguments.length is None else arguments.length
    source, output, workers = _source(arguments), arguments.output, arguments.workers
    own_errors = explain_errors([type(source).__module__], but=(InputError, RunError, OSError))
    with own_errors, _progress_display() as progress:
        info = prepare_share(source, output, share, length, vocabulary, workers, progress)
    if isinstance(info, RemainingWork):
        rest = f"{info.parts_left:,} of {info.parts:,} are left to others"
        return (
            f"share {share}: its parts are tokenized, "
            f"{rest if info.parts_left else 'and so are all others'}; the same command without "
            "--share completes the dataset"
        )
    state = "already prepared" if existed else f"ready in {time.monotonic() - start:.1f} s"
    program = arguments.program.rpartition(" ")[0]
    lines = [_summary(info), f"{state}: {info.path}", *training_notes(info, program)]
    return "\n".join(lines)


def training_notes(info: DatasetInfo, program: str) -> list[str]:
    """Returns warnings about splits too small to train on, and the `train` command to run next."""
    notes = [
        f"note: {name} has {count_noun(split.windows, 'window')}, {problem}; give more text or a "
        "smaller --length"
        for name, problem, least in (
            ("train", "few for a batch, so that updates repeat some", 32),
            ("validation", "too few for a steady loss", _FEW_WINDOWS),
        )
        if (split := info.splits[name]).windows < least
    ]
    path = str(info.path) if is_address(info.path) else os.path.relpath(info.path)
    config = shlex.quote(f"own_text:{info.path if path.startswith('..') else path}")
    return [*notes, "train a small model on it:", f"  {program} train --config={config}"]


def _source(arguments: argparse.Namespace) -> Source:
    kind = arguments.source
    is_own = kind in _OWN_KINDS
    for option, kinds in _SOURCES.items():
        if getattr(arguments, option) is not None and kind not in kinds:
            advice = "leave it out" if is_own else "give --option=NAME=VALUE"
            raise InputError(
                f"{_flag(option)} has no meaning for --source={kind}, only for "
                f"{', '.join(kinds)}: {advice}"
            )
    if not is_own:
        if arguments.validation_fraction is not None:
            raise InputError(
                f"--validation-fraction has no meaning for --source={kind}: give "
                "--option=NAME=VALUE"
            )
        return _make_source(kind, arguments.option or ())
    if arguments.option:
        raise InputError(
            f"--option={arguments.option[0]} has no meaning for --source={kind}, only for a class "
            "of your own: leave it out"
        )
    separate = "validation_split" if kind == "tfds" else "validation_input"
    if arguments.validation_fraction is not None and getattr(arguments, separate) is not None:
        raise InputError(f"give one of --validation-fraction and {_flag(separate)}")
    values = {name: getattr(arguments, name) for name in _SOURCE_OPTIONS}
    options = {name: value for name, value in values.items() if value is not None}
    if kind == "builtin":
        return BuiltinSource(**{"megabytes": _BUILTIN_MEGABYTES, **options})
    if "input" not in options:
        raise InputError(f"--source={kind} needs --input, the text to read")
    if kind == "tfds":
        if "validation_fraction" in options:
            options["validation_split"] = None
        return TfdsSource(**options)
    source = FileSource(kind, **options)
    if "validation_fraction" in options or source.validation_input is not None:
        return source
    fraction = default_fraction(source.parts(), source.validation_fraction)
    return dataclasses.replace(source, validation_fraction=fraction)


def _make_source(name: str, options: Sequence[str]) -> Source:
    """Returns a source of a class that is named on the command line, and so may be imported."""
    try:
        allowed = f"one of {', '.join(_OWN_KINDS)}, or a class as package.module:Class"
        require(":" in name, "--source", name, allowed)
        cls = _CLASSES.find(name, EVERY_PACKAGE)
        types, values = fields.types_of(cls), {}
        for option in options:
            field, equals, text = option.partition("=")
            allowed = f"NAME=VALUE with a NAME of {', '.join(types)}"
            require(equals and field in types, "--option", option, allowed)
            values[field] = fields.parse(types[field], f"--option={field}", text)
        for field in dataclasses.fields(cls):
            is_optional = field.default is not field.default_factory or field.name not in types
            if not (is_optional or field.name in values):
                raise InputError(f"--source={name} needs --option={field.name}=VALUE")
        return cls(**values)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _summary(info: DatasetInfo) -> str:
    return "\n".join(
        f"{split}: {count_noun(counts.documents, 'document')}, {counts.tokens:,} tokens, "
        f"{count_noun(counts.windows, 'window')} of {info.length} + 1"
        for split, counts in info.splits.items()
    )


@contextlib.contextmanager
def _progress_display() -> Iterator[ProgressCallback]:
    """Yields a function that shows progress: as a bar on a terminal, as lines in a log."""
    if not sys.stderr.isatty():
        yield _print_progress()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TextColumn

    tokens = TextColumn("{task.fields[tokens]:,} tokens")
    with Bars(*Bars.get_default_columns(), tokens, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(progress: Progress) -> None:
            stage, done, total, tokens = progress
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, tokens=0)
            bars.update(tasks[stage], completed=done, total=total, tokens=tokens)

        yield show


def _print_progress() -> ProgressCallback:
    last = -_LINE_SECONDS

    def show(progress: Progress) -> None:
        nonlocal last
        stage, done, total, tokens = progress
        if time.monotonic() - last >= _LINE_SECONDS or done in (0, total):
            last = time.monotonic()
            print(f"{stage}: {done}/{total} done, {tokens:,} tokens", file=sys.stderr, flush=True)

    return show
