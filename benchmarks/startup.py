"""Seconds from the command line to the first update of the quickstart, cold and cached.

    python -m benchmarks.startup --data=runs/data/builtin-1024-128

Cold is an empty folder for everything that is cached (XDG_CACHE_HOME); Python's own .pyc files stay
as an installation leaves them. The data are prepared already. Targets: 15 s cold, 5 s cached.
Seconds of CPU stand beside those of the clock where the system tells them (Linux): on a machine
that others use, the clock says as much of them as of us.
"""

import functools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.commands.command_line import exit_status
from anytime_jax.data.dataset import load_dataset
from anytime_jax.errors import RunError
from benchmarks import measure, record

TARGETS = {"cold": 15.0, "cached": 5.0}  # seconds
_PROGRAM = (sys.executable, "-m", "anytime_jax.main")
# What a line of the run begins with when a part of the start is over.
_PARTS = {"imports, data": "run ", "checks": "from ", "compiling, first update": "step 1 "}


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("startup", __doc__, rounds=5)
    parser.add_argument("--data", type=Path, required=True, help="a prepared dataset")
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    flags = _flags(given.data)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in TARGETS}
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(given.rounds):
            caches = Path(scratch) / f"caches-{i}"  # empty at first, filled by the cold start
            for kind in TARGETS:
                run_dir = Path(scratch) / f"{kind}-{i}"
                found[kind].append(_start([*flags, f"--config.run_dir={run_dir}"], caches))
    rows = [_row(kind, starts) for kind, starts in found.items()]
    title = "Seconds from the command line to the first update, medians"
    record.leave("startup", argv, title, rows, given.output, {"starts": found})
    return 0


def _flags(data: Path) -> list[str]:
    """The quickstart of one update on a dataset, whatever its length and vocabulary."""
    info = load_dataset(data)
    settings = {
        "data.path": info.path.absolute(),
        "data.builtin_megabytes": 0.0,  # they are prepared, in whatever size
        **{f"model.{name}": value for name, value in measure.fit(info).items()},
        "stop": "1 steps",
        "log.every": "1 steps",
        "eval.tokens": info.length,
        "eval.batch_size": 1,
    }
    return [f"--config.{name}={value}" for name, value in settings.items()]


def _start(flags: Sequence[str], caches: Path) -> dict[str, float]:
    """Starts a run: the seconds of each part of its start, up to the line of its first update."""
    command = [*_PROGRAM, "--config=configs/quickstart.py", *flags]
    began = last = time.perf_counter()
    seconds, waiting, cpu = {}, dict(_PARTS), 0.0
    said: list[str] = []
    with subprocess.Popen(
        command,
        cwd=measure.REPOSITORY,
        env=_environment(caches),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            part = next(iter(waiting), "")
            if waiting and line.startswith(waiting[part]):
                now, cpu = time.perf_counter(), _cpu_seconds(process.pid)
                seconds[part], last = now - last, now
                del waiting[part]
    if waiting or process.returncode:
        raise RunError(f"the run ended with status {process.returncode}: {''.join(said)[-300:]}")
    return {"seconds": last - began, **seconds, "cpu_seconds": cpu}


def _cpu_seconds(pid: int) -> float:
    """What a process has had of the CPUs so far; NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system


def _environment(caches: Path) -> Mapping[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return {**kept, "XDG_CACHE_HOME": str(caches), "PYTHONUNBUFFERED": "1"}


def _row(kind: str, starts: Sequence[Mapping[str, float]]) -> record.Row:
    middles = {part: record.middle(start[part] for start in starts) for part in starts[0]}
    every = [start["seconds"] for start in starts]
    spread = f"{min(every):.1f} to {max(every):.1f}"
    met = "yes" if middles["seconds"] <= TARGETS[kind] else "no"
    return {"start": kind, **middles, "range": spread, "target": TARGETS[kind], "met": met}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
