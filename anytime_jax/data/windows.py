"""Batches of token windows as a pure function of (dataset, seed, sample number).

There is no iterator state to save: the number of samples consumed so far is all that a resumed run,
a branch, another number of processes or another batch size needs to see the right samples.

Shape suffixes: B samples of a batch (or of a process's rows of it), W = L + 1 tokens of a window.
"""

from __future__ import annotations

import shlex
from typing import cast

import grain
import numpy as np

from anytime_jax.checks import require_bool
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.token_arrays import TokenReader
from anytime_jax.errors import InputError, RunError

Rows = slice | np.ndarray  # indexes some rows of a batch


class DataExhausted(RunError):
    """The samples have run out and do not repeat."""


def count_windows(info: DatasetInfo, split: str, length: int) -> int:
    """Returns the number of windows of a length in a split; raises an InputError if it has none."""
    if split not in info.splits:
        raise InputError(f"{info.path} has no split {split!r}; it has {sorted(info.splits)}")
    counts = info.splits[split]
    if count := counts.windows(length):
        return count
    if not counts.tokens:
        raise InputError(f'{info.path} has no text in split "{split}"; give a dataset that has')
    raise InputError(
        f'split "{split}" of {info.path} has {counts.tokens:,} tokens, fewer than the '
        f"{length + 1:,} of a window of model.length = {length}; prepare more text, or set a "
        "shorter length"
    )


class Windows:
    """One split of a dataset in the order of a seed: sample number → window.

    Window k is `tokens[k * L : k * L + L + 1]` of the split. Each pass sees every window once.
    Shuffled passes are different permutations, computed index by index (Grain's
    `shuffle(seed).repeat()`); pass p of seed s is pass 0 of seed s + p, so runs to be compared need
    seeds some distance apart.

    Args:
      info: the dataset, from `load_dataset`.
      split: "train" or "validation".
      length: L, in tokens.
      seed: seed of the order, from 0 to 2³² − 1.
      repeat: whether another pass follows the last window; else `DataExhausted` is raised.
      shuffle: False for the stored order in every pass, as in evaluation.
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
        require_bool("repeat", repeat)
        require_bool("shuffle", shuffle)
        self._windows = count_windows(info, split, length)
        if not 0 <= seed < 2**32:
            raise InputError(f"seed {seed} is out of range; give one from 0 to 2**32 - 1")
        self.info = info
        self._name = f'split "{split}" of {info.path}'
        self._length = length
        self._repeat = repeat
        self._reader = TokenReader(info, split)
        order = grain.MapDataset.range(self._windows)
        self._order = (order.shuffle(seed) if shuffle else order).repeat()

    def batch(self, first: int, size: int, rows: Rows = slice(None)) -> np.ndarray:
        """Reads samples `first` to `first + size − 1`, a batch over all processes.

        Args:
          first: number of samples before this batch.
          size: number of samples, over all processes.
          rows: index of the rows of this process; all by default. Others are not read.

        Returns:
          tokens_BxW: int32; row i is sample `first + i`.

        Raises:
          DataExhausted: there are fewer than `first + size` samples.
          RunError: a file is damaged; the message names it.
        """
        if first < 0 or size < 1:
            raise InputError(
                f"batch of {size} samples at {first}; give a size from 1 and samples from 0"
            )
        self._check_end(first, first + size - 1)
        return self.read(np.arange(first, first + size)[rows])

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Reads samples with any numbers, in ascending order, as `batch` does."""
        if len(samples):
            self._check_end(int(samples[0]), int(samples[-1]))
        try:
            return self.read_at(self.positions(samples))
        except RunError as error:
            raise RunError(
                f"samples {samples[0]} to {samples[-1]} of {self._name}: {error}; copy that file "
                "again, or delete the dataset and prepare it again (python -m anytime_jax prepare "
                f"--verify --output={shlex.quote(str(self.info.path))} reads all of it)"
            ) from error

    def positions(self, samples: np.ndarray) -> np.ndarray:
        """Returns the number of the window in the split, k, for each sample."""
        return np.array([cast(int, self._order[int(x)]) for x in samples], np.int64)

    def read_at(self, positions: np.ndarray) -> np.ndarray:
        """Reads windows by their number in the split."""
        return self._reader.read((positions * self._length).tolist(), self._length + 1)

    def _check_end(self, first: int, last: int) -> None:
        if not self._repeat and last >= self._windows:
            raise DataExhausted(
                f"samples {first} to {last} were requested, but {self._name} has {self._windows}; "
                "prepare more text, or set repeat for another pass over it"
            )
