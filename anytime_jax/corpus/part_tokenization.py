"""Tokenization of one part of a text, in any process: its arrays of tokens, then its result.

A part becomes arrays of tokens for each split, every document followed by EOS: one array, or of a
large part one for every stretch of documents. The result is written after them, whole, and says
which input they come from. So a part is either finished or done again.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anytime_jax.corpus.source_interface import BadRecord, LeftOut, Part, TokenPart
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Encoded, Vocabulary
from anytime_jax.data.dataset_info import (
    FIRST_BAD_RECORDS,
    SPLITS,
    VOCABULARY_NAME,
    PartInfo,
    TextCounts,
    add_counts,
    part_size,
)
from anytime_jax.data.token_arrays import write_part
from anytime_jax.errors import RunError
from anytime_jax.storage.files import file_sizes
from anytime_jax.storage.json_files import json_digest, read_json, write_json

_BATCH_DOCUMENTS = 256  # per call of the tokenizer: they fit in memory
_STRETCH_TOKENS = 2**25  # held in memory


class WorkDirectory(NamedTuple):
    """Directories of a preparation.

    Attributes:
      output: the dataset's own.
      results: of the results of parts, which all processes share.
      scratch: for temporary files of this process and its workers.
    """

    output: Path
    results: Path
    scratch: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartResult(TextCounts):
    """What is tokenized of a part.

    Attributes:
      documents: number of documents in each split.
      arrays: their arrays in each split, in order; one for each stretch with documents.
      largest_id: the largest id of all tokens.
    """

    documents: dict[str, int]
    arrays: dict[str, tuple[PartInfo, ...]]
    largest_id: int

    @property
    def tokens(self) -> int:
        """Tokens of all splits, with the EOS of every document."""
        return sum(array.tokens for array in itertools.chain(*self.arrays.values()))


class Target(NamedTuple):
    """What the arrays of a part depend on besides the part, and where they go.

    Attributes:
      settings: those of the dataset.
      parts: number of parts of the text.
      vocabulary_sha256: identity of the vocabulary in the dataset's directory.
      bos_id: id that begins every document, None for none.
    """

    settings: Mapping[str, Any]
    parts: int
    vocabulary_sha256: str
    bos_id: int | None
    token_dtype: str
    work: WorkDirectory


@dataclasses.dataclass(frozen=True)
class PartTask:
    """Writes the arrays of part `index`."""

    part: Part
    index: int
    target: Target

    def load_result(self) -> PartResult | None:
        """Loads the result of an earlier start, if it is of this input and its arrays are there."""
        saved = read_json(self._result_path) or {}
        if saved.get("digest") != self._digest():
            return None
        arrays = {
            split: tuple(PartInfo(**array) for array in listed)
            for split, listed in saved["arrays"].items()
        }
        for array in itertools.chain(*arrays.values()):
            sizes = file_sizes(self.target.work.output / array.name)
            if sizes.get("c/0") != part_size(array.tokens, self.target.token_dtype):
                return None
        del saved["digest"]
        return PartResult(**{**saved, "arrays": arrays})

    def run(self) -> PartResult:
        """Tokenizes the part, and saves the result."""
        target = self.target
        vocabulary = _load_cached(target.work.output / VOCABULARY_NAME, target.vocabulary_sha256)
        begin = np.array([] if target.bos_id is None else [target.bos_id], np.int32)
        dtype = np.dtype(target.token_dtype)
        documents: dict[str, int] = dict.fromkeys(SPLITS, 0)
        counts, largest_id = list[TextCounts](), 0
        arrays: dict[str, tuple[PartInfo, ...]] = dict.fromkeys(SPLITS, ())
        buffers = {split: io.BytesIO() for split in SPLITS}
        records, encode = _reader(self.part, vocabulary)
        while batch := list(itertools.islice(records, _BATCH_DOCUMENTS)):
            contents = [x for x in batch if isinstance(x, str | np.ndarray) and len(x)]
            encoded = encode(contents)
            counts.append(count_records(batch, encoded))
            for content, one in zip(contents, encoded, strict=True):
                split = assign_split(content, self.part.validation_fraction)
                document = np.concatenate([begin, one.ids, [vocabulary.eos_id]])
                largest_id = max(largest_id, int(document.max()))
                buffers[split].write(document.astype(dtype).tobytes())
                documents[split] += 1
            if sum(x.tell() for x in buffers.values()) >= _STRETCH_TOKENS * dtype.itemsize:
                self._write_arrays(buffers, arrays)
        self._write_arrays(buffers, arrays)
        totals = add_counts(counts)
        result = PartResult(documents=documents, arrays=arrays, largest_id=largest_id, **totals)
        saved = {"digest": self._digest(), **dataclasses.asdict(result)}
        write_json(self._result_path, saved, target.work.scratch)
        return result

    def _write_arrays(
        self, buffers: dict[str, io.BytesIO], arrays: dict[str, tuple[PartInfo, ...]]
    ) -> None:
        """Writes and empties the buffers; adds what was written to the arrays of each split."""
        for split, buffer in buffers.items():
            if buffer.tell():
                name = f"{split}/{self.index:05d}"
                if arrays[split]:
                    name += f"{len(arrays[split]):03d}"
                tokens = np.frombuffer(buffer.getbuffer(), self.target.token_dtype)
                arrays[split] += (write_part(self.target.work.output, name, tokens),)
                buffers[split] = io.BytesIO()

    @property
    def _result_path(self) -> Path:
        return self.target.work.results / f"{self.index:06d}.json"

    def _digest(self) -> str:
        """Returns a digest of everything that the arrays depend on, and of what is counted."""
        fields = [field.name for field in dataclasses.fields(PartResult)]
        return json_digest([self.part.identity, *self.target[:-1], fields])


def _reader(part: Part, vocabulary: Vocabulary) -> tuple[Iterator[Any], Callable[..., Any]]:
    """Returns the records of a part, and the function that encodes its documents."""
    if isinstance(part, TokenPart):
        return part.token_documents(vocabulary), lambda ids: [Encoded(x) for x in ids]
    return iter(part.documents()), vocabulary.encode_counted


def count_records(records: Sequence[Any], encoded: Sequence[Encoded] = ()) -> TextCounts:
    """Counts what is left out of some records, and what the encoded ones say not in full."""
    bad = [x for x in records if isinstance(x, BadRecord)]
    return TextCounts(
        bad_records=len(bad),
        first_bad_records=tuple(bad[:FIRST_BAD_RECORDS]),
        null_records=sum(isinstance(x, str | None) and not x for x in records),
        left_out=tuple(x for x in records if isinstance(x, LeftOut)),
        unknown_pieces=sum(x.unknown for x in encoded),
        unknown_documents=sum(x.unknown > 0 for x in encoded),
        dropped_characters=sum(x.dropped for x in encoded),
        dropped_documents=sum(x.dropped > 0 for x in encoded),
    )


@functools.lru_cache(maxsize=1)
def _load_cached(path: Path, sha256: str) -> Vocabulary:
    """Loads the vocabulary once per process."""
    vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != sha256:  # a share that sees other input has replaced it
        raise RunError(f"{path} was replaced by another process; run the same command again")
    return vocabulary
