"""Tokenization of one part of the text into token files."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from pathlib import Path

import numpy as np

from anytime_jax.data.dataset import VOCABULARY_NAME, TokenFileInfo, token_file_size
from anytime_jax.data.json_files import json_digest, read_json, write_json
from anytime_jax.data.preparation_lock import WorkDirectory
from anytime_jax.data.sources import SPLITS, Part, assign_split
from anytime_jax.data.token_files import stored_dtype, write_token_file
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.errors import RunError

# Documents per call of the tokenizer: the call costs nothing then, and they fit in memory.
_BATCH_DOCUMENTS = 256


@dataclasses.dataclass(frozen=True)
class PartResult:
    """Number of documents of a part in each split, and the token files of splits with documents."""

    documents: dict[str, int]
    files: dict[str, TokenFileInfo]

    @property
    def tokens(self) -> int:
        """Tokens of all splits, with the EOS of every document."""
        return sum(file.tokens for file in self.files.values())


@dataclasses.dataclass(frozen=True)
class TokenizePart:
    """Task: writes the token files of part `index` of `parts`, a function of the input alone."""

    part: Part
    index: int
    parts: int
    vocabulary_sha256: str
    work: WorkDirectory

    def load_result(self) -> PartResult | None:
        """Loads the result, if it is of this input and the token files are complete."""
        saved = read_json(self._result_path) or {}
        if saved.get("input") != self._input_digest():
            return None
        files = {split: TokenFileInfo(**file) for split, file in saved["files"].items()}
        for file in files.values():
            path = self.work.output / file.name
            size = token_file_size(file.tokens, saved["dtype"])
            if not path.is_file() or path.stat().st_size != size:
                return None
        return PartResult(saved["documents"], files)

    def run(self) -> PartResult:
        """Writes the token files, then the result."""
        vocabulary = _load_cached(self.work.output / VOCABULARY_NAME, self.vocabulary_sha256)
        dtype = stored_dtype(vocabulary.token_dtype)
        buffers: dict[str, io.BytesIO] = {split: io.BytesIO() for split in SPLITS}
        documents: dict[str, int] = dict.fromkeys(SPLITS, 0)
        unread = self.part.documents()
        while texts := list(itertools.islice(unread, _BATCH_DOCUMENTS)):
            for text, ids in zip(texts, vocabulary.encode(texts), strict=True):
                split = assign_split(text, self.part.validation_fraction)
                buffers[split].write(np.append(ids, vocabulary.eos_id).astype(dtype).tobytes())
                documents[split] += 1
        files = {}
        for split, buffer in buffers.items():
            if documents[split]:
                path = self.work.output / f"{split}-{self.index:05d}-of-{self.parts:05d}.tokens"
                files[split] = write_token_file(path, buffer.getbuffer(), dtype, self.work.scratch)
        result = PartResult(documents, files)
        saved = {"input": self._input_digest(), "dtype": vocabulary.token_dtype.name}
        write_json(self._result_path, saved | dataclasses.asdict(result), self.work.scratch)
        return result

    @property
    def _result_path(self) -> Path:
        return self.work.results / f"{self.index:06d}.json"

    def _input_digest(self) -> str:
        return json_digest([self.part.identity, self.parts, self.vocabulary_sha256])


@functools.lru_cache(maxsize=1)
def _load_cached(path: Path, sha256: str) -> Vocabulary:
    """Loads the vocabulary once per process."""
    vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != sha256:  # by a share that sees other input
        raise RunError(f"{path} was replaced by another process; run the same command again")
    return vocabulary
