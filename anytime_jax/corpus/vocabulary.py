"""Vocabularies of any kind: loaded from a file, or trained on text."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from anytime_jax.corpus.hf_tokenizer import (
    COMPANIONS,
    TOKENIZER_FILE,
    HfTokenizer,
    bundle,
    is_hf_tokenizer,
)
from anytime_jax.corpus.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.errors import InputError
from anytime_jax.storage import addresses
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import storage_errors
from anytime_jax.storage.files import read_file
from anytime_jax.storage.paths import is_address, storage_path

# An export has both files; its tokenizer.json may differ in bytes from the run's vocabulary.
_FILES = (VOCABULARY_NAME, TOKENIZER_FILE)


class IncrementalDecoder(Protocol):
    """Decodes ids one by one: the texts returned, joined, are `Vocabulary.decode` of all ids."""

    def decode(self, token: int) -> str:
        """Returns the text that is certain after the next id, in whole characters."""
        ...

    def flush(self) -> str:
        """Returns the text held back; bytes that became no character read as U+FFFD."""
        ...


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of any kind.

    Attributes:
      size: ids run from 0 to `size - 1`.
      eos_id: id that ends every document.
      sha256: hash of `model`: the identity of the vocabulary.
      model: all of it as one file, for `load_vocabulary`.
    """

    size: int
    eos_id: int
    sha256: str
    model: bytes = dataclasses.field(repr=False, compare=False)
    _tokenizer: SentencePieceTokenizer | HfTokenizer = dataclasses.field(repr=False, compare=False)

    @property
    def eos_text(self) -> str:
        """The EOS token as it is written, such as `</s>`; `decode` leaves it out."""
        return self._tokenizer.eos_text

    @property
    def prefix_id(self) -> int:
        """Id before a text that has no context: of a Hugging Face tokenizer's BOS, or the EOS."""
        return self._tokenizer.prefix_id

    @property
    def bos_id(self) -> int | None:
        """Id that a Hugging Face tokenizer's configuration puts before every text, if any."""
        return self._tokenizer.bos_id

    @property
    def token_dtype(self) -> np.dtype:
        """The narrowest of uint16 and int32 that holds every id, little-endian."""
        return np.dtype("<u2" if self.size <= 2**16 else "<i4")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts; returns an int32 array of ids for each, without EOS."""
        return self._tokenizer.encode(texts)

    def encode_by_itself(self, text: str) -> list[int]:
        """Encodes a text as an exported tokenizer does, which may put special tokens around it."""
        return self._tokenizer.encode_by_itself(text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes ids; control tokens such as EOS and padding decode to nothing."""
        return self._tokenizer.decode(np.asarray(ids).tolist())

    def incremental_decoder(self) -> IncrementalDecoder:
        """Returns a decoder of ids that come one by one."""
        return self._tokenizer.incremental_decoder()


def load_vocabulary(
    path: str | os.PathLike[str] | Path, end_of_text: str | None = None
) -> Vocabulary:
    """Loads a SentencePiece model, a `tokenizer.json`, or a dataset's `vocabulary.model`.

    In a directory, such as a model or a dataset, `find_vocabulary_file` chooses the file. For a
    `tokenizer.json`, EOS is the token `end_of_text`, or else the `eos_token` that
    `tokenizer_config.json` or `special_tokens_map.json` in the same directory names. An address is
    downloaded. Raises InputError for a vocabulary without an EOS token.
    """
    if is_address(path) and not str(path).startswith("gs:"):
        return _download(str(path).rstrip("/"), end_of_text)
    path = storage_path(path)
    if path.is_dir():
        if (file := find_vocabulary_file(path)) is None:
            raise InputError(
                f"vocabulary {path} is a directory without {' or '.join(_FILES)}; give the path of "
                "a vocabulary"
            )
        path = file
    try:
        model = read_file(path)
    except storage_errors() as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise InputError(
            f"vocabulary {path}: {reason}; give the path of a SentencePiece .model file or "
            "of a tokenizer.json"
        ) from error
    if is_hf_tokenizer(model, path):
        model = bundle(model, path, end_of_text)
        tokenizer = HfTokenizer(model, path)
    else:
        tokenizer = SentencePieceTokenizer(model, path)
        if end_of_text is not None:
            raise InputError(
                f"--end-of-text has no meaning for {path}, a SentencePiece model, which names its "
                "own: leave it out"
            )
    digest = hashlib.sha256(model).hexdigest()
    return Vocabulary(tokenizer.size, tokenizer.eos_id, digest, model, tokenizer)


def _download(address: str, end_of_text: str | None) -> Vocabulary:
    """Loads the vocabulary at an address: a file, or a folder such as a model on the hub."""
    folder, _, name = address.rpartition("/")
    names = [name, *COMPANIONS]
    if not name.endswith((".model", ".json")):
        folder, names = address, [*_FILES, *COMPANIONS]
    elif name.endswith(".model"):
        names = [name]
    with tempfile.TemporaryDirectory() as temporary:
        for each in names:
            content = addresses.read_if_there(f"{folder}/{each}")
            if content is not None:
                Path(temporary, each).write_bytes(content)
        try:
            local = Path(temporary) if folder == address else Path(temporary, name)
            return load_vocabulary(local, end_of_text)
        except InputError as error:
            raise InputError(str(error).replace(temporary, folder)) from error


def find_vocabulary_file(directory: Path) -> Path | None:
    """Finds the vocabulary of a dataset, an export or a model of another library, if it has one."""
    files = (directory / name for name in _FILES)
    return next((file for file in files if file.is_file()), None)


def train_vocabulary(
    texts: Iterable[str],
    size: int,
    path: str | os.PathLike[str] | Path,
    scratch: Path | None = None,
) -> Vocabulary:
    """Trains a lossless byte-pair vocabulary on the first few megabytes of `texts`.

    Ids follow T5: padding 0, EOS 1, unknown 2, no BOS; then 256 bytes, so that any text can be
    written, then the learned pieces. `decode(encode(text)) == text`, with its spaces, tabs and line
    ends (save U+2581, SentencePiece's own mark for a space, which reads back as a space). The same
    texts give the same file at `path`; the temporary file is in `scratch`, or else next to it.

    Raises:
      InputError: the texts cannot give a vocabulary of `size` pieces.
    """
    model = train_sentencepiece(texts, size)
    with atomic_write(path, scratch) as temporary:
        temporary.write_bytes(model)
    return load_vocabulary(path)
