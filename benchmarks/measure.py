"""What the benchmarks share: the models, timing in turn, the record as JSON, the table.

A machine's speed drifts while one watches. What is compared is therefore timed in turn, A B A B,
and the median is taken of each; every timing goes into the record, and how busy the machine was.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import runpy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich import box
from rich.table import Table

from anytime_jax import config as config_lib
from anytime_jax.atomic import replacing
from anytime_jax.command_line import Parser, open_console
from anytime_jax.config import Config
from anytime_jax.errors import InputError

MODELS = {"quickstart": "quickstart", "150m": "150m_inv_sqrt", "300m": "300m_inv_sqrt"}
_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("anytime_jax", "jax", "jaxlib", "flax", "optax", "numpy")
_VARIABLES = (
    "GLIBC_TUNABLES",
    "OMP_NUM_THREADS",
    "XLA_FLAGS",
    "JAX_PLATFORMS",
)  # of the environment: they count


def load_source(name: str, **changes: Any) -> dict[str, Any]:
    """Returns the settings of a model, as plain nested data.

    Args:
      name: a key of `MODELS`, or the path of a configuration file.
      **changes: settings to exchange.

    Raises:
      InputError: if there is no such file.
    """
    path = _ROOT / "configs" / f"{MODELS[name]}.py" if name in MODELS else Path(name)
    if not path.is_file():
        known = ", ".join(MODELS)
        raise InputError(f"the model {name!r} is neither {known} nor a configuration file")
    return {**runpy.run_path(str(path))["get_config"]().to_dict(), **changes}


def load_config(name: str, **changes: Any) -> Config:
    """Returns the checked configuration of a model; see `load_source`."""
    return config_lib.build(load_source(name, **changes))


def random_tokens(config: Config, batches: int = 1) -> np.ndarray:
    """Returns batches of random windows, int32 of shape [batches, batch_size, length + 1]."""
    shape = (batches, config.batch_size, config.model.length + 1)
    return np.random.default_rng(0).integers(0, config.model.vocab_size, shape, np.int32)


def repeat(work: Callable[[], Any], count: int) -> float:
    """Returns the seconds a call of `work` takes, out of `count` calls in a row.

    Two calls at most are under way at once, so that nothing but the device is waited for and the
    results of only two are held.

    Args:
      work: returns arrays that are ready when it is done, and that it does not donate later.
      count: calls.
    """
    before = None
    began = time.perf_counter()
    for _ in range(count):
        now = work()
        jax.block_until_ready(before)
        before = now
    jax.block_until_ready(before)
    return (time.perf_counter() - began) / count


def in_turn(blocks: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds that each block gives, every block once a round.

    Args:
      blocks: each times itself and returns seconds; the first round, which compiles, is not kept.
      rounds: that are kept.
    """
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for i in range(rounds + 1):
        for name, block in blocks.items():
            spent = block()
            if i > 0:
                seconds[name].append(spent)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the median of each block."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def spread(times: Sequence[float]) -> str:
    """Returns the least and the most of some seconds, for a table: `84.1 to 91.0 ms`."""
    return f"{min(times) * 1e3:.3g} to {max(times) * 1e3:.3g} ms"


def make_parser(name: str, about: str, steps: int, rounds: int) -> Parser:
    """Returns a parser with the options of every benchmark.

    Args:
      name: of the benchmark.
      about: what `--help` prints.
      steps: calls in a block, if not given.
      rounds: of blocks in turn, if not given.
    """
    parser = Parser(f"python -m benchmarks.{name}", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=_count, default=steps, help="calls in a block")
    parser.add_argument("--rounds", type=_count, default=rounds, help="rounds of blocks in turn")
    today = datetime.date.today().isoformat()
    parser.add_argument(
        "--output",
        nargs="?",
        const=str(_ROOT / "benchmarks" / "results" / f"{today}-{name}.json"),
        help="write the record here; without a value, to benchmarks/results/DATE-NAME.json",
    )
    return parser


def report(
    parser: Parser,
    argv: Sequence[str],
    output: str | None,
    rows: Sequence[Mapping[str, str]],
    measured: Mapping[str, Any],
) -> None:
    """Prints the table and, where asked for, writes the record.

    Args:
      parser: of the benchmark.
      argv: its command line, without the program.
      output: file for the record; None for none.
      rows: of the table, each with the same columns.
      measured: what goes into the record besides what every record has.
    """
    table = Table(box=box.SIMPLE)
    for column in rows[0]:
        table.add_column(column, no_wrap=True, justify="left" if column == "what" else "right")
    for row in rows:
        table.add_row(*row.values())
    console = open_console(width=150)
    console.print(table)
    if output is None:
        return
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([parser.prog, *map(_without_folders, argv)]),
        "machine": _machine(),
        "versions": {name: importlib.metadata.version(name) for name in _installed()},
        **measured,
    }
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    with replacing(output) as path:
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    console.print(f"written: {output}")


def _machine() -> dict[str, Any]:
    """What the times depend on; not whose machine it is."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "devices": [device.device_kind for device in jax.devices()],
        "platform": jax.default_backend(),
        "system": platform.system(),
        "load": os.getloadavg()[0],  # processes that wanted a core, over the last minute
        "python": platform.python_version(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _installed() -> list[str]:
    """The packages that have a version: ours has none where it runs from its folder."""
    known = {item.metadata["Name"].replace("-", "_") for item in importlib.metadata.distributions()}
    return [name for name in _PACKAGES if name in known]


def _without_folders(given: str) -> str:
    """An argument, with the name alone of a file that lies elsewhere."""
    option, equals, value = given.rpartition("=")
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") else given


def _count(given: str) -> int:
    if not (given.isdecimal() and int(given) > 0):
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number from 1")
    return int(given)
