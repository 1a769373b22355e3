"""Dataset of tokens: its metadata file and the checks of its other files."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.errors import InputError
from anytime_jax.storage.failures import read_failure, storage_errors
from anytime_jax.storage.files import file_sizes, is_regular_file
from anytime_jax.storage.json_files import json_digest, load_json, write_json
from anytime_jax.storage.paths import storage_path

FORMAT_VERSION = 6
TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
# Metadata file, written last: a directory that has it is complete.
METADATA_NAME = "anytime_jax.json"
VOCABULARY_NAME = "vocabulary.model"
# Directory in a dataset's directory for everything unfinished.
WORK_NAME = ".preparing"
# Each chunk has a checksum and takes 16 bytes of memory; a window is in one or two chunks.
CHUNK_TOKENS = 16_384


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """Counts of one split; `tokens` includes the EOS of each document."""

    documents: int
    tokens: int

    def windows(self, length: int) -> int:
        """Returns the number of windows of a length, each with a target for its last token."""
        return max(self.tokens - 1, 0) // length


@dataclasses.dataclass(frozen=True)
class PartInfo:
    """An array of tokens in the directory `name`, such as "train/00003".

    `sha256` is the hash of all tokens. `last_chunk` is the beginning of the last chunk's hash.
    """

    name: str
    tokens: int
    sha256: str
    last_chunk: str


@dataclasses.dataclass(frozen=True)
class Delimiters:
    """The tokens between which every document stands: how a text begins and ends.

    Attributes:
      bos_id: id of the token that begins a document; None if documents begin with no token.
      eos_id: id of the token that ends a document; it may be `bos_id`.
    """

    bos_id: int | None
    eos_id: int

    def __str__(self) -> str:
        begin = "no token" if self.bos_id is None else f"token {self.bos_id}"
        return f"begin with {begin} and end with token {self.eos_id}"

    @property
    def begin(self) -> tuple[int, ...]:
        """The ids with which a document begins, at most one."""
        return () if self.bos_id is None else (self.bos_id,)

    @property
    def before_text(self) -> int:
        """The id before the text of a document: BOS, or the EOS of the document before."""
        return self.eos_id if self.bos_id is None else self.bos_id

    def find_ends(self, tokens_BxL: Any) -> Any:
        """Returns which tokens of windows end a document, bool of shape BxL, NumPy or JAX as given.

        An id that both begins and ends documents does so in turn. The last such token before other
        tokens is a BOS. So the number of such tokens with which a window begins says what its first
        one is. A window that begins with another token has an EOS first.
        """
        is_eos_BxL = tokens_BxL == self.eos_id
        if self.bos_id != self.eos_id:
            return is_eos_BxL
        leading_Bx1 = is_eos_BxL.argmin(axis=1, keepdims=True)
        return is_eos_BxL & ((is_eos_BxL.cumsum(axis=1) + leading_Bx1) % 2 == 1)


FIRST_BAD_RECORDS = 10  # of a dataset, which are named


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextCounts:
    """What is in a text and not in its tokens.

    Attributes:
      null_records: records of the input without a text, which were left out.
      left_out: files of the input that are no documents: why, and the path.
      bad_records: records that could not be read, which were left out.
      first_bad_records: place and reason of the first ten.
      unknown_pieces: tokens that stand for any text that the vocabulary lacks, such as `<unk>`.
      unknown_documents: documents with such tokens.
      dropped_characters: characters, other than white space, that are in no token.
      dropped_documents: documents with such characters.
    """

    null_records: int = 0
    left_out: Sequence[tuple[str, str]] = ()
    bad_records: int = 0
    first_bad_records: Sequence[tuple[str, str]] = ()
    unknown_pieces: int = 0
    unknown_documents: int = 0
    dropped_characters: int = 0
    dropped_documents: int = 0


def add_counts(counts: Iterable[TextCounts]) -> dict[str, Any]:
    """Returns the fields of `TextCounts`: sums of the numbers, and the lists joined."""
    each, total = list(counts), dict[str, Any]()
    for name, default in dataclasses.asdict(TextCounts()).items():
        values = [getattr(one, name) for one in each]
        total[name] = sum(values) if default == 0 else tuple(itertools.chain(*values))
    total["first_bad_records"] = total["first_bad_records"][:FIRST_BAD_RECORDS]
    return total


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo(TextCounts):
    """Metadata of a complete dataset.

    Attributes:
      eos_id: id of the token that ends every document.
      token_dtype: "uint16" or "int32", as stored.
      splits: counts of "train" and "validation".
      settings: source and settings of the preparation.
      parts: arrays of tokens of each split, in order.
      bos_id: id of the token that begins every document; None if documents begin with no token.
      input_digest: digest of the names, sizes and times of the input; empty if it is unknown.
      largest_id: the largest id of all tokens; None if it was not recorded.
    """

    path: Path
    vocab_size: int
    eos_id: int
    token_dtype: str
    vocabulary_sha256: str
    splits: Mapping[str, SplitInfo]
    settings: Mapping[str, Any]
    parts: Mapping[str, tuple[PartInfo, ...]]
    bos_id: int | None = None
    input_digest: str = ""
    largest_id: int | None = None

    @property
    def vocabulary_path(self) -> Path:
        """The vocabulary's file, for `load_vocabulary`."""
        return self.path / VOCABULARY_NAME

    @property
    def delimiters(self) -> Delimiters:
        """The tokens that begin and end every document."""
        return Delimiters(self.bos_id, self.eos_id)

    @property
    def fingerprint(self) -> str:
        """Digest of vocabulary and tokens: the identity of the data of a run."""
        tokens = {split: [part.sha256 for part in parts] for split, parts in self.parts.items()}
        return json_digest([self.vocabulary_sha256, tokens])


def data_fingerprint(datasets: Sequence[DatasetInfo]) -> str:
    """Returns the fingerprint of a dataset, or of several that a run reads at once."""
    fingerprints = [x.fingerprint for x in datasets]
    return fingerprints[0] if len(fingerprints) == 1 else json_digest(fingerprints)


def check_rows(info: DatasetInfo, rows: int) -> None:
    """Raises an InputError if an embedding of `rows` rows has none for a token of a dataset."""
    if info.vocab_size > rows and (info.largest_id is None or info.largest_id >= rows):
        largest = info.vocab_size - 1 if info.largest_id is None else info.largest_id
        raise InputError(
            f"{info.path} has token {largest}, and the model has {rows} embedding rows: prepare "
            "text without that token, or give a model that has it"
        )


def load_dataset(path: str | os.PathLike[str] | Path, prepare_hint: str = "") -> DatasetInfo:
    """Loads the metadata of a prepared dataset and checks its files against the metadata.

    The check compares the sizes of the arrays; `verify_dataset` also reads their content.

    Args:
      path: the dataset's directory, local or in a bucket.
      prepare_hint: how to prepare the dataset, for the error message if it is not prepared.

    Raises:
      InputError: the dataset is not prepared, half prepared, or damaged.
    """
    path = storage_path(path)
    metadata_path = path / METADATA_NAME
    try:
        is_prepared = is_regular_file(metadata_path)
    except storage_errors() as error:  # the directory cannot be read, or its name is too long
        raise read_failure(path, error) from error
    if not is_prepared:
        state = "only half prepared" if (path / WORK_NAME).is_dir() else "not a prepared dataset"
        hint = f"; {prepare_hint}" if prepare_hint else ""
        raise InputError(f"{path} is {state} (it has no {METADATA_NAME}){hint}")
    try:
        info = _parse(path, load_json(metadata_path))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{metadata_path} cannot be read ({error.strerror})") from error
    # Parsing JSON of unknown types can raise any of these.
    except Exception as error:
        raise InputError(
            f"{metadata_path} is damaged ({type(error).__name__}: {error}); copy it again, or "
            "delete the dataset and prepare it again"
        ) from error
    _check_files(info)
    return info


def save_metadata(info: DatasetInfo, scratch: Path) -> None:
    """Writes the metadata file of a dataset whose other files are complete."""
    metadata = {**dataclasses.asdict(info), "format_version": FORMAT_VERSION}
    del metadata["path"]
    metadata["sha256"] = json_digest(metadata)
    write_json(info.path / METADATA_NAME, metadata, scratch)


def part_size(tokens: int, dtype: str | np.dtype) -> int:
    """Computes the bytes of a part's shard: chunks, all of the same size, and their index."""
    chunk_bytes = CHUNK_TOKENS * np.dtype(dtype).itemsize + 4
    return -(-tokens // CHUNK_TOKENS) * (chunk_bytes + 16) + 4


def part_file(path: Path, part: PartInfo) -> Path:
    """Returns the path of a part's shard, in the dataset at `path`."""
    return path / part.name / "c" / "0"


def _parse(path: Path, metadata: dict[str, Any]) -> DatasetInfo:
    version = metadata["format_version"]
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path / METADATA_NAME} has format version {version}, this program reads version "
            f"{FORMAT_VERSION}; delete the dataset and prepare it again"
        )
    if metadata.pop("sha256") != json_digest(metadata):
        raise ValueError("its content does not match its digest")
    del metadata["format_version"]
    splits = {split: SplitInfo(**counts) for split, counts in metadata.pop("splits").items()}
    parts = {
        split: tuple(PartInfo(**part) for part in listed)
        for split, listed in metadata.pop("parts").items()
    }
    info = DatasetInfo(path=path, splits=splits, parts=parts, **metadata)
    _check_values(info)
    return info


def _check_values(info: DatasetInfo) -> None:
    """Raises ValueError for values that no preparation writes."""
    counts = [info.vocab_size, info.eos_id, info.bos_id or 0]
    counts += [x for x in add_counts([info]).values() if not isinstance(x, tuple)]
    counts += [count for split in info.splits.values() for count in dataclasses.astuple(split)]
    counts += [part.tokens for part in itertools.chain(*info.parts.values())]
    for count in counts:
        if type(count) is not int or count < 0:
            raise ValueError(f"{count!r} is not a count")
    if info.token_dtype not in ("uint16", "int32"):
        raise ValueError(f"tokens of type {info.token_dtype!r}")
    for split, parts in info.parts.items():
        if info.splits[split].tokens != sum(part.tokens for part in parts):
            raise ValueError(f'the parts of split "{split}" do not add up')
        for part in parts:
            if part.tokens == 0 or not re.fullmatch(f"{re.escape(split)}/[0-9]+", part.name):
                raise ValueError(f"it names {part.name!r}, which is not a part of its split")


def _check_files(info: DatasetInfo) -> None:
    """Compares the size of every array, and the hash of the vocabulary."""
    remedy = "copy the dataset again, or delete it and prepare it again"
    sizes = file_sizes(info.path)
    for part in itertools.chain(*info.parts.values()):
        path, size = part_file(info.path, part), part_size(part.tokens, info.token_dtype)
        actual = sizes.get(f"{part.name}/c/0")
        if actual != size:
            state = "missing" if actual is None else f"{actual} bytes"
            raise InputError(f"{path} is {state} where {size} bytes were written; {remedy}")
    path = info.vocabulary_path
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    if digest != info.vocabulary_sha256:
        state = "missing" if digest is None else "damaged (its hash differs)"
        raise InputError(f"{path} is {state}; {remedy}")
