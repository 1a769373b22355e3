"""Vocabularies: load one of any kind by path, or train a SentencePiece model on the spot."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import sentencepiece

from anytime_jax.atomic import atomic_write
from anytime_jax.data.hf_tokenizer import HfTokenizer, bundle, is_hf_tokenizer
from anytime_jax.data.local_paths import require_local_path
from anytime_jax.data.sentencepiece_vocabulary import LOG_NOTHING, SentencePieceTokenizer
from anytime_jax.errors import InputError

# Enough text for every pair worth merging to be seen often, little enough for a second of work.
_SAMPLE_CHARACTERS = 4_000_000
# Padding, EOS, unknown and the 256 bytes.
_FIXED_PIECES = 3 + 256
_CHARACTER_COVERAGE = 0.9995
# Training sees documents in slices: a newline inside a slice is text like any other, so pieces such
# as ":\n" are learned, while SentencePiece's limit on the length of a sentence is never met.
_SLICE_CHARACTERS = 4_000


class IncrementalDecoder(Protocol):
    """Turns ids into text as they come: all it returns, joined, is `decode` of all ids."""

    def decode(self, token: int) -> str:
        """Takes the next id; returns the text that is certain now, which may be none."""
        ...

    def flush(self) -> str:
        """Returns what was held back."""
        ...


class Tokenizer(Protocol):
    """What a kind of vocabulary has to be able to do."""

    size: int
    eos_id: int

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `Vocabulary.encode`."""
        ...

    def decode(self, ids: list[int]) -> str:
        """As `Vocabulary.decode`."""
        ...

    def incremental_decoder(self) -> IncrementalDecoder:
        """As `Vocabulary.incremental_decoder`."""
        ...


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of any kind, its size and the identity that a dataset remembers.

    Attributes:
      size: number of tokens; ids run from 0 to `size - 1`.
      eos_id: the id that ends every document.
      sha256: of `model`, in hexadecimal.
      model: all of it as one file, which `load_vocabulary` reads wherever it lies.
    """

    size: int
    eos_id: int
    sha256: str
    model: bytes = dataclasses.field(repr=False, compare=False)
    _tokenizer: Tokenizer = dataclasses.field(repr=False, compare=False)

    @property
    def token_dtype(self) -> np.dtype:
        """The narrowest of uint16 and int32 that holds every id."""
        return np.dtype(np.uint16 if self.size <= 2**16 else np.int32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Turns texts into ids, without EOS.

        Args:
          texts: any number of documents.

        Returns:
          One int32 array of ids per text.
        """
        return self._tokenizer.encode(texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Turns ids back into text; control tokens such as EOS and padding read as nothing."""
        return self._tokenizer.decode(np.asarray(ids).tolist())

    def incremental_decoder(self) -> IncrementalDecoder:
        """Returns what turns ids into text as they come, whole characters at a time."""
        return self._tokenizer.incremental_decoder()


def load_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Loads a SentencePiece model, the tokenizer of a Hugging Face model, or what a dataset keeps.

    Args:
      path: the `.model` file, for example T5's; or a `tokenizer.json`, with the
        `tokenizer_config.json` or `special_tokens_map.json` beside it that names its `eos_token`.

    Returns:
      The vocabulary.

    Raises:
      InputError: there is no such file, it is no vocabulary, it has no EOS token, or it is a
        `tokenizer.json` and the library to read it is not installed.
    """
    require_local_path(path, "copy the file here, give its path")
    path = Path(path)
    try:
        model = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"vocabulary {path}: {error.strerror}; give the path of a SentencePiece .model file or "
            "of a tokenizer.json"
        ) from error
    if is_hf_tokenizer(model, path):
        model = bundle(model, path)
        tokenizer = HfTokenizer(model, path)
    else:
        tokenizer = SentencePieceTokenizer(model, path)
    digest = hashlib.sha256(model).hexdigest()
    return Vocabulary(tokenizer.size, tokenizer.eos_id, digest, model, tokenizer)


def train_vocabulary(texts: Iterable[str], size: int, path: str | os.PathLike[str]) -> Vocabulary:
    """Trains a lossless byte-pair vocabulary on the first few megabytes of `texts`.

    Ids follow T5: padding 0, EOS 1, unknown 2, no BOS; then 256 bytes, so that any text can be
    written, then the learned pieces. Text is taken as it is: `decode(encode(text)) == text`,
    indentation, tabs, line ends and all (save U+2581, SentencePiece's own mark for a space, which
    reads back as a space). The same texts give the same file.

    Args:
      texts: documents; only as many as the sample needs are taken.
      size: number of pieces wanted.
      path: where to write the model, completely or not at all.

    Returns:
      The vocabulary, as `load_vocabulary(path)` gives it.

    Raises:
      InputError: the texts cannot give a vocabulary of that size.
    """
    if size <= _FIXED_PIECES:
        raise InputError(
            f"vocabulary of {size} pieces: bytes and control pieces take {_FIXED_PIECES} before "
            "any is learned; ask for more"
        )
    model = io.BytesIO()
    sample = list(_take(_slices(texts), _SAMPLE_CHARACTERS))
    if not sample:
        raise InputError("no text to train a vocabulary on; give a source that has documents")
    try:
        # Byte pairs, not unigrams: the same compression on code, a second instead of a quarter of
        # a minute, and no floating point for machines to disagree on.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_without_rare_characters(sample, (size - _FIXED_PIECES) // 2),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=16 * _SLICE_CHARACTERS,
            num_threads=1,
            minloglevel=LOG_NOTHING,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).rsplit("] ")[-1].strip(" .")  # what follows the C++ source line
        raise InputError(
            f"cannot train a vocabulary of {size} pieces on this text: SentencePiece says "
            f'"{reason}"; ask for another size or give more text'
        ) from error
    with atomic_write(path) as temporary:
        temporary.write_bytes(model.getvalue())
    return load_vocabulary(path)


def _slices(texts: Iterable[str]) -> Iterator[str]:
    """Documents in slices of bounded length."""
    for text in texts:
        for start in range(0, len(text), _SLICE_CHARACTERS):
            yield text[start : start + _SLICE_CHARACTERS]


def _take(texts: Iterable[str], characters: int) -> Iterator[str]:
    """The first texts that together reach so many characters."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def _without_rare_characters(texts: Sequence[str], most: int) -> Iterator[str]:
    """The stretches between characters that are rare, or beyond so many common ones.

    Those are spelled in bytes, and do not crowd the pairs out of a small vocabulary.
    (SentencePiece's own `character_coverage` does not go below 0.98.)
    """
    counts = collections.Counter[str]()
    for text in texts:
        counts.update(text)
    del counts["\0"]  # SentencePiece forbids it
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept, wanted = "", _CHARACTER_COVERAGE * counts.total()
    for character, count in by_count[: max(most, 1)]:
        if wanted <= 0:
            break
        kept += character
        wanted -= count
    rare = re.compile(f"[^{re.escape(kept)}]+" if kept else r"[\s\S]")
    return (stretch for text in texts for stretch in rare.split(text) if stretch)
