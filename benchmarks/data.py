"""Tokens per second of preparing text on one core, and of reading windows in one process.

    python -m benchmarks.data --documents=c4.jsonl --vocabulary=t5.model
    python -m benchmarks.data     # the built-in text, a vocabulary trained on it

Targets: 1M tokens per CPU second of preparation, 10M tokens/s of reading.
"""

import argparse
import dataclasses
import gzip
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.corpus.builtin_source import BuiltinSource
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.source_interface import Source
from anytime_jax.corpus.workers import Progress
from anytime_jax.data.dataset_info import DatasetInfo, SplitInfo
from anytime_jax.data.mixture import DataStage, Mixture, whole_weights
from anytime_jax.data.prefetch import read_ahead
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError
from benchmarks import harness, record

READING_TARGET = 10e6  # tokens/s
PREPARATION_TARGET = 1e6  # tokens per CPU second
_FILES = 4
_VALIDATION_FRACTION = 0.01
_ROUNDS = 3


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.data", __doc__)
    add = parser.add_argument
    add("--documents", type=Path, help="a JSON document with a `text` on each line, repeated")
    add("--vocabulary", type=Path, help="a SentencePiece model or a tokenizer.json")
    add(
        "--train-vocabulary",
        type=positive_int,
        default=32_000,
        help="size of the vocabulary to train",
    )
    add("--megabytes", type=float, default=60.0, help="of text (default 60)")
    add("--length", type=positive_int, default=1024, help="tokens of a window (default 1024)")
    add("--batches", type=positive_int, nargs="+", default=[8, 64, 256], help="windows of a batch")
    add("--seconds", type=float, default=2.0, help="of one round of reading (default 2)")
    add("--scratch", type=Path, help="directory for temporary data")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    if (options.documents is None) != (options.vocabulary is None):
        raise InputError("--documents and --vocabulary need each other: set both or neither")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        source = _source(options, Path(scratch))
        vocabulary = options.vocabulary or options.train_vocabulary
        rows, info = _prepare(source, vocabulary, Path(scratch) / "data")
        rows += _read(info, options.length, options.batches, options.seconds)
    return record.Result("Tokens per second", rows)


def _source(options: argparse.Namespace, scratch: Path) -> Source:
    if options.documents is None:
        return BuiltinSource(options.megabytes)
    lines = options.documents.read_bytes().splitlines(keepends=True)
    if not lines:
        raise InputError(f"--documents={options.documents} is empty")
    file_bytes = options.megabytes * 1e6 / _FILES
    repeats = max(1, round(file_bytes / sum(map(len, lines))))
    for i in range(_FILES):  # compressed like C4
        with gzip.open(scratch / f"{i}.json.gz", "wb", compresslevel=6) as file:
            file.writelines(lines * repeats)
    pattern = str(scratch / "*.json.gz")
    return FileSource(pattern, validation_fraction=_VALIDATION_FRACTION)


def _prepare(
    source: Source, vocabulary: Path | int, output: Path
) -> tuple[list[record.Row], DatasetInfo]:
    """Prepares text in this process; returns the dataset's row for its tokenization."""
    # (CPU seconds, wall seconds) at the start and after each part.
    times: list[tuple[float, float]] = []

    def report(progress: Progress) -> None:
        times.append((time.process_time(), time.perf_counter()))

    info = prepare(source, output, vocabulary=vocabulary, workers=1, progress=report)
    assert info is not None  # as there is no share
    cpu, wall = (end - start for start, end in zip(times[0], times[-1], strict=True))
    tokens = sum(split.tokens for split in info.splits.values())
    return [make_row("preparing", tokens, cpu, wall, PREPARATION_TARGET)], info


def _read(
    info: DatasetInfo, length: int, batches: Sequence[int], seconds: float
) -> list[record.Row]:
    # Every file is a source of its own, so that the mixture reads what the dataset has.
    parts = info.parts["train"]
    sources = {
        part.name: dataclasses.replace(
            info,
            splits={"train": SplitInfo(documents=1, tokens=part.tokens)},
            parts={"train": (part,)},
        )
        for part in parts
    }
    total = sum(part.tokens for part in parts)
    weights = whole_weights({part.name: part.tokens / total for part in parts})
    mixture = Mixture([DataStage(0, length, weights)])

    def one() -> Windows:
        return Windows.from_dataset(info, "train", length=length, seed=0, repeat=True)

    def mixed() -> Windows:
        return Windows(sources, mixture, seed=0, repeat=True)

    # Each round opens the arrays, so that none reads what another one has cached.
    readers: dict[str, Callable[[int], Iterator[np.ndarray]]] = {
        "batch": lambda size: map(one().batch, itertools.count(0, size), itertools.repeat(size)),
        "read_ahead": lambda size: read_ahead(one().batch, 0, itertools.repeat(size)),
        "mixture": lambda size: read_ahead(mixed().batch, 0, itertools.repeat(size)),
    }
    rows = []
    for size in batches:
        # The readers take turns, so that all of them meet the same other work on the machine.
        rounds: dict[str, list[tuple[int, float, float]]] = {name: [] for name in readers}
        for _, (name, read) in itertools.product(range(_ROUNDS), readers.items()):
            rounds[name].append(_read_for(read(size), length, seconds))
        for name, timed in rounds.items():
            tokens, cpu, wall = max(timed, key=lambda result: result[0] / result[2])
            rows.append(
                make_row(f"reading: {name}, {size} windows", tokens, cpu, wall, READING_TARGET)
            )
    return rows


def _read_for(
    batches: Iterator[np.ndarray], length: int, seconds: float
) -> tuple[int, float, float]:
    """Reads for some seconds; returns tokens, CPU seconds and wall seconds."""
    next(batches)
    cpu, start, tokens = time.process_time(), time.perf_counter(), 0
    while (wall := time.perf_counter() - start) < seconds or not tokens:
        tokens += next(batches).shape[0] * length
    return tokens, time.process_time() - cpu, wall


def make_row(what: str, tokens: float, cpu: float, wall: float, target: float) -> record.Row:
    """Returns a row; the target is per CPU second for preparation, per second for reading."""
    rates = {"tokens_per_s": tokens / wall, "tokens_per_cpu_s": tokens / cpu}
    rate = rates["tokens_per_cpu_s" if target == PREPARATION_TARGET else "tokens_per_s"]
    return {"what": what, **rates, "target": target, "met": "yes" if rate >= target else "no"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
