"""Short real run: decrease of the loss, exact resume, speed while a checkpoint is written.

    python -m benchmarks.short_run --data=runs/data/builtin-1024
    python -m benchmarks.short_run --data=DATA --model=150m --updates=40 --batch=64 --microbatches=2

`python -m anytime_jax.main` trains the same run twice: uninterrupted, and stopped and resumed half
way, where both save. Their records are compared number by number, except timings. On a GPU,
`--xla_gpu_deterministic_ops` makes results repeatable, at the cost of cuDNN's attention, which XLA
does not run with it.
"""

import argparse
import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from anytime_jax.checkpoints.metric_records import TIMINGS, Row, read_records
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError, RunError
from benchmarks import harness, record

_AVERAGE = "f25"
_LAST = 3  # the last loss is the mean over so many updates


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.short_run", __doc__, data=True, model=True)
    add = parser.add_argument
    add("--updates", type=positive_int, default=60, help="an even number (default 60)")
    add("--batch", type=positive_int, default=32, help="windows in an update (default 32)")
    add("--microbatches", type=positive_int, default=1, help="default 1")
    add("--scratch", type=Path, help="directory for temporary run directories")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    if options.updates < 8 or options.updates % 2:
        raise InputError(f"--updates={options.updates} is not an even number from 8")
    half = options.updates // 2
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        whole, parts = Path(scratch) / "whole", Path(scratch) / "parts"
        for name, run_dir, stop in (
            ("without a stop", whole, options.updates),
            ("stopped half way", parts, half),
            ("resumed", parts, options.updates),
        ):
            command = _train_command(options, run_dir, stop)
            seconds[name] = harness.seconds_per_call(functools.partial(_run, command))
        records, resumed = read_records(whole), read_records(parts)
    rows = make_rows(records, largest_difference(records, resumed), half)
    details = {
        "seconds": seconds,
        "records": [{"step": row.step, **row.values} for row in records],
        "resumed": [{"step": row.step, **row.values} for row in resumed],
    }
    return record.Result(f"{options.updates} updates", rows, details)


def _train_command(options: argparse.Namespace, run_dir: Path, stop: int) -> list[str]:
    """Returns the command of a run that logs every update, and saves and evaluates half way."""
    length = harness.load_config(options.model).model.length
    half = f"{options.updates // 2} steps"
    settings = {
        "run_dir": run_dir,
        "data.repeat": True,
        "batch_size": options.batch,
        "microbatches": options.microbatches,
        "averages": f"({_AVERAGE!r},)",
        "schedule.warmup": f"{options.updates // 4} steps",
        "stop": f"{stop} steps",
        "log.trackers": "()",
        "eval.every": half,
        "eval.tokens": 8 * length,
        "eval.batch_size": 8,
        "checkpoint.every": half,
    }
    return harness.train_command(options.model, options.data, settings)


def _run(command: Sequence[str]) -> None:
    xla_flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()
    process = subprocess.run(
        command,
        cwd=harness.REPOSITORY,
        env={**os.environ, "XLA_FLAGS": xla_flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode:
        output = process.stdout[-3000:]
        raise RunError(f"the run ended with status {process.returncode}: {output}")


def largest_difference(first: Sequence[Row], second: Sequence[Row]) -> float:
    """Returns the largest difference between two runs' records, except timings; NaN if any is."""
    one, two = _values(first), _values(second)
    if one.keys() != two.keys():
        missing = sorted(one.keys() ^ two.keys())[:3]
        raise RunError(f"the records of the two runs differ in steps or names: {missing}")
    differences = [abs(value - two[key]) for key, value in one.items()]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def _values(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    return {
        (row.step, name): value
        for row in rows
        for name, value in row.values.items()
        if name not in TIMINGS
    }


def make_rows(records: Sequence[Row], difference: float, saved: int) -> list[record.Row]:
    """Returns the table of a run with a record for each update, and a save after `saved`."""
    values = {row.step: row.values for row in records}
    losses = [values[step]["train/loss"] for step in sorted(values)]
    first, last = losses[0], statistics.mean(losses[-_LAST:])
    final = values[max(values)]
    average = f"eval/{_AVERAGE}/loss"
    before, during = range(saved // 2, saved), range(saved + 2, saved + 2 + saved // 2)
    rows: list[tuple[str, float, str | None]] = [
        ("train/loss of the first update", first, None),
        (f"train/loss of the last {_LAST}", last, "yes" if last < first else "no"),
        (f"{average} at the end", final[average], None),
        ("largest difference, resumed", difference, "no" if difference else "yes"),
        ("tokens/s before the save", _speed(values, before), None),
        ("tokens/s while it is written", _speed(values, during), None),
    ]
    if "mfu" in final:
        rows.append(("mfu at the end", final["mfu"], None))
    return [{"what": what, "value": value, "met": met} for what, value, met in rows]


def _speed(values: Mapping[int, Mapping[str, float]], steps: range) -> float:
    speeds = (values[step].get("tokens_per_s") for step in steps if step in values)
    return statistics.median(speed for speed in speeds if speed is not None)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
