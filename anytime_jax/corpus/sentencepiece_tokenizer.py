"""SentencePiece models as vocabularies, and their training."""

from __future__ import annotations

import collections
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from anytime_jax.errors import InputError

_LOG_NOTHING = 5  # above FATAL in absl's numbering
_CHARACTER_BYTES = 4  # maximum, in UTF-8

# Enough text for every pair worth merging to be frequent, little enough for a second of training.
_SAMPLE_CHARACTERS = 4_000_000
TRAINED_END_OF_TEXT = 1  # id of the token that ends a document, in vocabularies made here
_FIXED_PIECES = 3 + 256  # padding, EOS, unknown and the bytes
_CHARACTER_COVERAGE = 0.9995
# Documents are sliced for training: a newline inside a slice is text like any other, so pieces such
# as ":\n" are learned, and no slice exceeds SentencePiece's limit on the length of a sentence.
_SLICE_CHARACTERS = 4_000


class SentencePieceTokenizer:
    """A SentencePiece model, with the methods of `Vocabulary`."""

    def __init__(self, model: bytes, path: Path):
        """Parses the content of a `.model` file; errors name `path`."""
        self._processor = sentencepiece.SentencePieceProcessor()
        # The exception has the reason that SentencePiece writes to stderr as well.
        sentencepiece.set_min_log_level(_LOG_NOTHING)
        try:
            self._processor.LoadFromSerializedProto(model)
            self.size = self._processor.vocab_size()
        except RuntimeError:
            self.size = 0
        if self.size == 0:
            raise InputError(
                f"vocabulary {path} is not a SentencePiece model; give a .model file, the "
                "tokenizer.json of a Hugging Face model, or train a vocabulary instead"
            )
        self.eos_id = self._processor.eos_id()
        if self.eos_id < 0:
            raise InputError(
                f"vocabulary {path} has no EOS piece, which must end every document; give a model "
                "trained with eos_id set"
            )
        self.eos_text: str = self._processor.id_to_piece(self.eos_id)
        # An exported tokenizer has no BOS either.
        self.prefix_id: int = self.eos_id
        self.bos_id = None  # a model of pieces does not say whether documents begin with its BOS

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.encode`."""
        # One thread: preparation runs one process per core.
        return self._processor.encode(list(texts), out_type="numpy", num_threads=1)

    def encode_by_itself(self, text: str) -> list[int]:
        """See `Vocabulary.encode_by_itself`; the exported tokenizer adds nothing."""
        return self._processor.encode(text)

    def decode(self, ids: list[int]) -> str:
        """See `Vocabulary.decode`."""
        return self._processor.decode(ids)

    def incremental_decoder(self) -> _Decoder:
        """See `Vocabulary.incremental_decoder`."""
        return _Decoder(self._processor)


class _Decoder:
    """An `IncrementalDecoder` whose cost per id does not grow with the text.

    A character may be spread over several byte pieces, and a space at the very start may be left
    out, so bytes that may yet become a character are held back.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        self._processor = processor
        # The unknown piece stands for the text before. It is in every vocabulary and decodes to
        # visible characters, so what follows is not at the start.
        self._before: list[int] = []
        self._pending: list[int] = []

    def decode(self, token: int) -> str:
        if self._processor.IsControl(token):  # decodes to nothing, and ends a run of bytes
            return self.flush()
        self._pending.append(token)
        text = self._decode_pending()
        held = _count_unfinished(text) if self._processor.IsByte(token) else 0
        if text:
            # Each character held is one byte, which is one piece.
            self._pending = self._pending[len(self._pending) - held :]
        else:
            del self._pending[1:]  # one space is enough: the decoder drops it at the start
        return self._emit(text[: len(text) - held])

    def flush(self) -> str:
        text = self._decode_pending()
        if text:
            self._pending = []
        return self._emit(text)

    def _emit(self, text: str) -> str:
        if text:
            self._before = [self._processor.unk_id()]
        return text

    def _decode_pending(self) -> str:
        before = len(self._processor.decode(self._before))
        return self._processor.decode([*self._before, *self._pending])[before:]


def _count_unfinished(text: str) -> int:
    """Bytes at the end, each read as U+FFFD so far, that may be the start of a character."""
    return min(len(text) - len(text.rstrip("\ufffd")), _CHARACTER_BYTES - 1)


def train_sentencepiece(texts: Iterable[str], size: int) -> bytes:
    """Trains a byte-pair model on the first few megabytes of `texts`: see `train_vocabulary`."""
    if size <= _FIXED_PIECES:
        raise InputError(
            f"vocabulary of {size} pieces: bytes and control pieces take {_FIXED_PIECES} before "
            "any is learned; ask for more"
        )
    sample = list(_slices(texts))
    if not sample:
        raise InputError("no text to train a vocabulary on; give a source that has documents")
    try:
        return _train(sample, size)
    except (RuntimeError, OSError, ValueError) as error:  # ValueError: a size beyond int32
        reason = str(error).rsplit("] ")[-1].strip(" .")  # the message follows the C++ source line
        if largest := _largest_size(sample, size, reason):
            raise InputError(
                f"cannot train a vocabulary of {size} pieces: this text supports at most {largest};"
                f" give --train-vocabulary={largest} or less, or more text"
            ) from error
        raise InputError(
            f"cannot train a vocabulary of {size} pieces on this text: SentencePiece says "
            f'"{reason}"; ask for another size or give more text'
        ) from error


def _largest_size(sample: Sequence[str], size: int, reason: str) -> int | None:
    """The largest vocabulary that can be trained, if SentencePiece says that one is too large."""
    while match := re.search(r"too high .* <= (\d+)", reason):
        if not _FIXED_PIECES < int(match[1]) < size:
            return None
        size = int(match[1])
        try:
            _train(sample, size)
            return size
        except (RuntimeError, OSError) as error:  # a smaller vocabulary has fewer characters
            reason = str(error)
    return None


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
        minloglevel=_LOG_NOTHING,
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
