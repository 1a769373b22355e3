"""Arrays of tokens: each part of a split is a Zarr 3 array, which TensorStore writes and reads.

    train/00003/zarr.json    shape and type, with which any Zarr library can read the part
    train/00003/c/0          an index, and chunks of 16,384 tokens, each with a CRC-32C

A part is written whole by one worker, in a single shard. A reader takes shapes from the dataset's
metadata, not from `zarr.json`.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.data.dataset_info import CHUNK_TOKENS, DatasetInfo, PartInfo
from anytime_jax.errors import RunError
from anytime_jax.storage.failures import shorten_error
from anytime_jax.storage.files import key_value_store, remove_directory

# Cache for chunks, in addition to the indices, which random windows read again and again.
_CACHE_BYTES = 256 * 2**20
_INDEX_BYTES = 32  # at most, for each chunk
_REQUESTS = 128  # concurrent requests to a bucket, each of some 30 ms
_READ_TOKENS = 4_000_000  # tokens that are read at a time from a whole part


def write_part(directory: Path, name: str, tokens: np.ndarray) -> PartInfo:
    """Writes a part of the dataset in a directory; replaces a part that a killed process left.

    Raises a RunError if it cannot be written.
    """
    import tensorstore  # the import takes a quarter of a second, which other commands need not wait

    remove_directory(directory / name, missing_ok=True)
    spec = _spec(directory / name, tokens.size, tokens.dtype) | {"create": True}
    try:
        array = tensorstore.open(spec).result()
        array.write(tokens, can_reference_source_data_indefinitely=True).result()
    except ValueError as error:  # TensorStore raises this for any storage
        raise RunError(f"{directory / name} cannot be written ({shorten_error(error)})") from error
    last = tokens[_last_chunk(tokens.size) :]
    return PartInfo(name, tokens.size, hashlib.sha256(tokens.data).hexdigest(), _short_digest(last))


def read_part(info: DatasetInfo, part: PartInfo) -> Iterator[np.ndarray]:
    """Yields all tokens of a part in order; raises a RunError if it is damaged in any way."""
    import tensorstore

    dtype = np.dtype(info.token_dtype)
    digest = hashlib.sha256()
    try:
        # Without `assume_metadata`, TensorStore also checks `zarr.json`.
        array = tensorstore.open(_spec(info.path / part.name, part.tokens, dtype)).result()
        for start in range(0, part.tokens, _READ_TOKENS):
            tokens = array[start : min(start + _READ_TOKENS, part.tokens)].read().result()
            _check_vocabulary(tokens, info.vocab_size)
            digest.update(tokens.data)
            yield tokens
        if digest.hexdigest() != part.sha256:
            raise ValueError("its tokens belong to another part or dataset")
    except (OSError, ValueError) as error:
        raise RunError(f"{info.path / part.name} is damaged ({shorten_error(error)})") from error


class TokenReader:
    """Reader of tokens of some datasets at any position, for any number of threads.

    The datasets share one cache of chunks. Every chunk that is read is compared with its checksum.
    When a part is first read, its last chunk is compared with the metadata: this detects files that
    were copied from another part or dataset.

    Args:
      infos: the datasets.
      split: the split of every dataset that is read.
    """

    def __init__(self, infos: Sequence[DatasetInfo], split: str):
        import tensorstore

        self._infos, self._parts = infos, [info.parts[split] for info in infos]
        self._starts = [
            [0, *itertools.accumulate(part.tokens for part in parts)] for parts in self._parts
        ]
        chunks = sum(starts[-1] // CHUNK_TOKENS + len(starts) for starts in self._starts)
        limits: dict[str, Any] = {
            "cache_pool": {"total_bytes_limit": _CACHE_BYTES + _INDEX_BYTES * chunks}
        }
        requests = {"limit": _REQUESTS}
        limits |= {"gcs_request_concurrency": requests, "s3_request_concurrency": requests}
        self._context = tensorstore.Context(limits)
        self._open = functools.lru_cache(None)(self._open_part)

    def read(
        self, starts: Sequence[int], size: int, datasets: Sequence[int] | None = None
    ) -> np.ndarray:
        """Reads `size` tokens from each of `starts`, all within the split: int32, one row each.

        `datasets` has the index of each row's dataset; by default every row is of the first
        dataset. TensorStore gets all requests as one batch.

        Raises:
          RunError: some tokens cannot be read or are damaged; the message names the part.
        """
        import tensorstore

        rows = np.empty((len(starts), size), np.int32)
        reads: list[tuple[np.ndarray, tuple[int, int], int, Any]] = []
        # TensorStore sends the requests together when the block ends.
        with tensorstore.Batch() as batch:
            owners = [0] * len(starts) if datasets is None else datasets
            for row, start, dataset in zip(rows, starts, owners, strict=True):
                begins, parts = self._starts[dataset], self._parts[dataset]
                done, number = 0, bisect.bisect_right(begins, start) - 1
                while done < size:
                    first = start + done - begins[number]
                    count = min(size - done, parts[number].tokens - first)
                    place = dataset, number
                    request = self._open(*place).request(first, count, batch)
                    reads.append((row[done : done + count], place, first, request))
                    done, number = done + count, number + 1
        for target, place, first, request in reads:
            try:
                self._open(*place).confirm()
                target[:] = request.result()
            except (OSError, ValueError) as error:
                raise self._error(*place, first, target.size, shorten_error(error)) from error
        if rows.view(np.uint32).max(initial=0) >= min(x.vocab_size for x in self._infos):
            for target, place, first, _ in reads:
                try:
                    _check_vocabulary(target, self._infos[place[0]].vocab_size)
                except ValueError as error:
                    raise self._error(*place, first, target.size, str(error)) from error
        return rows

    def _error(self, dataset: int, number: int, first: int, count: int, reason: str) -> RunError:
        directory = self._infos[dataset].path
        return RunError(
            f"{directory / self._parts[dataset][number].name} tokens {first} to {first + count} "
            f"cannot be read ({reason}); copy that file again, or delete the dataset and prepare "
            "it again (anytime prepare --verify "
            f"--output={shlex.quote(str(directory))} reads all of it)"
        )

    def _open_part(self, dataset: int, number: int) -> _OpenPart:
        return _OpenPart(self._infos[dataset], self._parts[dataset][number], self._context)


class _OpenPart:
    def __init__(self, info: DatasetInfo, part: PartInfo, context: Any):
        import tensorstore

        spec = _spec(info.path / part.name, part.tokens, np.dtype(info.token_dtype))
        # Arrays never change once written, so no request need check for changes.
        spec |= {"assume_metadata": True, "recheck_cached_data": False}
        self._array = tensorstore.open(spec, context=context).result()
        self._digest = part.last_chunk
        self._last: Any = self._array[_last_chunk(part.tokens) :].read()

    def request(self, first: int, count: int, batch: Any) -> Any:
        """Adds a read to a batch of reads; returns its future."""
        return self._array[first : first + count].read(batch=batch)

    def confirm(self) -> None:
        """Raises a ValueError if the last chunk is not the one that was written."""
        last = self._last
        if last is not None:
            if _short_digest(last.result()) != self._digest:
                raise ValueError("its last tokens belong to another part or dataset")
            self._last = None


def _spec(path: Path, tokens: int, dtype: np.dtype) -> dict[str, Any]:
    """The array of a part, as TensorStore describes it."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    checked = [little, {"name": "crc32c"}]
    shard = -(-tokens // CHUNK_TOKENS) * CHUNK_TOKENS
    sharding = {
        "chunk_shape": [CHUNK_TOKENS],
        "codecs": checked,
        "index_codecs": checked,
        "index_location": "start",  # not every server supports ranges that count from the end
    }
    return {
        "driver": "zarr3",
        "kvstore": key_value_store(path),
        "open": True,
        "metadata": {
            "shape": [tokens],
            "data_type": dtype.name,
            "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
        # Otherwise a missing shard would read as zeros, and a chunk of zeros would not be written.
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }


def _last_chunk(tokens: int) -> int:
    """The first token of the last chunk of a part."""
    return (tokens - 1) // CHUNK_TOKENS * CHUNK_TOKENS


def _short_digest(tokens: np.ndarray) -> str:
    return hashlib.sha256(tokens.data).hexdigest()[:16]


def _check_vocabulary(tokens: np.ndarray, size: int) -> None:
    # As unsigned integers, negative ids are too large as well.
    largest = int(tokens.view(f"u{tokens.itemsize}").max())
    if largest >= size:
        raise ValueError(f"token {largest} where the vocabulary has {size} pieces")
