"""Training of vocabularies: lossless byte pairs, learned by SentencePiece from a text."""

from __future__ import annotations

import collections
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from anytime_jax.corpus.sentencepiece_vocabulary import LOG_NOTHING
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write

# Enough text for every pair worth merging to be frequent, little enough for a second of training.
_SAMPLE_CHARACTERS = 4_000_000
TRAINED_END_OF_TEXT = 1  # id of the token that ends a document, in vocabularies made here
_FIXED_PIECES = 3 + 256  # padding, EOS, unknown and the bytes
_CHARACTER_COVERAGE = 0.9995
# Documents are sliced for training: a newline inside a slice is text like any other, so pieces such
# as ":\n" are learned, and no slice exceeds SentencePiece's limit on the length of a sentence.
_SLICE_CHARACTERS = 4_000


def train_vocabulary(
    texts: Iterable[str], size: int, path: str | os.PathLike[str] | Path
) -> Vocabulary:
    """Trains a vocabulary as `train_model`, writes it as `path` and loads it."""
    model = train_model(texts, size)
    with atomic_write(path) as temporary:
        temporary.write_bytes(model)
    return load_vocabulary(path)


def train_model(texts: Iterable[str], size: int) -> bytes:
    """Trains a lossless byte-pair vocabulary on the first few megabytes of `texts`.

    Ids follow T5: padding 0, EOS 1, unknown 2, no BOS; then 256 bytes, so that any text can be
    written, then the learned pieces. `decode(encode(text)) == text`, with its spaces, tabs and line
    ends (save U+2581, SentencePiece's own mark for a space, which reads back as a space). The same
    texts give the same model.

    Returns:
      the content of a `.model` file of SentencePiece.

    Raises:
      InputError: the texts cannot give a vocabulary of `size` pieces.
    """
    if size <= _FIXED_PIECES:
        raise InputError(
            f"vocabulary of {size} pieces: bytes and control pieces take {_FIXED_PIECES} before "
            "any is learned; ask for more"
        )
    sample = list(_slices(texts))
    if not sample:
        raise InputError("there is no training text for a vocabulary; give some")
    try:
        return _train(sample, size)
    except (RuntimeError, OSError, ValueError) as error:  # ValueError: a size beyond int32
        reason = " ".join(str(error).split())
        raise InputError(
            f"a vocabulary of {size} pieces cannot be trained on this text ({reason}); ask for "
            "another size or give more text"
        ) from error


def _train(sample: Sequence[str], size: int) -> bytes:
    model = io.BytesIO()
    # Byte pairs, not unigrams: the same compression on code, a second instead of a quarter of
    # a minute, and no floating point, which might differ between machines.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_drop_rare_characters(sample, (size - _FIXED_PIECES) // 2),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        pad_id=0,
        eos_id=TRAINED_END_OF_TEXT,
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
    return model.getvalue()


def _slices(texts: Iterable[str]) -> Iterator[str]:
    """Yields slices of the texts until they reach `_SAMPLE_CHARACTERS`."""
    characters = 0
    for text in texts:
        for start in range(0, len(text), _SLICE_CHARACTERS):
            yield text[start : start + _SLICE_CHARACTERS]
            characters += len(text[start : start + _SLICE_CHARACTERS])
            if characters >= _SAMPLE_CHARACTERS:
                return


def _drop_rare_characters(texts: Sequence[str], most: int) -> Iterator[str]:
    """Yields the text between characters that are rare, or not among the `most` common ones.

    Rare characters are spelled in bytes, which leaves room for pairs in a small vocabulary.
    (SentencePiece's own `character_coverage` does not go below 0.98.)
    """
    counts = collections.Counter[str]()
    for text in texts:
        counts.update(text)
    del counts["\0"]  # SentencePiece forbids it
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    common, wanted = "", _CHARACTER_COVERAGE * counts.total()
    for character, count in by_count[: max(most, 1)]:
        if wanted <= 0:
            break
        common += character
        wanted -= count
    rare = re.compile(f"[^{re.escape(common)}]+" if common else r"[\s\S]")
    return (stretch for text in texts for stretch in rare.split(text) if stretch)
