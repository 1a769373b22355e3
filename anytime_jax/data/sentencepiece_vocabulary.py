"""SentencePiece models, as vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from anytime_jax.errors import InputError

# Above FATAL in absl's numbering: no line at all.
LOG_NOTHING = 5
# Of UTF-8, at most.
_CHARACTER_BYTES = 4


class SentencePieceTokenizer:
    """A SentencePiece model.

    Attributes:
      size: number of pieces.
      eos_id: the id of the EOS piece.
    """

    def __init__(self, model: bytes, path: Path):
        """Takes the content of a `.model` file, and its path for what is said about it.

        Raises:
          InputError: it is no SentencePiece model, or has no EOS piece.
        """
        self._processor = sentencepiece.SentencePieceProcessor()
        # SentencePiece writes its own lines to stderr while it fails; the exception says it all.
        sentencepiece.set_min_log_level(LOG_NOTHING)
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

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `Vocabulary.encode`."""
        # One thread: preparation runs one process per core already.
        return self._processor.encode(list(texts), out_type="numpy", num_threads=1)

    def decode(self, ids: list[int]) -> str:
        """As `Vocabulary.decode`."""
        return self._processor.decode(ids)

    def incremental_decoder(self) -> SentencePieceDecoder:
        """As `Vocabulary.incremental_decoder`."""
        return SentencePieceDecoder(self._processor)


class SentencePieceDecoder:
    """Turns ids into text as they come, for a terminal.

    What `decode` and `flush` return, joined, is `decode` of all ids. A character may be
    spread over several byte pieces, and a space at the very start may be left out: so bytes that
    may yet become a character are held back, and a few ids are decoded each time, however long the
    text has grown.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        """Takes the model."""
        self._processor = processor
        # Stands for the text before: the unknown piece is in every vocabulary, and reads as
        # characters of its own, so that what follows is not at the start.
        self._before: list[int] = []
        self._pending: list[int] = []

    def decode(self, token: int) -> str:
        """Takes the next id; returns the text that is certain now, which may be none."""
        if self._processor.IsControl(token):  # reads as nothing, and ends a run of bytes
            return self.flush()
        self._pending.append(token)
        text = self._decode()
        held = _unfinished(text) if self._processor.IsByte(token) else 0
        if text:
            # Each character held is one byte, which is one piece.
            self._pending = self._pending[len(self._pending) - held :]
        else:
            del self._pending[1:]  # of spaces left out at the start, the first tells all
        return self._emit(text[: len(text) - held])

    def flush(self) -> str:
        """Returns what was held back: each byte that became no character reads as U+FFFD."""
        text = self._decode()
        if text:
            self._pending = []
        return self._emit(text)

    def _emit(self, text: str) -> str:
        if text:
            self._before = [self._processor.unk_id()]
        return text

    def _decode(self) -> str:
        before = len(self._processor.decode(self._before))
        return self._processor.decode([*self._before, *self._pending])[before:]


def _unfinished(text: str) -> int:
    """How many bytes at the end, each read as U+FFFD so far, may be the start of a character."""
    return min(len(text) - len(text.rstrip("\ufffd")), _CHARACTER_BYTES - 1)
