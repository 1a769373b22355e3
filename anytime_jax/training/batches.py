"""Batches of training runs: read ahead for one run, or read once for all runs of a fleet."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data import batches
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding

# `(config, start, batch_size, rows)` -> iterator over a run's batches of one size from sample
# `start` on; `rows` are those of this process.
ReadBatches = Callable[[Config, int, int, np.ndarray], Iterator[np.ndarray]]

_CACHED_BATCHES = 64  # most recent ones, shared by the runs of a fleet at the same sample


class Batch(NamedTuple):
    """This process's rows of a batch, and the number of rows over all processes."""

    tokens: np.ndarray
    size: int


def iterate_batches(
    config: Config, mesh: Mesh, step: int, sample: int, read_batches: ReadBatches
) -> Iterator[Batch]:
    """Iterates over the batches of the updates after `step`, from window `sample` on."""
    for size, count in config.clock.batches(step):  # the batch size may grow
        read = read_batches(config, sample, size, sharding.local_rows(mesh, size))
        for _ in itertools.count() if count is None else range(count):
            yield Batch(np.asarray(next(read)), size)
        sample += size * (count or 0)


def read_ahead(dataset: DatasetInfo) -> ReadBatches:
    """Returns a `ReadBatches` that prefetches batches in threads."""

    def read(config: Config, start: int, batch_size: int, rows: np.ndarray) -> Iterator[np.ndarray]:
        windows, sizes = _windows(dataset, config), itertools.repeat(batch_size)
        return batches.read_ahead(lambda n, size: windows.batch(n, size, rows), start, sizes)

    return read


def read_once(dataset: DatasetInfo) -> ReadBatches:
    """Returns a `ReadBatches` for all runs of a fleet, with a cache of the latest batches."""
    shared: dict[tuple[int, bool], Windows] = {}

    @functools.lru_cache(maxsize=_CACHED_BATCHES)
    def batch(windows: Windows, start: int, batch_size: int) -> np.ndarray:
        return windows.batch(start, batch_size)

    def read(config: Config, start: int, batch_size: int, rows: np.ndarray) -> Iterator[np.ndarray]:
        order = config.data.seed, config.data.repeat
        if order not in shared:
            shared[order] = _windows(dataset, config)
        for sample in itertools.count(start, batch_size):
            yield batch(shared[order], sample, batch_size)[rows]

    return read


def _windows(dataset: DatasetInfo, config: Config) -> Windows:
    data, length = config.data, config.model.length
    return Windows(dataset, "train", length=length, seed=data.seed, repeat=data.repeat)
