"""Batches of a training run, read ahead."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.batches import read_ahead
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding


class Batch(NamedTuple):
    """This process's rows of a batch, and the number of rows over all processes."""

    tokens: np.ndarray
    size: int


def iterate_batches(
    config: Config, mesh: Mesh, dataset: DatasetInfo, step: int, sample: int
) -> Iterator[Batch]:
    """Iterates over the batches of the updates after `step`, from window `sample` on."""
    data, length = config.data, config.model.length
    windows = Windows(dataset, "train", length=length, seed=data.seed, repeat=data.repeat)

    def read(first: int, size: int) -> Batch:
        return Batch(windows.batch(first, size, sharding.local_rows(mesh, size)), size)

    sizes = itertools.chain.from_iterable(  # the batch size may grow
        itertools.repeat(size) if count is None else itertools.repeat(size, count)
        for size, count in config.clock.batches(step)
    )
    return read_ahead(read, sample, sizes)
