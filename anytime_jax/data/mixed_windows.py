"""Batches from several sources, as a pure function of (datasets, mixture, seed, sample number)."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping

import numpy as np

from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.mixture import Mixture
from anytime_jax.data.windows import Rows, Windows


class MixedWindows:
    """The training splits of sources in the order of a mixture: sample number → window.

    Each source is read in a permutation of its own, which follows from the seed and its tokens, and
    not from its name or place in the mixture. A change of the length begins a new pass of every
    source, in another permutation.

    Args:
      datasets: the dataset of every source, by name.
      seed, repeat: as in `Windows`, for all sources.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetInfo],
        mixture: Mixture,
        *,
        seed: int,
        repeat: bool = False,
    ):
        self._mixture = mixture
        lengths = [stage.length for stage in mixture.stages]
        # How often the length has changed before each stage.
        changes = np.cumsum([0, *(a != b for a, b in itertools.pairwise(lengths))])
        self._changes = changes.tolist()

        def open_windows(source: str, length: int, changes: int) -> Windows:
            info = datasets[source]
            order = order_seed(seed, info.fingerprint, changes)
            return Windows(info, "train", length=length, seed=order, repeat=repeat)

        self._open = functools.lru_cache(None)(open_windows)

    def batch(self, first: int, size: int, rows: Rows = slice(None)) -> np.ndarray:
        """Reads samples `first` to `first + size − 1`, as `Windows.batch` does.

        They are all of one stage.
        """
        samples = np.arange(first, first + size)[rows]
        number, sources, indices = self._mixture.locate(samples)
        stage = self._mixture.stages[number]
        tokens_BxW = np.empty((len(samples), stage.length + 1), np.int32)
        for i, source in enumerate(stage.weights):
            if (is_from := sources == i).any():
                windows = self._open(source, stage.length, self._changes[number])
                tokens_BxW[is_from] = windows.read(indices[is_from])
        return tokens_BxW


def order_seed(seed: int, fingerprint: str, changes: int) -> int:
    """Returns the seed of a source's order, after a number of changes of the length."""
    text = f"{seed} {fingerprint} {changes}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
