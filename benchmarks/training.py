"""A short real run: whether its loss falls, whether it resumes exactly, what a save costs it.

    python -m benchmarks.training --data=runs/data/builtin-1024-128
    python -m benchmarks.training --data=DATA --model=150m --updates=40 --batch=64 --microbatches=2

The run is made twice by `python -m anytime_jax.main`: in one go, and stopped half way and resumed.
Both save half way. Their records are compared, number by number, timings apart. A GPU is told to
compute the same every time (`--xla_gpu_deterministic_ops`), which costs it some of its speed.
"""

import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints.records import TIMINGS, Row, read_records
from anytime_jax.commands.command_line import exit_status
from anytime_jax.data.dataset import load_dataset
from anytime_jax.distributed.runtime import configure
from anytime_jax.errors import InputError, RunError
from benchmarks import measure, record

_AVERAGE = 25.0
_LATE = 3  # updates whose mean is the last loss


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("training", __doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="a prepared dataset")
    add("--model", default="quickstart", help=measure.MODEL_HELP)
    add("--updates", type=int, default=60, help="of the run, an even number (default 60)")
    add("--batch", type=int, default=32, help="windows in an update (default 32)")
    add("--microbatches", type=int, default=1, help="parts of a batch (default 1)")
    add("--scratch", type=Path, help="directory for what the runs save; deleted again")
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    if given.updates < 8 or given.updates % 2:
        raise InputError(f"--updates={given.updates}: give an even number from 8")
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        whole, parts = Path(scratch) / "whole", Path(scratch) / "parts"
        for what, run_dir, stop in (
            ("in one go", whole, given.updates),
            ("stopped half way", parts, given.updates // 2),
            ("resumed", parts, given.updates),
        ):
            flags = _flags(given, run_dir, stop)
            seconds[what] = measure.repeat(functools.partial(_train, given.model, flags))
        records, others = read_records(whole), read_records(parts)
    rows = make_rows(records, largest_difference(records, others), given.updates // 2)
    details = {
        "seconds": seconds,
        "records": [{"step": row.step, **row.values} for row in records],
        "resumed": [{"step": row.step, **row.values} for row in others],
    }
    record.leave("training", argv, f"{given.updates} updates", rows, given.output, details)
    return 0


def _flags(given: Any, run_dir: Path, stop: int) -> list[str]:
    """The command line of a run that logs every update, and saves and evaluates half way."""
    info, half = load_dataset(given.data), f"{given.updates // 2} steps"
    settings = {
        "run_dir": run_dir,
        "data.path": info.path.absolute(),
        "data.builtin_megabytes": 0.0,  # it is prepared, in whatever size
        "data.repeat": True,
        **{f"model.{name}": value for name, value in measure.fit(info).items()},
        "batch_size": given.batch,
        "microbatches": given.microbatches,
        "averages": f"({_AVERAGE},)",
        "schedule.warmup": f"{given.updates // 4} steps",
        "stop": f"{stop} steps",
        "log.every": "1 steps",
        "log.tensorboard": False,
        "eval.every": half,
        "eval.tokens": 8 * info.length,
        "eval.batch_size": 8,
        "checkpoint.every": half,
    }
    return [f"--config.{name}={value}" for name, value in settings.items()]


def _train(model: str, flags: Sequence[str]) -> None:
    """Runs the trainer to its end.

    Raises:
      RunError: with its last words, if it breaks.
    """
    command = [sys.executable, "-m", "anytime_jax.main", f"--config={measure.find_file(model)}"]
    same = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    done = subprocess.run(
        [*command, *flags],
        cwd=measure.REPOSITORY,
        env={**os.environ, "XLA_FLAGS": same.strip()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(f"the run ended with status {done.returncode}: {done.stdout[-300:]}")


def largest_difference(ours: Sequence[Row], others: Sequence[Row]) -> float:
    """Returns the largest difference between two runs' records, timings apart; NaN counts.

    Raises:
      RunError: if they are not of the same steps and names.
    """
    mine, theirs = _numbers(ours), _numbers(others)
    if mine.keys() != theirs.keys():
        odd = sorted(mine.keys() ^ theirs.keys())[:3]
        raise RunError(f"the records of the two runs are not of the same things: {odd}")
    gaps = [abs(value - theirs[what]) for what, value in mine.items()]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def _numbers(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    named = ((row.step, name, value) for row in rows for name, value in row.values.items())
    return {(step, name): value for step, name, value in named if name not in TIMINGS}


def make_rows(records: Sequence[Row], difference: float, saved: int) -> list[record.Row]:
    """Returns the rows of the table.

    Args:
      records: of a run in one go, a row an update.
      difference: between them and those of the resumed run.
      saved: the update after which it saved.
    """
    values = {row.step: row.values for row in records}
    first, *_ = (values[step]["train/loss"] for step in sorted(values))
    late = statistics.mean(values[step]["train/loss"] for step in sorted(values)[-_LATE:])
    before = _speed(values, range(saved // 2, saved))
    after = _speed(values, range(saved + 2, saved + 2 + saved // 2))
    end = values[max(values)]
    rows: list[tuple[str, float | None, bool | None]] = [
        ("train/loss of the first update", first, None),
        (f"train/loss of the last {_LATE}", late, late < first),
        (f"eval/f{_AVERAGE:g}/loss at the end", end[f"eval/f{_AVERAGE:g}/loss"], None),
        ("largest difference, resumed", difference, difference == 0),
        ("tokens/s before the save", before, None),
        ("tokens/s while it is written", after, None),
        ("mfu at the end", end.get("mfu"), None),
    ]
    told = {True: "yes", False: "no", None: None}
    return [
        {"what": what, "value": float(f"{value:.6g}"), "met": told[met]}
        for what, value, met in rows
        if value is not None
    ]


def _speed(values: Mapping[int, Mapping[str, float]], steps: range) -> float:
    speeds = (values[step].get("tokens_per_s") for step in steps if step in values)
    return record.middle(speed for speed in speeds if speed is not None)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
