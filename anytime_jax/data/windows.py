"""Batches of token windows as a pure function of (dataset, seed, sample number).

There is no iterator state to save: whoever knows the number of samples consumed so far can go on
from there, with other hosts, another batch size, or in a branch, and sees the right samples.

Shape suffixes: B samples of a batch (or of a host's rows of it), W = L + 1 tokens of a window.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import cast

import grain
import numpy as np

from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.shard_reader import ShardReader
from anytime_jax.errors import InputError, RunError

# More threads only contend for the interpreter; more batches ahead only cost memory.
_PREFETCH = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
# Batches in a stream that has no end of its own.
_ENDLESS = 2**62


class DataExhausted(RunError):
    """The samples have run out, and repeating them was not asked for.

    Attributes:
      sample: number of the first sample of the batch that could not be had.
      available: number of samples there are.
    """

    def __init__(self, message: str, *, sample: int, available: int):
        super().__init__(message)
        self.sample = sample
        self.available = available


class Windows:
    """One split of a dataset in the order of a seed: sample number → window.

    Each pass over the split sees every window once. Shuffled passes are each a permutation of
    their own, computed index by index (Grain's `shuffle(seed).repeat()`), never materialised; pass
    p of seed s is pass 0 of seed s + p, so seeds of runs to compare want some distance.
    """

    def __init__(
        self,
        info: DatasetInfo,
        split: str,
        *,
        length: int,
        seed: int,
        repeat: bool = False,
        shuffle: bool = True,
    ):
        """Opens a split.

        Args:
          info: the dataset, from `load_dataset`.
          split: "train" or "validation".
          length: L, in tokens; it must be the dataset's.
          seed: of the order, from 0 to 2³² − 1.
          repeat: begin another pass when one ends, instead of raising `DataExhausted`.
          shuffle: False for the stored order in every pass, as evaluation wants it.

        Raises:
          InputError: no such split, another length than the stored one, or a seed out of range.
        """
        if not (split in info.splits and info.shards.get(split)):
            raise InputError(f"{info.path} has no split {split!r}; it has {sorted(info.splits)}")
        if length != info.length:
            raise InputError(
                f"length {length} asked of {info.path}, whose windows are cut for length "
                f"{info.length}; ask for that, or prepare the text again with the other length"
            )
        if not 0 <= seed < 2**32:
            raise InputError(f"seed {seed} is out of range; give one from 0 to 2**32 - 1")
        self._path = info.path
        self._name = f'split "{split}" of {info.path}'
        self._windows = info.splits[split].windows
        self._repeat = repeat
        self._shards = ShardReader(info, info.shards[split])
        order = grain.MapDataset.range(self._windows)
        self._order = (order.shuffle(seed) if shuffle else order).repeat()

    @property
    def samples_available(self) -> int | None:
        """Number of samples there are, or None when they repeat without end."""
        return None if self._repeat else self._windows

    def batch(self, n: int, size: int, rows: slice | None = None) -> np.ndarray:
        """Reads samples n to n + size − 1.

        Args:
          n: number of samples before this batch.
          size: number of samples of the batch, over all hosts.
          rows: the rows wanted, such as those of this host; all by default. Others are not read.

        Returns:
          tokens_BxW: int32; row i is sample n + i.

        Raises:
          DataExhausted: there are fewer than n + size samples.
          RunError: a file is damaged; the message names it.
        """
        if n < 0 or size < 1:
            raise InputError(f"batch of {size} samples at {n}; give a size from 1 and n from 0")
        if not self._repeat and n + size > self._windows:
            raise DataExhausted(
                f"samples {n} to {n + size - 1} asked, {self._name} has {self._windows}; "
                "prepare more text, or set repeat to go over it again",
                sample=n,
                available=self._windows,
            )
        samples = range(n, n + size)[slice(None) if rows is None else rows]
        indices = [cast(int, self._order[sample]) for sample in samples]
        try:
            return self._shards.read(indices)
        except RunError as error:
            raise RunError(
                f"samples {n} to {n + size - 1} of {self._name}: {error}; copy that file again, or "
                f"delete the dataset and prepare it again (python -m anytime_jax prepare --verify "
                f"--output={self._path} reads all of it)"
            ) from error


def prefetch_batches(
    windows: Windows, start: int, batch_size: int, rows: slice | None = None
) -> Iterator[np.ndarray]:
    """Iterates over batches, reading ahead in threads that end with the iterator.

    Args:
      windows: the samples.
      start: number of samples before the first batch.
      batch_size: number of samples of a batch, over all hosts.
      rows: as in `Windows.batch`.

    Returns:
      An iterator whose item k is `windows.batch(start + k * batch_size, batch_size, rows)`; where
      that raises, so does the iterator, after all batches before it.
    """

    def read(k: int) -> np.ndarray:
        return windows.batch(start + operator.index(k) * batch_size, batch_size, rows)

    return iter(grain.MapDataset.range(_ENDLESS).map(read).to_iter_dataset(_PREFETCH))
