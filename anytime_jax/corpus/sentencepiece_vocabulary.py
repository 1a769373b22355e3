"""SentencePiece models as vocabularies."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from anytime_jax.corpus.dropped_characters import DeletedCharacters
from anytime_jax.corpus.vocabulary_interface import Encoded, Vocabulary
from anytime_jax.errors import InputError

# Stretches of a text of some hundred characters: each ends before a space that follows no space.
# U+2581 is SentencePiece's own mark for a space. The library takes a third less time for them than
# for a whole document, whose pairs it keeps in one heap.
_STRETCH = re.compile(r".{400}.*?[^ \u2581](?=[ \u2581])|.+", re.DOTALL)
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

    def encode_counted(self, texts: Sequence[str]) -> list[Encoded]:
        """See `Vocabulary.encode_counted`; dropped are those that the normalizer deletes."""
        stretches = [(self._splits and _STRETCH.findall(text)) or [text] for text in texts]
        # One thread: preparation runs one process per core.
        arrays = iter(
            self.processor.encode([*itertools.chain(*stretches)], out_type="numpy", num_threads=1)
        )
        unknown = self.processor.unk_id()
        encoded = []
        for text, parts in zip(texts, stretches, strict=True):
            ids = np.concatenate([*itertools.islice(arrays, len(parts))])
            count = int(np.count_nonzero(ids == unknown))
            dropped = self._deleted.count(text) if self._deleted else 0
            encoded.append(Encoded(ids, count, dropped))
        return encoded

    def encode_by_itself(self, text: str) -> list[int]:
        """See `Vocabulary.encode_by_itself`; the exported tokenizer adds nothing."""
        return self.processor.encode(text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See `Vocabulary.decode`."""
        return self.processor.decode(np.asarray(ids, int).tolist())

    @functools.cached_property
    def _settings(self) -> Any:
        """The model as the library's protocol buffer."""
        from sentencepiece import sentencepiece_model_pb2

        library: Any = sentencepiece_model_pb2  # its names are made when it is imported
        return library.ModelProto.FromString(self.model)

    @functools.cached_property
    def _deleted(self) -> DeletedCharacters | None:
        """Counts what the normalizer deletes; None if it has no rules for characters."""
        has_rules = self._settings.normalizer_spec.precompiled_charsmap
        return DeletedCharacters(self.processor.normalize) if has_rules else None

    @functools.cached_property
    def _splits(self) -> bool:
        """Whether the ids of a text are those of its stretches, one after another.

        A text may be encoded in stretches if the model is byte pairs, no piece has a space after
        another character, and the normalizer changes no space. The model needs pieces for bytes:
        without them, one unknown id stands for several characters that it lacks, spaces among them.
        """
        trainer, normalizer = self._settings.trainer_spec, self._settings.normalizer_spec
        return (
            trainer.model_type == trainer.BPE
            and trainer.byte_fallback
            and not trainer.treat_whitespace_as_suffix
            and not normalizer.precompiled_charsmap
            and not normalizer.add_dummy_prefix
            and not normalizer.remove_extra_whitespaces
            and normalizer.escape_whitespaces
            and not any(re.search("[^ \u2581][ \u2581]", x.piece) for x in self._settings.pieces)
        )
