"""Turn text into a dataset of token windows.

After a kill or Ctrl-C the same command resumes; for a finished dataset it does nothing.
--share=I/N does one of N shares of the work, beside the others; the same command without it does
what they leave. --verify reads the dataset at --output whole and compares its checksums.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.data.builtin_source import BuiltinSource
from anytime_jax.data.dataset import METADATA_NAME, DatasetInfo
from anytime_jax.data.preparation import RemainingWork, prepare, prepare_share
from anytime_jax.data.preparation_lock import Share
from anytime_jax.data.sources import FileSource, Source
from anytime_jax.data.tfds_source import TfdsSource
from anytime_jax.data.verification import verify_dataset
from anytime_jax.data.worker_pool import Progress, ProgressCallback
from anytime_jax.errors import InputError, RunError

EXAMPLES = (
    "--source=folder --input=my_text --train-vocabulary=8000 --length=512 --output=data/mine",
    "--verify --output=data/mine",
)

_LENGTH = 1024  # tokens a model sees of a window
# Options that only some sources understand: (flag's attribute, those sources).
_LIMITED_OPTIONS = {
    "input": ("json", "folder", "tfds"),
    "validation_input": ("json", "folder"),
    "text_field": ("json", "folder", "tfds"),
    "split": ("tfds",),
    "validation_split": ("tfds",),
    "megabytes": ("builtin",),
}
# Options that verifying does not understand.
_PREPARE_OPTIONS = (
    *("source", "vocabulary", "train_vocabulary", "length", "share", "validation_fraction"),
    *_LIMITED_OPTIONS,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("--source", choices=("builtin", "json", "folder", "tfds"))
    add("--input", help="file, folder or quoted glob; for tfds the prepared dataset's directory")
    add("--validation-input", help="validation text of its own (json, folder)")
    add(
        "--validation-fraction",
        type=float,
        help="or: set this share of the documents aside (default: 0.01; 0.05 for builtin)",
    )
    add("--text-field", help='key or feature that holds the text (default "text")')
    add("--split", help='tfds: split to train on (default "train")')
    add("--validation-split", help='tfds: split to validate on (default "validation")')
    add("--megabytes", type=float, help="builtin: how much text, in 10^6 bytes (default 12)")
    vocabulary = parser.add_mutually_exclusive_group()
    vocabulary.add_argument(
        "--vocabulary", metavar="PATH", help="a SentencePiece model, or a tokenizer.json"
    )
    vocabulary.add_argument(
        "--train-vocabulary", metavar="SIZE", type=int, help="or: train one of this many pieces"
    )
    add("--length", type=int, help="tokens a model sees of a window (default: 1024)")
    add("--output", required=True, type=Path, metavar="DIR", help="the dataset's directory")
    add("--workers", type=int, help="processes (default: one per core where they pay off)")
    add("--share", metavar="I/N", help="do share I of N, 0 to N - 1; see docs/data.md")
    add("--verify", action="store_true", help="read the dataset at --output, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Prepares a dataset, or verifies one; returns the exit status."""
    if arguments.verify:
        _check_verify(arguments)
        print(_verify(arguments))
        return 0
    if arguments.source is None or arguments.vocabulary == arguments.train_vocabulary:
        raise InputError("--source and one of --vocabulary and --train-vocabulary are required")
    try:
        print(_prepare(arguments))
    except KeyboardInterrupt:
        print("\nthe same command resumes the preparation", file=sys.stderr)
        raise
    except InputError:
        raise
    except (RunError, OSError) as error:
        raise RunError(f"{error}; the same command resumes the preparation") from error
    return 0


def _prepare(arguments: argparse.Namespace) -> str:
    """Prepares, and says what."""
    began = time.monotonic()
    was_there = (arguments.output / METADATA_NAME).is_file()
    share = None if arguments.share is None else Share.parse(arguments.share)
    trains = arguments.vocabulary is None
    work = prepare if share is None else functools.partial(prepare_share, share=share)
    with _progress_display() as progress:
        info = work(
            _source(arguments),
            arguments.output,
            length=_LENGTH if arguments.length is None else arguments.length,
            vocabulary=arguments.train_vocabulary if trains else arguments.vocabulary,
            workers=arguments.workers,
            progress=progress,
        )
    if isinstance(info, RemainingWork):
        return _describe_remaining(share, info)
    ready = "already prepared" if was_there else f"ready in {time.monotonic() - began:.1f} s"
    return f"{_summary(info)}\n{ready}: {info.path}"


def _describe_remaining(share: Share | None, work: RemainingWork) -> str:
    done = f"share {share}: its parts are tokenised"
    command = "the same command without --share"
    if work.parts_left:
        left = f"{work.parts_left:,} of {work.parts:,} are left to others"
        return f"{done}, {left}; {command} does what they leave"
    return f"{done}, and so are all others; {command} completes the dataset"


def _verify(arguments: argparse.Namespace) -> str:
    """Reads a prepared dataset whole, and says that it is what was written."""
    with _progress_display() as progress:
        info = verify_dataset(arguments.output, arguments.workers, progress)
    windows = sum(counts.windows for counts in info.splits.values())
    return (
        f"{info.path} is what was written: {windows:,} windows of {info.length} + 1, fingerprint "
        f"{info.fingerprint}"
    )


def _check_verify(arguments: argparse.Namespace) -> None:
    for option in _PREPARE_OPTIONS:
        if getattr(arguments, option) is not None:
            raise InputError(
                f"--{option.replace('_', '-')} means nothing to --verify; give --output alone"
            )


def _source(arguments: argparse.Namespace) -> Source:
    """The source that the options describe."""
    kind = arguments.source
    for option, kinds in _LIMITED_OPTIONS.items():
        if getattr(arguments, option) is not None and kind not in kinds:
            raise InputError(
                f"--{option.replace('_', '-')} means nothing to --source={kind}, only to "
                f"{', '.join(kinds)}; leave it out"
            )
    own = "validation_split" if kind == "tfds" else "validation_input"
    if arguments.validation_fraction is not None and getattr(arguments, own) is not None:
        raise InputError(
            f"--validation-fraction and --{own.replace('_', '-')} exclude each other; give one"
        )
    options = {
        "validation_fraction": arguments.validation_fraction,
        **{option: getattr(arguments, option) for option in _LIMITED_OPTIONS},
    }
    given = {option: value for option, value in options.items() if value is not None}
    if kind == "builtin":
        return BuiltinSource(**{"megabytes": 12.0, **given})
    if "input" not in given:
        raise InputError(f"--source={kind} needs --input; name the text to read")
    if kind == "tfds":
        if "validation_fraction" in given:
            given["validation_split"] = None
        return TfdsSource(**given)
    return FileSource(kind, **given)


def _summary(info: DatasetInfo) -> str:
    return "\n".join(
        f"{split}: {counts.documents:,} documents, {counts.tokens:,} tokens, "
        f"{counts.windows:,} windows of {info.length} + 1"
        for split, counts in info.splits.items()
    )


@contextlib.contextmanager
def _progress_display() -> Iterator[ProgressCallback]:
    """A bar on a terminal, lines in a log."""
    if not sys.stderr.isatty():
        yield _LinePrinter()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = [
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TimeRemainingColumn(),
    ]
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(progress.stage, tokens=0)
            bars.update(
                tasks[progress.stage],
                completed=progress.done,
                total=progress.total,
                tokens=progress.tokens,
            )

        yield show


class _LinePrinter:
    """Prints progress as plain lines, at most one every few seconds and one at each end."""

    _SECONDS = 5.0

    def __init__(self):
        self._printed = -self._SECONDS

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._printed >= self._SECONDS or progress.done in (0, progress.total):
            self._printed = now
            print(
                f"{progress.stage}: {progress.done}/{progress.total} done, "
                f"{progress.tokens:,} tokens",
                file=sys.stderr,
                flush=True,
            )
