"""Prepares text for training: `python -m anytime_jax.prepare --help`.

Run again after a kill or Ctrl-C, the same command goes on where it was; run again when it is
finished, it says so at once. Exit status: 0 finished, 1 broken in flight, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from anytime_jax.data.builtin import BuiltinSource
from anytime_jax.data.dataset import RECORD_NAME, DatasetInfo
from anytime_jax.data.preparation import prepare
from anytime_jax.data.sources import FileSource, Source, TfdsSource
from anytime_jax.data.workers import Progress, ProgressCallback
from anytime_jax.errors import InputError, RunError

# Options that only some sources understand: (flag's attribute, those sources).
_LIMITED_OPTIONS = {
    "input": ("json", "folder", "tfds"),
    "validation_input": ("json", "folder"),
    "text_field": ("json", "folder", "tfds"),
    "split": ("tfds",),
    "validation_split": ("tfds",),
    "megabytes": ("builtin",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      argv: the arguments; those of the process by default.

    Returns:
      The exit status.
    """
    arguments = _parser().parse_args(argv)
    began = time.monotonic()
    was_there = (arguments.output / RECORD_NAME).is_file()
    trains = arguments.vocabulary is None
    try:
        with _progress_display() as progress:
            info = prepare(
                _source(arguments),
                arguments.output,
                length=arguments.length,
                vocabulary=arguments.train_vocabulary if trains else arguments.vocabulary,
                workers=arguments.workers,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except InputError as error:
        if arguments.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        if arguments.debug:
            raise
        print(f"error: {error}; the same command goes on from here", file=sys.stderr)
        return 1
    ready = "already prepared" if was_there else f"ready in {time.monotonic() - began:.1f} s"
    print(f"{_summary(info)}\n{ready}: {info.path}")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Answers a usage error in one line, like any other bad input."""
        self.exit(2, f"error: {message}; --help lists the options\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m anytime_jax.prepare",
        description="Turn text into a dataset of token windows, resumable and reproducible.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--source", required=True, choices=("builtin", "json", "folder", "tfds"))
    add("--input", help="file, folder or quoted glob; for tfds the prepared dataset's directory")
    add("--validation-input", help="validation text of its own (json, folder)")
    add(
        "--validation-fraction",
        type=float,
        help="or: set this share of the documents aside (default 0.01; 0.05 for builtin)",
    )
    add("--text-field", help='key or feature that holds the text (default "text")')
    add("--split", help='tfds: split to train on (default "train")')
    add("--validation-split", help='tfds: split to validate on (default "validation")')
    add("--megabytes", type=float, help="builtin: how much text, in 10^6 bytes (default 12)")
    vocabulary = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_argument("--vocabulary", metavar="PATH", help="a SentencePiece model")
    vocabulary.add_argument(
        "--train-vocabulary", metavar="SIZE", type=int, help="or: train one of this many pieces"
    )
    add("--length", type=int, default=1024, help="tokens a model sees of a window (default 1024)")
    add("--output", required=True, type=Path, metavar="DIR", help="the dataset's directory")
    add("--workers", type=int, help="processes (default: one per core where they pay off)")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


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
        "validation_share": arguments.validation_fraction,
        **{option: getattr(arguments, option) for option in _LIMITED_OPTIONS},
    }
    given = {option: value for option, value in options.items() if value is not None}
    if kind == "builtin":
        return BuiltinSource(**{"megabytes": 12.0, **given})
    if "input" not in given:
        raise InputError(f"--source={kind} needs --input; name the text to read")
    if kind == "tfds":
        if "validation_share" in given:
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


if __name__ == "__main__":
    sys.exit(main())
