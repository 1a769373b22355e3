"""Benchmark harness: models, random tokens, training commands, interleaved timing, options.

The speed of a shared machine drifts. Alternatives are therefore timed in turn, A B A B, and
compared by their medians; the record has every timing and the load of the machine.
"""

import argparse
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import DatasetInfo, load_dataset
from anytime_jax.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[1]
MODELS = {
    "small": "benchmarks/small.py",
    "quickstart": "configs/quickstart.py",
    "150m": "configs/150m_inv_sqrt.py",
    "300m": "configs/300m_inv_sqrt.py",
}
MODEL_HELP = "small, quickstart, 150m, 300m or a configuration file"

Name = TypeVar("Name", bound=Hashable)


def config_file(model: str) -> Path:
    """Returns the configuration file of a key of `MODELS`, or of a path."""
    path = REPOSITORY / MODELS[model] if model in MODELS else Path(model)
    if not path.is_file():
        names = ", ".join(MODELS)
        raise InputError(f"--model={model} is neither one of {names} nor a configuration file")
    return path.absolute()


def load_config(model: str, /, **changes: Any) -> Config:
    """Returns the configuration of a model with changed settings.

    A group is a dictionary. A setting of None is not changed.
    """
    settings = runpy.run_path(str(config_file(model)))["get_config"]().to_dict()
    for key, value in changes.items():
        if isinstance(value, dict):
            given = {name: inner for name, inner in value.items() if inner is not None}
            settings[key] = {**settings.get(key, {}), **given}
        elif value is not None:
            settings[key] = value
    return run_config.build(settings, trust=NOBODY)


def train_command(model: str, data: Path, settings: Mapping[str, Any]) -> list[str]:
    """Returns the command that trains a model on a prepared dataset and logs every update."""
    info = load_dataset(data)
    settings = {
        "data.path": info.path.absolute(),
        "data.builtin_megabytes": 0.0,  # the dataset is prepared already
        **{f"model.{name}": value for name, value in dataset_settings(info).items()},
        "log.every": "1 steps",
        "eval.tokens": load_config(model).model.length,
        "eval.batch_size": 1,
        **settings,
    }
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "anytime_jax.main", f"--config={config_file(model)}", *flags]


def dataset_settings(info: DatasetInfo) -> dict[str, int]:
    """Returns the settings of a model that its dataset determines."""
    return {"vocab_size": info.vocab_size, "embedding_rows": info.vocab_size}


def random_tokens(config: Config, batches: int = 1) -> np.ndarray:
    """Returns batches of random windows, int32 of shape [batches, batch_size, length + 1]."""
    shape = (batches, config.batch_size, config.model.length + 1)
    return np.random.default_rng(0).integers(0, config.model.vocab_size, shape, np.int32)


def seconds_per_call(function: Callable[[], Any], calls: int = 1) -> float:
    """Returns the mean seconds of some calls of a function that returns arrays.

    At most two calls are in flight: the device is never idle, and only two results are alive.
    """
    previous = None
    start = time.perf_counter()
    for _ in range(calls):
        result = function()
        jax.block_until_ready(previous)
        previous = result
    jax.block_until_ready(previous)
    return (time.perf_counter() - start) / calls


def interleave(timers: Mapping[Name, Callable[[], float]], rounds: int) -> dict[Name, list[float]]:
    """Returns the results of each timer, called once per round; the first round is a warm-up."""
    seconds: dict[Name, list[float]] = {name: [] for name in timers}
    for i in range(rounds + 1):
        for name, timer in timers.items():
            elapsed = timer()
            if i > 0:
                seconds[name].append(elapsed)
    return seconds


def medians(seconds: Mapping[Name, Sequence[float]]) -> dict[Name, float]:
    """Returns the median of each list."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Returns table columns for some timings in seconds: median, minimum and maximum."""
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "least_ms": 1e3 * min(seconds),
        "most_ms": 1e3 * max(seconds),
    }


def make_parser(
    module: str,
    description: str | None,
    *,
    steps: int | None = None,
    rounds: int | None = None,
    data: bool = False,
    model: bool = False,
    output: Path | None = None,
) -> argparse.ArgumentParser:
    """Returns a parser with --output, and the options that the benchmark has.

    `module` is the full name of the benchmark's module; `steps`, `rounds` and `output` are
    defaults.
    """
    parser = argparse.ArgumentParser(
        f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if steps:
        help_text = f"calls timed together (default {steps})"
        parser.add_argument("--steps", type=positive_int, default=steps, help=help_text)
    if rounds:
        help_text = f"timings of each kind, in turn, after a warm-up (default {rounds})"
        parser.add_argument("--rounds", type=positive_int, default=rounds, help=help_text)
    if data:
        parser.add_argument("--data", type=Path, required=True, help="a prepared dataset")
    if model:
        parser.add_argument("--model", default="small", help=f"{MODEL_HELP} (default small)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=output,
        help=f"write the record to this file, not to {output or 'benchmarks/results.jsonl'}",
    )
    return parser
