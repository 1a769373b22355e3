"""What the benchmarks share in how they measure: the models, tokens, timing in turn, the parser.

A machine's speed drifts while one watches. What is compared is therefore timed in turn, A B A B,
and the median is taken of each; every timing goes into the record, and how busy the machine was.
"""

import argparse
import runpy
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from anytime_jax.config import schema as config_lib
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.errors import InputError
from benchmarks import record

REPOSITORY = Path(__file__).resolve().parents[1]
MODELS = {"quickstart": "quickstart", "150m": "150m_inv_sqrt", "300m": "300m_inv_sqrt"}
MODEL_HELP = "quickstart, 150m, 300m or a configuration file"

Name = TypeVar("Name", bound=Hashable)


def find_file(name: str) -> Path:
    """Returns the configuration file of a model.

    Args:
      name: a key of `MODELS`, or the path of a configuration file.

    Raises:
      InputError: if there is no such file.
    """
    path = REPOSITORY / "configs" / f"{MODELS[name]}.py" if name in MODELS else Path(name)
    if not path.is_file():
        known = ", ".join(MODELS)
        raise InputError(f"the model {name!r} is neither {known} nor a configuration file")
    return path.absolute()


def load_config(name: str, **changes: Any) -> Config:
    """Returns the checked configuration of a model.

    Args:
      name: as in `find_file`.
      **changes: settings to exchange; of a section, a dictionary of those that change.
    """
    source = runpy.run_path(str(find_file(name)))["get_config"]().to_dict()
    for key, value in changes.items():
        source[key] = {**source[key], **value} if isinstance(value, dict) else value
    return config_lib.build(source)


def fit(info: DatasetInfo) -> dict[str, int]:
    """Returns the settings of a model that come from the dataset it is given."""
    return {
        "length": info.length,
        "vocab_size": info.vocab_size,
        "embedding_rows": info.vocab_size,
    }


def random_tokens(config: Config, batches: int = 1) -> np.ndarray:
    """Returns batches of random windows, int32 of shape [batches, batch_size, length + 1]."""
    shape = (batches, config.batch_size, config.model.length + 1)
    return np.random.default_rng(0).integers(0, config.model.vocab_size, shape, np.int32)


def repeat(work: Callable[[], Any], count: int = 1) -> float:
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


def in_turn(blocks: Mapping[Name, Callable[[], float]], rounds: int) -> dict[Name, list[float]]:
    """Returns the seconds that each block gives, every block once a round.

    Args:
      blocks: each times itself and returns seconds; the first round, which compiles, is not kept.
      rounds: that are kept.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in blocks}
    for i in range(rounds + 1):
        for name, block in blocks.items():
            spent = block()
            if i > 0:
                seconds[name].append(spent)
    return seconds


def medians(seconds: Mapping[Name, Sequence[float]]) -> dict[Name, float]:
    """Returns the median of each block."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def in_ms(times: Sequence[float]) -> dict[str, float]:
    """Returns the columns of a table that say what some seconds were."""
    found = {"median_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times)}
    return {name: record.rounded(1e3 * value) for name, value in found.items()}


def make_parser(
    name: str, about: str | None, *, steps: int | None = None, rounds: int | None = None
) -> argparse.ArgumentParser:
    """Returns a parser with the options that benchmarks share.

    Args:
      name: of the benchmark.
      about: what `--help` prints.
      steps: calls in a block, if not given; without it, there is no such option.
      rounds: of blocks in turn, if not given; without it, there is no such option.
    """
    parser = argparse.ArgumentParser(f"python -m benchmarks.{name}", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if steps:
        help_text = f"calls in a block (default {steps})"
        parser.add_argument("--steps", type=_count, default=steps, help=help_text)
    if rounds:
        help_text = f"of each kind, in turns, after a first one (default {rounds})"
        parser.add_argument("--rounds", type=_count, default=rounds, help=help_text)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the record here, not to benchmarks/results/DATE-NAME.json",
    )
    return parser


def _count(given: str) -> int:
    if not (given.isdecimal() and int(given) > 0):
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number from 1")
    return int(given)
