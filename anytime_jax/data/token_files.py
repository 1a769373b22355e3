"""Token files: the tokens of a part of a split, with a checksum for each block.

    train-00003-of-00018.tokens = tokens (little-endian) | CRC-32C of each 16 KiB of them (uint32)

`np.memmap(path, "<u2", shape=(tokens,))` reads the tokens, without the checksums.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
from pathlib import Path

import google_crc32c
import numpy as np

from anytime_jax.atomic import atomic_write
from anytime_jax.data.dataset import BLOCK_BYTES, DatasetInfo, TokenFileInfo, token_file_size
from anytime_jax.errors import RunError
from anytime_jax.storage.paths import bucket_errors, is_remote
from anytime_jax.storage.shard_cache import CachedFile

# Files that one reader holds open: fewer than a process may. Those of buckets are not.
_OPEN_FILES = 128


def write_token_file(
    path: Path, tokens: memoryview, dtype: np.dtype, scratch: Path
) -> TokenFileInfo:
    """Writes the bytes of tokens of a type; the temporary file is in `scratch`."""
    blocks = range(0, len(tokens), BLOCK_BYTES)
    checksums = [google_crc32c.value(bytes(tokens[i : i + BLOCK_BYTES])) for i in blocks]
    trailer = np.array(checksums, "<u4").tobytes()
    with atomic_write(path, scratch) as temporary, open(temporary, "wb") as file:
        file.write(tokens)
        file.write(trailer)
    return TokenFileInfo(path.name, len(tokens) // dtype.itemsize, google_crc32c.value(trailer))


class _LocalFile:
    """A local file; closed when it is no longer referenced."""

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self):
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._descriptor, stop - start, start)

    def discard_copy(self) -> bool:
        return False


class _TokenFile:
    """A token file and the checksums of its blocks."""

    def __init__(self, path: Path, file: TokenFileInfo, dtype: np.dtype):
        self._dtype, self._size = dtype, file.tokens * dtype.itemsize
        end = token_file_size(file.tokens, dtype)
        self._file = CachedFile(path, end, file.checksum) if is_remote(path) else _LocalFile(path)
        trailer = self._file.read(self._size, end)
        if google_crc32c.value(trailer) != file.checksum and self._file.discard_copy():
            trailer = self._file.read(self._size, end)
        if google_crc32c.value(trailer) != file.checksum:
            raise ValueError("its checksums are not those of this dataset")
        self._checksums = np.frombuffer(trailer, "<u4")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads tokens, and compares the checksums of the blocks that hold them."""
        size = self._dtype.itemsize
        first, last = start * size // BLOCK_BYTES, -(-stop * size // BLOCK_BYTES)
        offset, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self._size)
        content, expected = self._file.read(offset, end), self._checksums[first:last]
        if not _is_intact(content, expected) and self._file.discard_copy():
            content = self._file.read(offset, end)
        if not _is_intact(content, expected):
            raise ValueError("a checksum does not match")
        before = offset // size
        return np.frombuffer(content, self._dtype)[start - before : stop - before]


def _is_intact(content: bytes, checksums: np.ndarray) -> bool:
    blocks = range(0, len(checksums) * BLOCK_BYTES, BLOCK_BYTES)
    actual = (google_crc32c.value(content[i : i + BLOCK_BYTES]) for i in blocks)
    return all(x == expected for x, expected in zip(actual, checksums, strict=True))


class TokenReader:
    """Reader of the tokens of one split, numbered from 0, safe to use from several threads.

    A file is opened when it is first read, and every block is compared with its checksum. Those of
    a bucket are read through the cache of `storage.shard_cache`.
    """

    def __init__(self, info: DatasetInfo, split: str):
        self._info = info
        self._dtype = np.dtype(info.token_dtype).newbyteorder("<")
        self._files = info.files[split]
        self._starts = [0, *itertools.accumulate(file.tokens for file in self._files)]
        most = None if is_remote(info.path) else _OPEN_FILES
        self._open = functools.lru_cache(most)(self._open_file)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads tokens `start` to `stop`, which must be in the split, in the stored type.

        Raises:
          RunError: they cannot be read, or are damaged; the message names the file.
        """
        pieces = []
        number = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[number], min(stop, self._starts[number + 1])
            pieces.append(self._read_file(number, start - first, end - first))
            start, number = end, number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _read_file(self, number: int, start: int, stop: int) -> np.ndarray:
        try:
            tokens = self._open(number).read(start, stop)
            # As unsigned, negative ids are too large as well.
            largest, size = int(tokens.view(f"u{tokens.itemsize}").max()), self._info.vocab_size
            if largest >= size:
                raise ValueError(f"token {largest} where the vocabulary has {size} pieces")
            return tokens
        except (OSError, ValueError, *bucket_errors()) as error:
            path = self._info.path / self._files[number].name
            reason = getattr(error, "strerror", None) or error
            raise RunError(f"{path} tokens {start} to {stop} cannot be read ({reason})") from error

    def _open_file(self, number: int) -> _TokenFile:
        file = self._files[number]
        return _TokenFile(self._info.path / file.name, file, self._dtype)
