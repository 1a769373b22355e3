"""Seconds from the command line to the first update of the quickstart, cold and cached.

    python -m benchmarks.startup --data=runs/data/builtin-1024

A cold start has an empty XDG_CACHE_HOME; Python's .pyc files exist, and the dataset is prepared.
The targets are 15 s cold and 5 s cached. CPU seconds, available on Linux only, are independent of
the load of the machine.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from anytime_jax.errors import RunError
from benchmarks import harness, record

TARGETS = {"cold": 15.0, "cached": 5.0}  # seconds
# Phases, each with the first words of the line that ends it.
_PHASES = {"imports, data": "run ", "checks": "from ", "compiling, first update": "step 1 "}


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.startup", __doc__, rounds=5, data=True)
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    command = harness.train_command("quickstart", options.data, {"stop": "1 steps"})
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
