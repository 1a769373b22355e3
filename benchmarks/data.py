"""Tokens per second of preparation on one core, and of reading windows in one process.

    python -m benchmarks.data --documents=c4.jsonl --vocabulary=t5.model
    python -m benchmarks.data     # the Python source on this machine, a vocabulary trained on it

Targets: preparation at 1M tokens per second of a core, reading at 10M tokens/s in one process.
"""

import functools
import gzip
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.commands.command_line import exit_status
from anytime_jax.data.builtin_source import BuiltinSource
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.preparation import prepare
from anytime_jax.data.sources import FileSource, Source
from anytime_jax.data.windows import Windows, prefetch_batches
from anytime_jax.data.worker_pool import Progress
from anytime_jax.errors import InputError
from benchmarks import measure, record

READING_TARGET = 10e6  # tokens/s
PREPARATION_TARGET = 1e6  # tokens per second of CPU
_FILES = 4
_SHARE = 0.01  # of the documents, for validation
_ROUNDS = 3


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("data", __doc__)
    add = parser.add_argument
    add("--documents", type=Path, help="one JSON document with a `text` a line, repeated")
    add("--vocabulary", type=Path, help="a SentencePiece model, or a tokenizer.json")
    add("--train-vocabulary", type=int, default=32_000, help="or the size of one to train")
    add("--megabytes", type=float, default=60.0, help="of text (default 60)")
    add("--length", type=int, default=1024, help="tokens of a window (default 1024)")
    add("--batches", type=int, nargs="+", default=[8, 64, 256], help="windows of a batch")
    add("--seconds", type=float, default=2.0, help="of one round of reading (default 2)")
    add("--scratch", type=Path, help="directory for what is prepared and deleted again")
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    if (given.documents is None) != (given.vocabulary is None):
        raise InputError("--documents and --vocabulary go together: give both, or neither")
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        source = _source(given, Path(scratch))
        vocabulary = given.vocabulary or given.train_vocabulary
        rows, info = _prepare(source, vocabulary, given.length, Path(scratch) / "data")
        rows += _read(info, given.batches, given.seconds)
    record.leave("data", argv, "Tokens per second", rows, given.output)
    return 0


def _source(given: Any, scratch: Path) -> Source:
    """The text: documents repeated to the size asked for, or what is on this machine."""
    if given.documents is None:
        return BuiltinSource(given.megabytes)
    lines = given.documents.read_bytes().splitlines(keepends=True)
    if not lines:
        raise InputError(f"{given.documents} is empty: give a file of one JSON document a line")
    each = given.megabytes * 1e6 / _FILES
    times = max(1, round(each / sum(map(len, lines))))
    for i in range(_FILES):  # compressed, as C4 is
        with gzip.open(scratch / f"{i}.json.gz", "wb", compresslevel=6) as file:
            file.writelines(itertools.chain.from_iterable(itertools.repeat(lines, times)))
    return FileSource("json", str(scratch / "*.json.gz"), validation_fraction=_SHARE)


def _prepare(
    source: Source, vocabulary: Path | int, length: int, output: Path
) -> tuple[list[record.Row], DatasetInfo]:
    """Prepares in this process; the rate of each stage, and of both."""
    spent: dict[str, tuple[float, float]] = {}
    tokens: dict[str, int] = {}
    last = (0.0, 0.0)

    def report(progress: Progress) -> None:
        nonlocal last
        now = (time.process_time(), time.perf_counter())
        if progress.done == 0:
            last = now
        if progress.done == progress.total:
            spent[progress.stage] = (now[0] - last[0], now[1] - last[1])
            tokens[progress.stage] = progress.tokens

    info = prepare(source, output, length=length, vocabulary=vocabulary, workers=1, progress=report)
    rows = [
        _row(f"preparing: {stage}", tokens[stage], *spent[stage], PREPARATION_TARGET)
        for stage in spent
    ]
    cpu, wall = (sum(part) for part in zip(*spent.values(), strict=True))
    total = min(tokens.values())  # those of the last windows' ends are left out
    return [*rows, _row("preparing: all", total, cpu, wall, PREPARATION_TARGET)], info


def _read(info: DatasetInfo, batches: Sequence[int], seconds: float) -> list[record.Row]:
    """Reads batches of several sizes, in this thread and ahead in others."""
    windows = Windows(info, "train", length=info.length, seed=0, repeat=True)
    ways: dict[str, Callable[[int], Iterator[np.ndarray]]] = {
        "batch": lambda size: (windows.batch(n, size) for n in itertools.count(0, size)),
        "prefetch_batches": lambda size: prefetch_batches(windows, 0, size),
    }
    rows = []
    for (way, begin), size in itertools.product(ways.items(), batches):
        rounds = [_drain(begin(size), info.length, seconds) for _ in range(_ROUNDS)]
        _, tokens, cpu, wall = max(rounds)
        rows.append(_row(f"reading: {way}, {size} windows", tokens, cpu, wall, READING_TARGET))
    return rows


def _drain(
    batches: Iterator[np.ndarray], length: int, seconds: float
) -> tuple[float, float, float, float]:
    """Reads for a while: tokens per second; tokens, seconds of CPU, seconds."""
    next(batches)
    cpu, wall, tokens = time.process_time(), time.perf_counter(), 0
    while (passed := time.perf_counter() - wall) < seconds or not tokens:
        tokens += next(batches).shape[0] * length
    return tokens / passed, tokens, time.process_time() - cpu, passed


def _row(what: str, tokens: float, cpu: float, wall: float, target: float) -> record.Row:
    """A line of the table. The target holds per core for preparing, per process for reading."""
    rate = {"tokens_per_s": record.rounded(tokens / wall)}
    rate["tokens_per_cpu_s"] = record.rounded(tokens / cpu)
    held = rate["tokens_per_cpu_s" if target == PREPARATION_TARGET else "tokens_per_s"]
    return {"what": what, **rate, "target": target, "met": "yes" if held >= target else "no"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
