"""Token files of other trainers, on disks and at addresses: their headers and their tokens.

| file | header | type of a token |
| --- | --- | --- |
| nanoGPT's `.bin`, OLMo's `.npy` | none | named by the user |
| llm.c's and modded-nanogpt's `.bin` | 256 int32: magic, version, number of tokens | by version |
| NumPy's `.npy` | type and shape | in the header |
| Megatron's `.bin` | the `.idx` beside it, which also has the documents | in the index |

All numbers are little-endian, unless the header of NumPy says otherwise.
"""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from anytime_jax.corpus.document_files import open_file
from anytime_jax.corpus.source_interface import reading_error
from anytime_jax.errors import InputError
from anytime_jax.formatting import count_noun

INDEX_SUFFIX = ".idx"
TOKEN_SUFFIXES = (".bin", ".npy", INDEX_SUFFIX)
STRETCH_TOKENS = 2**24  # that are copied at once; also the most of one document

_LLM_C_TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_LLM_C_BYTES = 256 * 4
_NUMPY_MAGIC = b"\x93NUMPY"
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Magic, version, code of the type, and the numbers of sequences and of ends of documents.
_MEGATRON_HEADER = np.dtype(
    [("magic", "S9"), ("version", "<u8"), ("code", "u1"), ("counts", "<u8", 2)]
)
_SEARCH_TOKENS = 2**16  # that are read at once to find the end of a document


class TokenFile(NamedTuple):
    """A file of tokens.

    Attributes:
      path: the file, or Megatron's index of it.
      data: the file that has the tokens.
      dtype: type of a token, as NumPy spells it.
      offset: bytes before the first token.
      tokens: number of tokens.
      sequences: number of sequences of an index.
      documents: number of documents of an index; 0 if special tokens tell the documents apart.
    """

    path: str
    data: str
    dtype: str
    offset: int
    tokens: int
    sequences: int = 0
    documents: int = 0

    def divide(self) -> list[Stretch]:
        """Returns stretches of some `STRETCH_TOKENS`, of an index with equally many documents."""
        count, length = -(-self.tokens // STRETCH_TOKENS), self.documents or self.tokens
        return [Stretch(self, length * i // count, length * (i + 1) // count) for i in range(count)]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the tokens from `start` to `stop`."""
        dtype = np.dtype(self.dtype)
        return _read(self.data, self.offset + start * dtype.itemsize, dtype, stop - start)


class Stretch(NamedTuple):
    """The documents of a file that begin after token `start` and not after `stop`.

    The document at token 0 is of the first stretch. Of a file with an index, `start` and `stop` are
    numbers of documents.
    """

    file: TokenFile
    start: int
    stop: int

    def read(self, delimiters: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
        """Reads the tokens, of the file's own type, and where an index says that documents begin.

        `delimiters` are the ids that begin and end documents. Raises an InputError if there is none
        where a document has to end.
        """
        if self.file.documents:
            return self._read_indexed()
        begin, end = (self._find_begin(x, delimiters) for x in (self.start, self.stop))
        tokens = self.file.read(begin, end)
        if not self.start and not np.isin(tokens, [*delimiters]).any():
            raise self._no_end(0, tokens.size)
        return tokens, np.array([], int)

    def _find_begin(self, at: int, delimiters: Collection[int]) -> int:
        """Returns where the first document begins after token `at`, or 0 for 0."""
        if not at:
            return 0
        end = min(at + STRETCH_TOKENS, self.file.tokens)
        for start in range(at, end, _SEARCH_TOKENS):
            tokens = self.file.read(start, min(start + _SEARCH_TOKENS, end))
            found = np.flatnonzero(np.isin(tokens, [*delimiters]))
            if found.size:
                return start + int(found[0]) + 1
        if end < self.file.tokens:
            raise self._no_end(at, end - at)
        return end

    def _no_end(self, at: int, count: int) -> InputError:
        return InputError(
            f"{self.file.path} has no end of text in {count_noun(count, 'token')} from token "
            f"{at:,} on: give its vocabulary, --end-of-text and --dtype"
        )

    def _read_indexed(self) -> tuple[np.ndarray, np.ndarray]:
        path, sequences = self.file.path, self.file.sequences
        lengths_at = _MEGATRON_HEADER.itemsize
        places_at = lengths_at + 4 * sequences
        ends_at = places_at + 8 * sequences
        ends = _read(path, ends_at + 8 * self.start, "<i8", self.stop - self.start + 1)
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        if (np.diff(ends) < 0).any() or first < 0 or first + count > sequences:
            raise InputError(f"{path} is damaged: its documents are not in order")
        lengths = _read(path, lengths_at + 4 * first, "<i4", count)
        places = _read(path, places_at + 8 * first, "<i8", count)
        begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        itemsize = np.dtype(self.file.dtype).itemsize
        start = int(places[0]) // itemsize if count else 0
        if (lengths < 0).any() or not np.array_equal(places, (start + begins[:-1]) * itemsize):
            raise InputError(f"{path} has sequences that do not follow each other in the file")
        return self.file.read(start, start + int(begins[-1])), begins[ends - first]


def open_tokens(path: str, dtype: str | None) -> TokenFile:
    """Reads the header of a file of tokens, whose type is `dtype` if the file does not say it.

    Raises an InputError if the file has not the size that its header or its type asks for, or if
    nothing says its type.
    """
    size = _size(path)
    head = _read(path, 0, "u1", min(size, _LLM_C_BYTES)).tobytes()
    if path.lower().endswith(INDEX_SUFFIX):
        return _open_index(path, size, head)
    magic, version, tokens = np.frombuffer(head.ljust(12, b"\0")[:12], "<i4").tolist()
    if head.startswith(_NUMPY_MAGIC):
        file = _open_numpy(path, head)
    elif (magic, version) in _LLM_C_TYPES:
        file = TokenFile(path, path, _LLM_C_TYPES[magic, version], _LLM_C_BYTES, tokens)
    elif dtype is None:
        raise InputError(
            f"{path} has no header that is known (it begins with {magic} and {version}): give the "
            "type of its tokens, such as --dtype=uint16, or the .idx as the input if it has one"
        )
    else:
        file = TokenFile(path, path, np.dtype(dtype).str, 0, size // np.dtype(dtype).itemsize)
    if dtype is not None and np.dtype(file.dtype) != np.dtype(dtype):
        name = np.dtype(file.dtype).name
        raise InputError(f"--dtype={dtype}: the header of {path} says {name}: leave the option out")
    return _check_size(file, size)


def _open_numpy(path: str, head: bytes) -> TokenFile:
    content = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(content)
        if dtype.kind not in "iu" or len(shape) != 1:
            raise ValueError(f"an array of {dtype} of shape {shape}, where ids have one axis")
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        raise reading_error(path, error) from error
    return TokenFile(path, path, dtype.str, content.tell(), shape[0])


def _open_index(path: str, size: int, head: bytes) -> TokenFile:
    data = path[: -len(INDEX_SUFFIX)] + ".bin"
    try:
        header = np.frombuffer(head, _MEGATRON_HEADER, 1)[0]
        # NumPy leaves out the zeros at the end of bytes.
        if header["magic"] != _MEGATRON_MAGIC.rstrip(b"\0") or header["version"] != 1:
            raise ValueError("it has no header of Megatron's indexed datasets, version 1")
        if int(header["code"]) not in _MEGATRON_TYPES:
            raise ValueError(f"its type has the code {header['code']}, which is of no integers")
        sequences, ends = map(int, header["counts"])
        least = _MEGATRON_HEADER.itemsize + 12 * sequences + 8 * ends
        if size not in (least, least + sequences):  # with a mode for every sequence
            raise ValueError(f"{size:,} bytes, where its header asks for {least:,}")
        outer = [int(_read(path, least - 8 * i, "<i8", 1)[0]) for i in (ends, 1) if ends]
        if (outer or [0, 0]) != [0, sequences]:
            raise ValueError(
                f"its documents begin and end at sequences {outer}, not {[0, sequences]}"
            )
    except ValueError as error:
        raise reading_error(path, error) from error
    tokens, dtype = 0, np.dtype(_MEGATRON_TYPES[int(header["code"])])
    if sequences:
        last_length = _read(path, _MEGATRON_HEADER.itemsize + 4 * (sequences - 1), "<i4", 1)
        last_place = _read(path, _MEGATRON_HEADER.itemsize + 12 * sequences - 8, "<i8", 1)
        tokens = int(last_place[0]) // dtype.itemsize + int(last_length[0])
    file = TokenFile(path, data, dtype.str, 0, tokens, sequences, ends - 1)
    return _check_size(file, _size(data))


def _check_size(file: TokenFile, size: int) -> TokenFile:
    itemsize = np.dtype(file.dtype).itemsize
    if size != file.offset + file.tokens * itemsize:
        raise InputError(
            f"{file.data} has {max(size - file.offset, 0):,} bytes of tokens, which are not "
            f"{file.tokens:,} tokens of {itemsize} bytes: copy it again, or correct --dtype"
        )
    return file


def _size(path: str) -> int:
    try:
        with open_file(path, buffered=False) as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise reading_error(path, error) from error


def _read(path: str, start: int, dtype: Any, count: int) -> np.ndarray:
    """Reads an array of numbers from a byte of a file on."""
    dtype = np.dtype(dtype)
    try:
        with open_file(path, buffered=False) as file:
            file.seek(start)
            data = file.read(count * dtype.itemsize)
    except OSError as error:
        raise reading_error(path, error) from error
    if len(data) != count * dtype.itemsize:
        raise InputError(f"{path} ends before byte {start + count * dtype.itemsize:,}")
    return np.frombuffer(data, dtype)
