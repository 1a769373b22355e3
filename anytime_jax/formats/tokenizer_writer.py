"""Vocabularies as tokenizers of the Hugging Face libraries: `tokenizer.json` and its companions.

A SentencePiece model is translated to rules of the `tokenizers` library with the same ids, within
the limits in docs/evidence/export.md; a Hugging Face tokenizer is copied. `tokenizers` itself
converts unigram models only and ignores normalizer settings; `transformers` would be another
dependency.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from anytime_jax.corpus.hf_tokenizer import (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    import_tokenizers,
    is_hf_tokenizer,
    unbundle,
)
from anytime_jax.corpus.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.sentencepiece_model import ModelType, PieceType, parse_sentencepiece
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import storage_path

_SPACE = "▁"  # SentencePiece's mark for a space
_ALL = 2**31 - 1  # strips all leading spaces
_PLAIN = {PieceType.NORMAL, PieceType.UNKNOWN, PieceType.CONTROL, PieceType.BYTE}
_SUPPORTED = {ModelType.UNIGRAM: _PLAIN | {PieceType.USER_DEFINED}, ModelType.BPE: _PLAIN}

# This class uses tokenizer.json as it is, in every version of transformers.
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")

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
    vocabulary_path: str | os.PathLike[str] | Path, directory: str | os.PathLike[str], length: int
) -> None:
    """Writes the files of a vocabulary for `transformers.AutoTokenizer`, without custom code.

    The tokenizer adds no special tokens and recognizes none in text: "</s>" in a text is text.
    `length` in tokens becomes `model_max_length`, unless a Hugging Face tokenizer, whose files are
    copied, has its own.

    Raises:
      InputError: if the vocabulary is missing or unsupported, or `tokenizers` is not installed.
      RunError: if the translation gives other ids.
    """
    vocabulary = load_vocabulary(vocabulary_path)
    if is_hf_tokenizer(vocabulary.model, storage_path(vocabulary_path)):
        files = _copy(vocabulary, length)
    else:
        files = _translate(vocabulary, length, vocabulary_path)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_bytes(text.encode("utf-8"))


def _copy(vocabulary: Vocabulary, length: int) -> dict[str, str]:
    """Returns the files of a Hugging Face tokenizer, byte for byte unless one lacks a setting."""
    files = unbundle(vocabulary.model)
    special_tokens = parse_json(files.get(SPECIAL_TOKENS_FILE, "{}"))
    config = parse_json(files.get(CONFIG_FILE, "{}"))
    whole = {**_CLASS, **special_tokens, "model_max_length": length, **config}
    if whole != config:
        files[CONFIG_FILE] = _dump(whole)
    special_tokens = {name: whole[name] for name in _SPECIAL_TOKENS if name in whole}
    return {SPECIAL_TOKENS_FILE: _dump(special_tokens), **files}


def _translate(vocabulary: Vocabulary, length: int, path: str | os.PathLike[str]) -> dict[str, str]:
    library = import_tokenizers()
    model = parse_sentencepiece(vocabulary.model)
    if problem := _find_unsupported(model):
        raise InputError(f"vocabulary {path} {problem}")
    special = [p.piece for p in model.pieces if p.type in (PieceType.CONTROL, PieceType.UNKNOWN)]
    tokenizer = library.Tokenizer(_algorithm(model))
    tokenizer.normalizer, tokenizer.decoder = _normalizer(model), _decoder(model)
    tokenizer.add_special_tokens([library.AddedToken(name, normalized=False) for name in special])
    rules = tokenizer.to_str(pretty=True)
    _check_ids(library.Tokenizer.from_str(rules), vocabulary, path)
    eos, pad = model.pieces[vocabulary.eos_id].piece, model.trainer_spec.pad_piece
    special_tokens = {
        "eos_token": eos,
        "pad_token": pad if pad in special else eos,
        "unk_token": _unknown(model).piece,
    }
    config = {
        **_CLASS,
        **special_tokens,
        "model_max_length": length,
        # As in SentencePiece: "</s>" in a text is text, "a ," does not become "a,".
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        # Decoders have no token_type_ids.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {
        TOKENIZER_FILE: rules,
        CONFIG_FILE: _dump(config),
        SPECIAL_TOKENS_FILE: _dump(special_tokens),
    }


def _find_unsupported(model: Any) -> str | None:
    """Returns a feature of a SentencePiece model that tokenizer.json cannot express, or None."""
    kind = ModelType(model.trainer_spec.model_type)
    if kind not in _SUPPORTED:
        return (
            f"is a {kind.name} model of SentencePiece, which tokenizer.json cannot express: choose "
            "a UNIGRAM or BPE model"
        )
    if types := {piece.type for piece in model.pieces} - _SUPPORTED[kind]:
        names = ", ".join(sorted(PieceType(x).name for x in types))
        return (
            f"is a {kind.name} model with pieces of type {names}, which tokenizer.json cannot "
            "express: train one without"
        )
    spec = model.normalizer_spec
    if model.trainer_spec.treat_whitespace_as_suffix or not spec.escape_whitespaces:
        return (
            "has treat_whitespace_as_suffix or lacks escape_whitespaces, which tokenizer.json "
            "cannot express: train one with SentencePiece's defaults of these"
        )
    return None


def _algorithm(model: Any) -> Any:
    models = import_tokenizers().models
    fallback = model.trainer_spec.byte_fallback
    if model.trainer_spec.model_type == ModelType.BPE:
        return models.BPE(
            vocab={piece.piece: index for index, piece in enumerate(model.pieces)},
            merges=_merges(model),
            unk_token=_unknown(model).piece,
            fuse_unk=True,
            byte_fallback=fallback,
        )
    # SentencePiece prefers a user-defined piece to any pieces within it.
    best = max(piece.score for piece in model.pieces if piece.type == PieceType.NORMAL)
    pieces = [
        (piece.piece, len(piece.piece.encode("utf-8")) * best - 0.1)
        if piece.type == PieceType.USER_DEFINED
        else (piece.piece, piece.score)
        for piece in model.pieces
    ]
    return models.Unigram(pieces, list(model.pieces).index(_unknown(model)), fallback)


def _merges(model: Any) -> list[tuple[str, str]]:
    """Derives BPE merges: SentencePiece merges neighbors that form a piece, best score first."""
    normal = [piece for piece in model.pieces if piece.type == PieceType.NORMAL]
    known = {piece.piece for piece in normal}
    return [
        (text[:cut], text[cut:])
        for text in (piece.piece for piece in sorted(normal, key=lambda piece: -piece.score))
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]


def _normalizer(model: Any) -> Any:
    """Returns SentencePiece's normalization steps, in its order."""
    library = import_tokenizers()
    spec, normalizers = model.normalizer_spec, library.normalizers
    steps = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        # Only spaces are stripped; at the end also marks in the text itself, as SentencePiece does.
        steps.append(normalizers.Replace(library.Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(library.Regex(rf"\A +|[ {_SPACE}]+\z"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])


def _decoder(model: Any) -> Any:
    decoders, spec = import_tokenizers().decoders, model.normalizer_spec
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        steps.append(decoders.Strip(" ", _ALL if spec.remove_extra_whitespaces else 1, 0))
    return decoders.Sequence(steps)


def _check_ids(tokenizer: Any, vocabulary: Vocabulary, path: str | os.PathLike[str]) -> None:
    """Raises a RunError if a sample text gives other ids than the vocabulary."""
    tokenizer.encode_special_tokens = True  # the effect of `split_special_tokens`
    for text, expected in zip(_SAMPLES, vocabulary.encode(_SAMPLES), strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if ids != expected.tolist():
            raise RunError(
                f"vocabulary {path} cannot be written as a tokenizer.json: {text!r} is "
                f"{expected.tolist()} in SentencePiece and {ids} in tokenizers"
            )


def _unknown(model: Any) -> Any:
    return next(piece for piece in model.pieces if piece.type == PieceType.UNKNOWN)


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
