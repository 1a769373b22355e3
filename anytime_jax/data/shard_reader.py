"""The stored windows of a split, by their place in it, and what to say where one is damaged.

Nothing is read but the files that the dataset's record names: none of TFDS's own descriptions.

Shape suffixes: B windows, W = L + 1 tokens of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from tensorflow_datasets.proto import tf_example_pb2

from anytime_jax.data.dataset import DatasetInfo, ShardInfo
from anytime_jax.data.preparation_jobs import FEATURE_NAME
from anytime_jax.errors import RunError

# Windows of a file from which on ArrayRecord's batched read is the faster one: of windows of 1,024
# tokens, batches of 8 take half the time one by one, and batches of 64 two thirds of it together.
_BATCHED_WINDOWS = 32


class ShardReader:
    """Some shards of a dataset, their windows numbered from 0 in order."""

    def __init__(self, info: DatasetInfo, shards: Sequence[ShardInfo]):
        """Takes the shards; each is opened when it is first read."""
        self._info = info
        self._shards = shards
        self._ends = list(itertools.accumulate(shard.windows for shard in shards))
        self._dtype = np.dtype(info.token_dtype)
        # As ArrayRecord wants to be told which records of a file: so it opens none to count them.
        files = [f"{info.path / shard.name}[0:{shard.windows}]" for shard in shards]
        self._records = ArrayRecordDataSource(files)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        """Reads some windows.

        Args:
          indices: which.

        Returns:
          tokens_BxW: int32.

        Raises:
          RunError: one of them cannot be read, or is not what was written; it names the file.
        """
        try:
            return self._read(indices)
        # ArrayRecord raises RuntimeError, IndexError and ValueError for what is damaged.
        except Exception as error:
            raise self._damage(indices, error) from error

    def _read(self, indices: Sequence[int]) -> np.ndarray:
        tokens_BxW = np.empty((len(indices), self._info.length + 1), np.int32)
        for row, record in zip(tokens_BxW, self._fetch(indices), strict=True):
            example = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
            example.ParseFromString(record)
            feature = example.features.feature[FEATURE_NAME]
            tokens = np.frombuffer(feature.bytes_list.value[0], self._dtype)
            if tokens.shape != row.shape:
                raise ValueError(f"{tokens.size} tokens where a window has {row.size}")
            row[:] = tokens
        pieces = self._info.vocab_size
        # Unsigned, what is negative is too large as well.
        most = int(tokens_BxW.view(np.uint32).max(initial=0))
        if most >= pieces:
            raise ValueError(f"token {most} where the vocabulary has {pieces} pieces")
        return tokens_BxW

    def _fetch(self, indices: Sequence[int]) -> Sequence[bytes]:
        # The batched read starts a thread for every file that it touches, which pays off only where
        # each thread has many windows to read.
        if len(indices) >= _BATCHED_WINDOWS * len(self._shards):
            return self._records.__getitems__(indices)
        return [self._records[index] for index in indices]

    def _damage(self, indices: Sequence[int], error: Exception) -> RunError:
        """Says which file it is, by reading one by one what could not be read together."""
        culprit = indices[0]
        for index in indices:
            try:
                self._read([index])
            except Exception as alone:
                culprit, error = index, alone
                break
        number = next(k for k, end in enumerate(self._ends) if culprit < end)
        place = culprit - self._ends[number] + self._shards[number].windows
        reason = " ".join(str(error).split()) or type(error).__name__
        return RunError(
            f"{self._info.path / self._shards[number].name} window {place} cannot be read "
            f"({reason})"
        )
