"""What a benchmark leaves: a table for a person, and a JSON file with where and when it ran.

Every record has the same layout: `benchmark`, `date`, `command`, `machine`, `versions`, `rows` (the
table's, as plain numbers and texts) and `details`, where each has its own: all timings among them.
No folder of the machine stands in one.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from anytime_jax.atomic import atomic_write
from anytime_jax.commands.console import open_console

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    *("anytime_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain"),
    *("array_record", "sentencepiece", "numpy"),
)
_VARIABLES = ("GLIBC_TUNABLES", "OMP_NUM_THREADS", "XLA_FLAGS", "JAX_PLATFORMS")  # they count

Row = Mapping[str, Any]


def leave(
    name: str,
    argv: Sequence[str],
    title: str,
    rows: Sequence[Row],
    output: Path | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Prints the table of a benchmark, writes its record, and prints where to.

    Args:
      name: of the benchmark.
      argv: its command line, without the program.
      title: of the table.
      rows: plain numbers and texts by column; None where there is nothing to say.
      output: file for the record; `default_path(name)` where None.
      details: what the record holds besides.
    """
    show(title, rows)
    path = output or default_path(name)
    save(name, argv, rows, path, details)
    print(f"written: {path}")


def save(
    name: str,
    argv: Sequence[str],
    rows: Sequence[Row],
    path: Path,
    details: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes the record of a benchmark, whole or not at all.

    Args:
      name: of the benchmark.
      argv: its command line, without the program.
      rows: as in `leave`.
      path: of the file; its folder is made if need be.
      details: what the record holds besides.
      about: the machine, where another process has looked at it; see `describe_machine`.
    """
    found = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": without_folders(shlex.join(["python", "-m", f"benchmarks.{name}", *argv])),
        "machine": about or describe_machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "rows": list(rows),
        "details": dict(details or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def default_path(name: str) -> Path:
    """Returns results/DATE-NAME.json, numbered where that is taken: a record stays what it was."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path, number = RESULTS / f"{today}-{name}.json", 1
    while path.exists():
        number += 1
        path = RESULTS / f"{today}-{name}-{number}.json"
    return path


def show(title: str, rows: Sequence[Row]) -> None:
    """Prints rows as a table; its columns are those of the first row."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in rows[0]:
        number = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text(value) for value in row.values()))
    open_console(width=150).print(table)


def middle(values: Iterable[float]) -> float:
    """The median, to the four digits that a clock on a shared machine is good for at most."""
    return rounded(statistics.median(values))


def rounded(value: float) -> float:
    """A number to four digits."""
    return float(f"{value:.4g}")


def without_folders(text: str) -> str:
    """Returns a text with the name alone of every file whose whole path it gives."""
    return re.sub(r"(?<![\w/.])/(?:[^\s/'\"=:,]+/)*(?=[^\s/])", "", text)


def describe_machine() -> dict[str, Any]:
    """Returns what the times depend on; not whose machine it is."""
    given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    machine: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],  # processes that wanted a core
        "system": platform.system(),
        "environment": {name: without_folders(value) for name, value in given.items()},
    }
    if "jax" in sys.modules:
        import jax

        machine["platform"] = jax.default_backend()
        machine["devices"] = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return machine


def text(value: Any) -> str:
    """Returns a number or a text as a table has it; None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> dict[str, str]:
    """Of the packages that have one: ours has none where it runs from its folder."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
