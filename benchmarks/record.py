"""What a benchmark leaves: a table for a person, and a JSON file with where and when it ran."""

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from anytime_jax.command_line import open_console

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("anytime_jax", "jax", "flax", "grain", "array_record", "orbax-checkpoint")
_PACKAGES += ("sentencepiece", "numpy")

Row = Mapping[str, Any]


def save(name: str, command: str, rows: Sequence[Row], output: Path = RESULTS) -> Path:
    """Writes the rows of a benchmark to OUTPUT/DATE-NAME.json, and returns that path.

    Args:
      name: of the benchmark.
      command: the line that gives these rows again.
      rows: plain numbers and texts by column.
      output: a directory, made if need be.
    """
    now = datetime.datetime.now(datetime.UTC)
    about = {
        "benchmark": name,
        "date": now.isoformat(timespec="seconds"),
        "command": command,
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "rows": list(rows),
    }
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{now:%Y-%m-%d}-{name}.json"
    path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return path


def show(title: str, rows: Sequence[Row]) -> None:
    """Prints rows as a table; its columns are those of the first row."""
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        number = isinstance(rows[0][column], int | float)
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    open_console().print(table)


def command(name: str, argv: Sequence[str] | None) -> str:
    """The line that starts a benchmark; with the arguments of this process where `argv` is None."""
    given = sys.argv[1:] if argv is None else argv
    return shlex.join(["python", "-m", f"benchmarks.{name}", *given])


def middle(values: Iterable[float]) -> float:
    """The median, to the four digits that a clock on a shared machine is good for at most."""
    return rounded(statistics.median(values))


def rounded(value: float) -> float:
    """A number to four digits."""
    return float(f"{value:.4g}")


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else _plain(value)


def _plain(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


def _machine() -> dict[str, Any]:
    machine: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
    }
    if "jax" in sys.modules:
        import jax

        machine["devices"] = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return machine


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a folder, not installed
            found[package] = "not installed"
    return found
