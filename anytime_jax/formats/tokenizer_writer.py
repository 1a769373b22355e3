"""Vocabularies in the files that `transformers.AutoTokenizer` reads.

The files of a tokenizer are copied as they came. A SentencePiece model that was trained here is
translated to rules of the `tokenizers` library with the same ids, which need no other library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anytime_jax.corpus.hf_vocabulary import (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    HfVocabulary,
    import_tokenizers,
)
from anytime_jax.corpus.sentencepiece_vocabulary import SentencePieceVocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary

_SPACE = "▁"  # SentencePiece's mark for a space

_MODEL_FILE = "tokenizer.model"  # as transformers calls a SentencePiece model
# This class uses the rules as they are, in every version of transformers.
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}

# A translation must give the same ids as SentencePiece for these texts.
_SAMPLES = (
    "",
    " ",
    "The quick brown fox jumps over the lazy dog; it wasn't that quick (12,345.67 km/h).",
    'def f(x: int = 3) -> str:\n    """Doc."""\n    if x > 0:\n\t\treturn f"{x!r:>8}"\n\n\n',
    "\tone tab\t\ttwo tabs\r\nand a line end of two characters\n\n\n",
    "runs  of   spaces     of        many                lengths  ",
    "  two at the beginning",
    "Élan, naïve façade, Ångström, e\u0301 of two code points, ½ ﬁ ™ — “quotes” …\u00a0end",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪, CJK 漢字かな交じり文。한국어, العربية, हिन्दी",
    "https://example.org/a?b=c&d=%20#e <a href='x'>text</a> {\"key\": [1, 2.5e-3, null]}",
)


def write_tokenizer(
    vocabulary: Vocabulary,
    directory: str | os.PathLike[str],
    length: int,
    companions: Mapping[str, bytes] | None = None,
) -> None:
    """Writes the files of a vocabulary for `transformers.AutoTokenizer`, without custom code.

    The tokenizer of a SentencePiece model adds no special tokens, and `length` in tokens is its
    `model_max_length`. That of a model trained here recognizes no special tokens in text: "</s>" in
    a text is text. One from elsewhere is translated by transformers 5 itself. `companions` are the
    files that came with the tokenizer; they are written too, and instead of a translation.

    Raises InputError if `tokenizers` is not installed.
    """
    if isinstance(vocabulary, HfVocabulary):
        # These may differ from their companions: --end-of-text is in them.
        own = {name: text.encode("utf-8") for name, text in vocabulary.files.items()}
        files = {**(companions or {}), **own}
    elif companions and CONFIG_FILE in companions:
        files = companions
    else:
        assert isinstance(vocabulary, SentencePieceVocabulary)
        files = {**(companions or {}), **_sentencepiece_files(vocabulary, length)}
    for name, content in files.items():
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _sentencepiece_files(vocabulary: SentencePieceVocabulary, length: int) -> dict[str, bytes]:
    processor = vocabulary.processor
    padding = processor.pad_id() if processor.pad_id() >= 0 else vocabulary.eos_id
    special_tokens = {
        "eos_token": vocabulary.eos_text,
        "pad_token": processor.id_to_piece(padding),
        "unk_token": processor.id_to_piece(processor.unk_id()),
    }
    config = {**_CLASS, **special_tokens, "model_max_length": length}
    if (rules := _translate(vocabulary)) is None:
        return {_MODEL_FILE: vocabulary.model, CONFIG_FILE: _dump(config)}
    config |= {
        # As in SentencePiece: "</s>" in a text is text, "a ," does not become "a,".
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        # Decoders have no token_type_ids.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {
        TOKENIZER_FILE: rules.encode("utf-8"),
        CONFIG_FILE: _dump(config),
        SPECIAL_TOKENS_FILE: _dump(special_tokens),
    }


def _translate(vocabulary: SentencePieceVocabulary) -> str | None:
    """Returns the rules of a model trained here, None if the ids of one from elsewhere differ."""
    library, processor = import_tokenizers(), vocabulary.processor
    pieces: list[str] = [processor.id_to_piece(index) for index in range(vocabulary.size)]
    is_special = [processor.is_control(x) or processor.is_unknown(x) for x in range(len(pieces))]
    learned = [x for x in range(len(pieces)) if not (is_special[x] or processor.is_byte(x))]
    learned.sort(key=lambda index: -processor.get_score(index))
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=_merges([pieces[index] for index in learned]),
            unk_token=pieces[processor.unk_id()],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = library.normalizers.Replace(" ", _SPACE)
    decoders = library.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = [piece for piece, is_one in zip(pieces, is_special, strict=True) if is_one]
    tokenizer.add_special_tokens([library.AddedToken(name, normalized=False) for name in special])
    rules = tokenizer.to_str(pretty=True)
    tokenizer.encode_special_tokens = True  # the effect of `split_special_tokens`
    for text, expected in zip(_SAMPLES, vocabulary.encode(_SAMPLES), strict=True):
        if tokenizer.encode(text, add_special_tokens=False).ids != expected.tolist():
            return None
    return rules


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """Derives BPE merges: SentencePiece merges neighbors that form a piece, best score first."""
    known = set(pieces)
    return [
        (text[:cut], text[cut:])
        for text in pieces
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
