"""Seconds from the command line to the first update of the quickstart, and in its training.

    python -m benchmarks.startup --data=runs/data/builtin-1024
    python -m benchmarks.startup --data=runs/data/builtin-1024 --updates=400

A cold start has an empty XDG_CACHE_HOME; Python's .pyc files exist, and the dataset is prepared.
The targets are 15 s cold and 5 s cached. CPU seconds, available on Linux only, are independent of
the load of the machine.

With `--updates`, one start trains for that many updates, in this process, and the table says what
its time went into. Before and after it, the compiled update is timed by itself, on one batch, so
that the start finds it among the compiled programs: its own compilation is in the other table. The
target of the evaluations is 5% of the time.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from anytime_jax.checkpoints.metric_records import read_starts
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import RunError
from anytime_jax.training import loop, step
from benchmarks import harness, record

TARGETS = {"cold": 15.0, "cached": 5.0}  # seconds
TARGET_SHARES = {"evaluation": 0.05}  # of the time of a training
_CALLS = 20  # of the update by itself, timed together
# Phases, each with the first words of the line that ends it.
_PHASES = {"imports, data": "run ", "checks": "from ", "compiling, first update": "step 1 "}


class Times(NamedTuple):
    """Seconds of a call; of these, CPU seconds of all threads and of the main thread, if known."""

    seconds: float
    cpu_seconds: float | None = None
    thread_seconds: float | None = None


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.startup", __doc__, rounds=5, data=True, model=True)
    parser.set_defaults(model="quickstart")
    parser.add_argument("--updates", type=positive_int, help="of a start whose time is divided")
    return record.run(parser, argv, lambda x: _measure_training(x) if x.updates else _measure(x))


def _measure(options: argparse.Namespace) -> record.Result:
    command = harness.train_command(options.model, options.data, {"stop": "1 steps"})
    starts: dict[str, list[dict[str, float]]] = {kind: [] for kind in TARGETS}
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(options.rounds):
            cache = Path(scratch) / f"cache-{i}"  # the cold start fills the cache
            for kind in TARGETS:
                run_dir = Path(scratch) / f"{kind}-{i}"
                starts[kind].append(time_start([*command, f"--config.run_dir={run_dir}"], cache))
    rows = [_row(kind, kind_starts) for kind, kind_starts in starts.items()]
    title = "Seconds from the command line to the first update, medians"
    return record.Result(title, rows, {"starts": starts})


def time_start(command: Sequence[str], cache: Path) -> dict[str, float]:
    """Runs a command until its first update is done.

    Args:
      command: as `harness.train_command` returns it.
      cache: directory for compiled programs.

    Returns:
      "seconds" in all, those of each phase, and "cpu_seconds".
    """
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    start = last = time.perf_counter()
    seconds, remaining, cpu = {}, dict(_PHASES), 0.0
    output = ""
    with subprocess.Popen(
        command,
        cwd=harness.REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            output += line
            phase = next(iter(remaining), "")
            if remaining and line.startswith(remaining[phase]):
                now, cpu = time.perf_counter(), _cpu_seconds(process.pid)
                seconds[phase], last = now - last, now
                del remaining[phase]
    if remaining or process.returncode:
        raise RunError(f"the run ended with status {process.returncode}: {output[-300:]}")
    return {"seconds": last - start, **seconds, "cpu_seconds": cpu}


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # the system is not Linux
        return math.nan
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system time


def _row(kind: str, starts: Sequence[Mapping[str, float]]) -> record.Row:
    medians = {phase: statistics.median(start[phase] for start in starts) for phase in starts[0]}
    seconds = [start["seconds"] for start in starts]
    return {
        "start": kind,
        **medians,
        "range": f"{min(seconds):.1f} to {max(seconds):.1f}",
        "target": TARGETS[kind],
        "met": "yes" if medians["seconds"] <= TARGETS[kind] else "no",
    }


def _measure_training(options: argparse.Namespace) -> record.Result:
    """Divides the time of one start, beside that of the update by itself."""
    info, updates = load_dataset(options.data), options.updates
    with tempfile.TemporaryDirectory() as scratch:
        config = harness.load_config(
            options.model,
            run_dir=f"{scratch}/run",
            stop=f"{updates} steps",
            data={"path": str(info.path.absolute()), "builtin_megabytes": 0.0},
            model=harness.dataset_settings(info),
        )
        update = _make_update(config)
        timings = [_times(update, _CALLS) for _ in range(options.rounds)]
        whole = _times(lambda: loop.train(config))
        timings += [_times(update, _CALLS) for _ in range(options.rounds)]
        (start,) = read_starts(config.directory)
    _, spent = start["seconds"][-1]
    title = f"What the time of {updates:,} updates of {options.model} goes into"
    rows = make_training_rows(updates, whole, spent, timings)
    return record.Result(title, rows, {"spent": spent, "whole": whole, "update": timings})


def _make_update(config: Config) -> Callable[[], jax.Array]:
    """Returns the compiled update of a run as a function of nothing, which returns the loss."""
    mesh = sharding.make_mesh(config.mesh)
    program = step.make_program(config, mesh)
    compiled: Any = program.lower_update().compile()
    batch = sharding.put_batch(mesh, harness.random_tokens(config)[0], config.batch_size)
    state, rates = program.init(), step.rates_at(config, 0)

    def update() -> jax.Array:
        nonlocal state
        state, metrics = compiled(state, batch, rates)
        return metrics["loss"]

    return update


def _times(function: Callable[[], Any], calls: int = 1) -> Times:
    """Returns the mean times of some calls of a function."""
    process, thread = time.process_time(), time.thread_time()
    seconds = harness.seconds_per_call(function, calls)
    process, thread = time.process_time() - process, time.thread_time() - thread
    return Times(seconds, process / calls, thread / calls)


def make_training_rows(
    updates: int, whole: Times, spent: Mapping[str, float], alone: Sequence[Times]
) -> list[record.Row]:
    """Returns the rows of a start that took `whole`: its parts, and its updates by themselves.

    `spent` has the seconds that the start recorded; `alone` are timings of the update by itself.
    """
    rest = whole.seconds - sum(spent.values())
    by_itself = [updates * statistics.median(column) for column in zip(*alone, strict=True)]
    parts = [(what, Times(seconds)) for what, seconds in spent.items()]
    parts += [
        ("before and after the loop", Times(rest)),
        ("all", whole),
        ("the updates by themselves", Times(*by_itself)),
    ]
    rows: list[record.Row] = []
    for what, times in parts:
        share, target = times.seconds / whole.seconds, TARGET_SHARES.get(what)
        rows.append(
            {
                "what": what,
                "seconds": times.seconds,
                "share": share,
                "ms_per_update": 1e3 * times.seconds / updates,
                "cpu_seconds": times.cpu_seconds,
                "of_main_thread": times.thread_seconds,
                "target": target,
                "met": None if target is None else "yes" if share <= target else "no",
            }
        )
    return rows


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
