"""SentencePiece models as vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sentencepiece

from anytime_jax.corpus.dropped_characters import DeletedCharacters
from anytime_jax.corpus.vocabulary_interface import Encoded, Vocabulary
from anytime_jax.errors import InputError

LOG_NOTHING = 5  # above FATAL in absl's numbering; the exceptions have the reasons as well


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model.

    Attributes:
      processor: the model itself, of the library.
    """

    begin, named_bos_id = (), None  # a model does not say whether documents begin with its BOS

    def __init__(self, model: bytes, path: str):
        """Parses the content of a `.model` file; errors name `path`."""
        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor()
        sentencepiece.set_min_log_level(LOG_NOTHING)
        try:
            self.processor.LoadFromSerializedProto(model)
            self.size: int = self.processor.vocab_size()
        except RuntimeError as error:
            raise InputError(
                f"vocabulary {path} is neither a tokenizer.json nor a SentencePiece model ({error})"
            ) from error
        self.eos_id: int = self.processor.eos_id()
        if self.eos_id < 0:
            raise InputError(
                f"vocabulary {path} has no EOS piece, which must end every document; give a model "
                "trained with eos_id set"
            )
        self.eos_text: str = self.processor.id_to_piece(self.eos_id)
        self._deleted = DeletedCharacters(self.processor.normalize)

    def encode_counted(self, texts: Sequence[str]) -> list[Encoded]:
        """See `Vocabulary.encode_counted`; dropped are those that the normalizer deletes."""
        # One thread: preparation runs one process per core.
        arrays = self.processor.encode(list(texts), out_type="numpy", num_threads=1)
        unknown = self.processor.unk_id()
        return [
            Encoded(ids, int(np.count_nonzero(ids == unknown)), self._deleted.count(text))
            for text, ids in zip(texts, arrays, strict=True)
        ]

    def encode_by_itself(self, text: str) -> list[int]:
        """See `Vocabulary.encode_by_itself`; the exported tokenizer adds nothing."""
        return self.processor.encode(text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See `Vocabulary.decode`."""
        return self.processor.decode(np.asarray(ids, int).tolist())
