"""The two jobs of preparation that worker processes do: text to tokens, tokens to windows.

Each job writes its file completely or not at all, then a small JSON record: a record means done.
What a job writes depends on its arguments alone, never on which worker does it or when.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from anytime_jax.atomic import atomic_write
from anytime_jax.data.sources import SPLITS, Part, split_of
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary

DATASET_NAME = "token_windows"
FEATURE_NAME = "tokens"
# Documents per call of the tokenizer: enough that the call costs nothing, few enough to hold.
_BATCH_DOCUMENTS = 256


@functools.lru_cache(maxsize=1)
def _load_once(path: Path, sha256: str) -> Vocabulary:
    """The vocabulary, kept from job to job; the hash tells models apart that had one path."""
    del sha256
    return load_vocabulary(path)


@dataclasses.dataclass(frozen=True)
class TokenJob:
    """Tokenise one part into a flat token file for each split it has documents of.

    Attributes:
      part: the text.
      index: its place among the parts.
      folder: where the token files and the record go.
      vocabulary_path: the vocabulary's file.
      vocabulary_sha256: its hash.
      scratch: where temporary files go; by default the same folder.
    """

    part: Part
    index: int
    folder: Path
    vocabulary_path: Path
    vocabulary_sha256: str
    scratch: Path | None = None

    @property
    def record_path(self) -> Path:
        """The record that says the job is done."""
        return self.folder / f"{self.index:06d}.json"

    def token_path(self, split: str) -> Path:
        """The flat file of this part's tokens of a split."""
        return self.folder / f"{self.index:06d}.{split}"

    def finished(self) -> dict[str, Any] | None:
        """The record of this very job from an earlier run, if it was done."""
        record = read_record(self.record_path) or {}
        # Another part may have had this index, when the input has changed since.
        asked = {"part": self.part.identity, "vocabulary": self.vocabulary_sha256}
        whole = all(record.get(name) == value for name, value in asked.items()) and all(
            _size(self.token_path(split)) == record[split]["bytes"] for split in SPLITS
        )
        return record if whole else None

    def __call__(self) -> dict[str, Any]:
        """Does the job; returns its record: what it was, and what there is of each split."""
        vocabulary = _load_once(self.vocabulary_path, self.vocabulary_sha256)
        counts = {split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}
        self.record_path.unlink(missing_ok=True)
        with (
            atomic_write(self.token_path(SPLITS[0]), self.scratch) as first,
            atomic_write(self.token_path(SPLITS[1]), self.scratch) as second,
            open(first, "wb") as first_file,
            open(second, "wb") as second_file,
        ):
            files: dict[str, BinaryIO] = dict(zip(SPLITS, (first_file, second_file), strict=True))
            for texts in _batches(self.part.documents(), _BATCH_DOCUMENTS):
                for text, ids in zip(texts, vocabulary.encode(texts), strict=True):
                    split = split_of(text, self.part.validation_fraction)
                    tokens = np.append(ids, vocabulary.eos_id).astype(vocabulary.token_dtype)
                    files[split].write(tokens.tobytes())
                    counts[split]["documents"] += 1
                    counts[split]["tokens"] += tokens.size
                    counts[split]["bytes"] += tokens.nbytes
        record = {
            "part": self.part.identity,
            "vocabulary": self.vocabulary_sha256,
            **counts,
        }
        write_record(self.record_path, record, self.scratch)
        return record


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """Write some windows of a split, in order, as one array_record file that TFDS reads.

    Attributes:
      split: its name.
      index: the shard's place among `shards`.
      shards: how many there are.
      first: the first window.
      windows: how many to write.
      length: L; window k is `tokens[k * L : k * L + L + 1]` of the split.
      dtype: of the tokens.
      token_files: (path, tokens) of each token file of the split, in order.
      output: the dataset's directory.
      folder: where the record goes.
      scratch: where temporary files go; by default the same folder.
    """

    split: str
    index: int
    shards: int
    first: int
    windows: int
    length: int
    dtype: str
    token_files: tuple[tuple[Path, int], ...]
    output: Path
    folder: Path
    scratch: Path | None = None

    @property
    def name(self) -> str:
        """The file's name, as TFDS wants it."""
        shard = f"{self.index:05d}-of-{self.shards:05d}"
        return f"{DATASET_NAME}-{self.split}.array_record-{shard}"

    @property
    def record_path(self) -> Path:
        """The record that says the job is done."""
        return self.folder / f"{self.name}.json"

    def finished(self) -> dict[str, Any] | None:
        """The record of this job from an earlier run, if it was done."""
        record = read_record(self.record_path)
        return record if record and record["bytes"] == _size(self.output / self.name) else None

    def __call__(self) -> dict[str, Any]:
        """Does the job; returns {"name", "bytes", "windows", "sha256"}, a `ShardInfo`."""
        from array_record.python.array_record_module import ArrayRecordWriter

        tokens = self._read_tokens()
        features = window_features(self.length, self.dtype)
        with atomic_write(self.output / self.name, self.scratch or self.folder) as temporary:
            # Groups of one: a random read then decompresses the one window it wants.
            writer = ArrayRecordWriter(str(temporary), "group_size:1")
            for start in range(0, self.windows * self.length, self.length):
                window = tokens[start : start + self.length + 1]
                writer.write(features.serialize_example({FEATURE_NAME: window}))
            writer.close()
            size = temporary.stat().st_size
        record = {
            "name": self.name,
            "bytes": size,
            "windows": self.windows,
            "sha256": hashlib.sha256(token_bytes(tokens)).hexdigest(),
        }
        write_record(self.record_path, record, self.scratch)
        return record

    def _read_tokens(self) -> np.ndarray:
        """The split's tokens from the first window's first to the last window's last."""
        start = self.first * self.length
        tokens = np.empty(self.windows * self.length + 1, self.dtype)
        offset = -start  # of the file's first token in `tokens`
        for path, count in self.token_files:
            low, high = max(offset, 0), min(offset + count, len(tokens))
            if low < high:
                file = np.memmap(path, self.dtype, mode="r", shape=(count,))
                tokens[low:high] = file[low - offset : high - offset]
            offset += count
        return tokens


def window_features(length: int, dtype: str) -> Any:
    """The TFDS features of a window.

    Args:
      length: L.
      dtype: of the tokens.

    Returns:
      A `tfds.features.FeaturesDict` with one tensor of shape (L + 1,).
    """
    import tensorflow_datasets as tfds  # most of a second: not for those who only tokenise

    # As bytes, which NumPy takes over whole; a list of integers is parsed one by one.
    encoding = tfds.features.Encoding.BYTES
    tensor = tfds.features.Tensor(shape=(length + 1,), dtype=np.dtype(dtype), encoding=encoding)
    return tfds.features.FeaturesDict({FEATURE_NAME: tensor})


def token_bytes(tokens: np.ndarray) -> bytes:
    """Returns tokens as they are hashed: little-endian, whatever the machine."""
    return tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes()


def read_record(path: Path) -> dict[str, Any] | None:
    """Reads a JSON record, if it is there and undamaged."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: dict[str, Any], work: Path | None = None) -> None:
    """Writes a JSON record, completely or not at all."""
    with atomic_write(path, work) as temporary:
        temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + os.linesep, "utf-8")


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _batches(texts: Iterator[str], size: int) -> Iterator[Sequence[str]]:
    while batch := list(itertools.islice(texts, size)):
        yield batch
