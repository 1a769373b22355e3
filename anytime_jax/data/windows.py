"""Batches of token windows as a pure function of (datasets, mixture, seed, sample number).

There is no iterator state to save. A resumed run, a branch, or a run with another number of
processes or another batch size goes on from the number of samples consumed so far.

Shape suffixes: B samples of a batch, or those that one process reads; W = L + 1 tokens of a window.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import cast

import grain
import numpy as np

from anytime_jax.checks import require_bool
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.mixture import DataStage, Mixture, sample_numbers
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


def order_seed(seed: int, info: DatasetInfo, changes: int) -> int:
    """Returns the seed of a source's order in a run, after a number of changes of the length.

    The seed depends on the run's seed and on the tokens of the source, not on the name or the
    place of the source.
    """
    text = f"{seed} {info.fingerprint} {changes}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


class Windows:
    """One split of some datasets in the order of a mixture: sample number → window.

    Window k of a dataset is `tokens[k * L : k * L + L + 1]`. Each pass over a dataset sees every
    window once. Shuffled passes are different permutations, computed index by index (Grain's
    `shuffle(seed).repeat()`). Pass p with seed s is the same as pass 0 with seed s + p. A change of
    the length begins a new pass over every dataset, in another permutation.

    Args:
      datasets: the dataset of every source of the mixture, by name.
      mixture: the order of the sources, and the length of the windows.
      seed: seed of the orders, from 0 to 2³² − 1.
      split: "train" or "validation".
      repeat: whether another pass follows the last window; if not, `DataExhausted` is raised.
      shuffle: whether the windows are shuffled; if not, every pass has the stored order.
      order_seed: function of `seed`, a dataset and the number of changes of the length, which
        returns the seed of the dataset's order.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetInfo],
        mixture: Mixture,
        *,
        seed: int,
        split: str = "train",
        repeat: bool = False,
        shuffle: bool = True,
        order_seed: Callable[[int, DatasetInfo, int], int] = order_seed,
    ):
        require_bool("repeat", repeat)
        require_bool("shuffle", shuffle)
        if not 0 <= seed < 2**32:
            raise InputError(f"seed {seed} is out of range; give one from 0 to 2**32 - 1")
        self._infos, self._names = list(datasets.values()), list(datasets)
        self._mixture, self._split, self._repeat = mixture, split, repeat
        lengths = [stage.length for stage in mixture.stages]
        # How often the length has changed before each stage.
        changes = np.cumsum([0, *(a != b for a, b in itertools.pairwise(lengths))])
        self._changes = changes.tolist()
        self._counts = functools.lru_cache(None)(
            lambda dataset, length: count_windows(self._infos[dataset], split, length)
        )
        for stage in mixture.stages:
            for name in stage.weights:
                self._counts(self._names.index(name), stage.length)
        self._reader = TokenReader(self._infos, split)

        def open_order(dataset: int, length: int, changes: int) -> grain.MapDataset:
            order = grain.MapDataset.range(self._counts(dataset, length))
            if shuffle:
                order = order.shuffle(order_seed(seed, self._infos[dataset], changes))
            return order.repeat()

        self._order = functools.lru_cache(None)(open_order)

    @classmethod
    def from_dataset(
        cls,
        info: DatasetInfo,
        split: str,
        *,
        length: int,
        seed: int,
        repeat: bool = False,
        shuffle: bool = True,
    ) -> Windows:
        """Returns the windows of one dataset, in the order of `seed` itself, without `order_seed`.

        Two seeds that are compared should be some distance apart, as pass p of a seed is the first
        pass of seed + p.
        """
        return cls(
            {"": info},
            Mixture([DataStage(0, length, {"": 1})]),
            seed=seed,
            split=split,
            repeat=repeat,
            shuffle=shuffle,
            order_seed=lambda seed, info, changes: seed,
        )

    def batch(self, first: int, size: int, rows: Rows = slice(None)) -> np.ndarray:
        """Reads the `size` samples that follow the first `first` ones, all of one stage.

        Args:
          first: number of samples read before this batch.
          size: number of samples, over all processes.
          rows: index of the rows to read, such as those of this process; all by default.

        Returns:
          tokens_BxW: int32; row i is sample `first + i`, if the mixture skips none.

        Raises:
          DataExhausted: a dataset has too few windows for the batch.
          RunError: a file is damaged; the message names it.
        """
        if first < 0 or size < 1:
            raise InputError(
                f"batch of {size} samples at {first}; give a size from 1 and samples from 0"
            )
        samples = sample_numbers(np.arange(first, first + size), self._mixture.skip)
        number = self._mixture.stage_of(int(samples[0]))
        length = self._mixture.stages[number].length
        if not self._repeat:
            self._check_end(int(samples[-1]) + 1, number)
        samples = samples[rows]
        if not len(samples):
            return np.empty((0, length + 1), np.int32)
        datasets, positions = self.locate(samples)
        try:
            return self.read(datasets, positions, length)
        except RunError as error:
            raise RunError(f"samples {samples[0]} to {samples[-1]}: {error}") from error

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the index of the dataset and the number of the window of samples of one stage."""
        number, sources, indices = self._mixture.locate(samples)
        stage = self._mixture.stages[number]
        datasets = np.array([self._names.index(name) for name in stage.weights])[sources]
        orders = {
            x: self._order(x, stage.length, self._changes[number]) for x in set(datasets.tolist())
        }
        positions = [
            cast(int, orders[x][i])
            for x, i in zip(datasets.tolist(), indices.tolist(), strict=True)
        ]
        return datasets, np.array(positions, np.int64)

    def read(self, datasets: np.ndarray, positions: np.ndarray, length: int) -> np.ndarray:
        """Reads windows, given the index of the dataset and the number of the window of each."""
        return self._reader.read((positions * length).tolist(), length + 1, datasets.tolist())

    def _check_end(self, samples: int, number: int) -> None:
        """Raises DataExhausted if a dataset has too few windows for a number of samples."""
        length = self._mixture.stages[number].length
        for name, count in self._mixture.counts(samples, number).items():
            dataset = self._names.index(name)
            if count > (available := self._counts(dataset, length)):
                raise DataExhausted(
                    f'{count} windows of {length} tokens were requested of split "{self._split}" '
                    f"of {self._infos[dataset].path}, which has {available}; prepare more text, or "
                    "set repeat for another pass over it"
                )
