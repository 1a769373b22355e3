"""Benchmark record: a table for the terminal, and JSON with the machine and the versions.

Every record has `benchmark`, `date`, `command`, `machine`, `versions`, `rows` (the table's, plain
numbers and texts) and `details`, with all timings. No directory of the machine appears in it.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from anytime_jax.commands import exit_status
from anytime_jax.commands.rich_console import open_console
from anytime_jax.storage.atomic import atomic_write

RESULTS = Path(__file__).parent / "results.jsonl"  # one record per line
_PACKAGES = (
    *("anytime_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain"),
    *("tensorstore", "sentencepiece", "numpy"),
)
_VARIABLES = (  # packages that affect speed
    *("GLIBC_TUNABLES", "OMP_NUM_THREADS", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS"),
    "XLA_CLIENT_MEM_FRACTION",
)

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a benchmark: a table, with None in empty cells, and details for the record."""

    title: str
    rows: Sequence[Row]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    measure: Callable[[argparse.Namespace], Result],
) -> int:
    """Runs a benchmark, prints its table, writes its record and returns the exit status."""
    options = parser.parse_args(argv)
    module = parser.prog.rpartition(" ")[2]

    def work() -> int:
        result = measure(options)
        show(result.title, result.rows)
        record = make(module, argv, result.rows, result.details)
        if options.output:
            write(record, options.output)
        else:
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        print(f"record: {options.output or RESULTS}")
        return 0

    return exit_status.run(work)


def make(
    module: str,
    argv: Sequence[str],
    rows: Sequence[Row],
    details: Mapping[str, Any],
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a record of a benchmark's module; `machine` defaults to `describe_machine()`."""
    return {
        "benchmark": module.rpartition(".")[2],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": drop_directories(shlex.join(["python", "-m", module, *argv])),
        "machine": machine or describe_machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "rows": [{column: _round(value) for column, value in row.items()} for row in rows],
        "details": dict(details),
    }


def write(record: Mapping[str, Any], path: Path) -> None:
    """Writes a record to a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def show(title: str, rows: Sequence[Row]) -> None:
    """Prints rows as a table with the columns of the first row."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in rows[0]:
        is_number = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(format_cell(value) for value in row.values()))
    open_console(width=150).print(table)


def format_cell(value: Any) -> str:
    """Returns the text of a table cell; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _round(value: Any) -> Any:
    """Rounds a float to six digits, beyond the precision of the timings."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def drop_directories(text: str) -> str:
    """Returns the text with every absolute path cut to its last name."""
    return re.sub(r"(?<![\w/.])/(?:[^\s/'\"=:,]+/)*(?=[^\s/])", "", text)


def describe_machine() -> dict[str, Any]:
    """Returns the conditions that timings depend on: CPU, cores, load, variables, devices."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    has_affinity = hasattr(os, "sched_getaffinity")
    machine: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": platform.system(),
        "environment": {name: drop_directories(value) for name, value in variables.items()},
    }
    if "jax" in sys.modules:
        import jax

        machine["platform"] = jax.default_backend()
        machine["devices"] = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return machine


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # the system is not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
