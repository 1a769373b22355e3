"""Interface of a vocabulary, which turns texts into ids and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

_UNFINISHED = "\ufffd"  # what bytes decode to that are no character, or not yet


class IncrementalDecoder:
    """Decodes ids one by one: the texts returned, joined, are `Vocabulary.decode` of all ids.

    A character may be spread over several ids, and a space at the very start may be left out. So
    ids are decoded after those of the text before, and held back until they end with a character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._before: list[int] = []
        self._pending: list[int] = []

    def decode(self, token: int) -> str:
        """Returns the text that is certain after the next id, in whole characters."""
        self._pending.append(token)
        text = self._text()
        return "" if text.endswith(_UNFINISHED) else self._emit(text)

    def flush(self) -> str:
        """Returns the text held back; bytes that became no character read as U+FFFD."""
        return self._emit(self._text())

    def _text(self) -> str:
        """Returns the text of the ids that are held back."""
        before = len(self._decode(self._before))
        return self._decode([*self._before, *self._pending])[before:]

    def _emit(self, text: str) -> str:
        if text:
            if text.strip() or not self._before:  # spaces alone may be those of a start
                self._before = self._pending
            self._pending = []
        return text


class Encoded(NamedTuple):
    """A text as int32 ids without EOS, and what the ids do not say of it.

    Attributes:
      unknown: how many of the ids stand for any text that the vocabulary lacks, such as `<unk>`.
      dropped: how many characters, other than white space, are in no id.
    """

    ids: np.ndarray
    unknown: int = 0
    dropped: int = 0


class Vocabulary(Protocol):
    """A vocabulary of any kind.

    Attributes:
      model: all of it as one file, for `load_vocabulary`.
      size: ids run from 0 to `size - 1`.
      eos_id: id that ends every document.
      eos_text: the EOS token as it is written, such as `</s>`; `decode` leaves it out.
      begin: ids that the vocabulary's configuration puts before every text.
      named_bos_id: id of the token that is named BOS, None for none; texts may begin without it.
    """

    model: bytes
    size: int
    eos_id: int
    eos_text: str
    begin: tuple[int, ...]
    named_bos_id: int | None

    @property
    def sha256(self) -> str:
        """Hash of `model`: the identity of the vocabulary."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def token_dtype(self) -> np.dtype:
        """The narrowest of uint16 and int32 that holds every id, little-endian."""
        return np.dtype("<u2" if self.size <= 2**16 else "<i4")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts; returns an int32 array of ids for each, without EOS."""
        return [encoded.ids for encoded in self.encode_counted(texts)]

    def encode_counted(self, texts: Sequence[str]) -> list[Encoded]:
        """Encodes texts, and counts what the ids do not say of them."""
        ...

    def encode_by_itself(self, text: str) -> list[int]:
        """Encodes a text as an exported tokenizer does, which may put special tokens around it."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decodes ids; control tokens such as EOS and padding decode to nothing."""
        ...

    def incremental_decoder(self) -> IncrementalDecoder:
        """Returns a decoder of ids that come one by one."""
        return IncrementalDecoder(self.decode)
