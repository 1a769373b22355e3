"""Vocabularies as the Hugging Face libraries read them: `tokenizer.json` and what goes beside it.

A SentencePiece model is said again in the rules of the `tokenizers` library, so that its ids are
SentencePiece's own, to the limits that docs/data.md lists. What came from there goes back as it
was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anytime_jax.atomic import atomic_write
from anytime_jax.data.hf_tokenizer import (
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    import_tokenizers,
    is_hf_tokenizer,
    unbundle,
)
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.sentencepiece_model import ModelType, PieceType, parse_model

# SentencePiece's mark for a space.
_SPACE = "▁"
# Spaces at the beginning of a text, where none are to stay.
_ALL = 2**31 - 1
# Pieces that text is made of, or that it never is; others bend the algorithm.
_PLAIN = {PieceType.NORMAL, PieceType.UNKNOWN, PieceType.CONTROL, PieceType.BYTE}
_EXPRESSIBLE = {ModelType.UNIGRAM: _PLAIN | {PieceType.USER_DEFINED}, ModelType.BPE: _PLAIN}

# Reads tokenizer.json as it stands, in every version of transformers.
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")

# What both must spell in the same ids before a tokenizer is written.
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
    vocabulary_path: str | os.PathLike[str], directory: str | os.PathLike[str], length: int
) -> None:
    """Writes a vocabulary as `transformers.AutoTokenizer` reads it, without code of its own.

    The tokenizer adds no EOS or other token to a text, and takes none in the middle of it for one:
    text that says "</s>" is text.

    Args:
      vocabulary_path: a SentencePiece model, a tokenizer.json, or what a dataset keeps of either.
      directory: where `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` go.
      length: L, the tokens that the model was trained to see, for `model_max_length`.

    Raises:
      InputError: there is no such vocabulary, it is of a kind that cannot be said in those rules,
        or the library tokenizers is not installed.
      RunError: the tokenizer to be written does not give the same ids as the vocabulary.
    """
    vocabulary = load_vocabulary(vocabulary_path)
    if is_hf_tokenizer(vocabulary.model, Path(vocabulary_path)):
        files = _as_it_came(vocabulary, length)
    else:
        files = _translated(vocabulary, length, vocabulary_path)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with atomic_write(directory / name) as temporary:
            temporary.write_bytes(text.encode("utf-8"))


def _as_it_came(vocabulary: Vocabulary, length: int) -> dict[str, str]:
    """The files of a tokenizer that was theirs before; only the length is this model's."""
    files = unbundle(vocabulary.model)
    special_tokens = json.loads(files.get(SPECIAL_TOKENS_FILE, "{}"))
    config = json.loads(files.get(CONFIG_FILE, "{}"))
    config = {**_CLASS, **special_tokens, **config, "model_max_length": length}
    named = {name: config[name] for name in _NAMES if name in config}
    return {SPECIAL_TOKENS_FILE: _dump(named), **files, CONFIG_FILE: _dump(config)}


def _translated(
    vocabulary: Vocabulary, length: int, path: str | os.PathLike[str]
) -> dict[str, str]:
    """The files that say a SentencePiece model again, held against it."""
    library = import_tokenizers()
    model = parse_model(vocabulary.model)
    _check(model, path)
    tokenizer = library.Tokenizer(_algorithm(model))
    tokenizer.normalizer, tokenizer.decoder = _normalizer(model), _decoder(model)
    tokenizer.add_special_tokens(
        [library.AddedToken(name, normalized=False) for name in _controls(model)]
    )
    rules = tokenizer.to_str(pretty=True)
    _compare(library.Tokenizer.from_str(rules), vocabulary, path)
    special_tokens = _special_tokens(model, vocabulary)
    config = {
        **_CLASS,
        **special_tokens,
        "model_max_length": length,
        # As SentencePiece has it: "</s>" in a text is text, "a ," does not become "a,".
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        # Decoders take no token_type_ids.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {
        TOKENIZER_FILE: rules,
        CONFIG_FILE: _dump(config),
        SPECIAL_TOKENS_FILE: _dump(special_tokens),
    }


def _check(model: Any, path: str | os.PathLike[str]) -> None:
    """Refuses what the rules of the `tokenizers` library do not express."""
    kind = ModelType(model.trainer_spec.model_type)
    if kind not in _EXPRESSIBLE:
        raise InputError(
            f"vocabulary {path} is a SentencePiece model of words or characters ({kind.name}), "
            "which tokenizer.json cannot express; give a unigram or BPE model"
        )
    others = {PieceType(piece.type).name for piece in model.pieces} - {
        allowed.name for allowed in _EXPRESSIBLE[kind]
    }
    if others:
        raise InputError(
            f"vocabulary {path} is a {kind.name} model with pieces of type "
            f"{', '.join(sorted(others))}, which tokenizer.json cannot express; train one without"
        )
    if (
        model.trainer_spec.treat_whitespace_as_suffix
        or not model.normalizer_spec.escape_whitespaces
    ):
        raise InputError(
            f"vocabulary {path} has treat_whitespace_as_suffix or lacks escape_whitespaces, which "
            "tokenizer.json cannot express; train one with SentencePiece's own values of these"
        )


def _algorithm(model: Any) -> Any:
    """What cuts a normalised text into pieces."""
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
    # SentencePiece prefers a piece of the user's to any pieces within it.
    best = max(piece.score for piece in _of_type(model, PieceType.NORMAL))
    pieces = [
        (piece.piece, len(piece.piece.encode("utf-8")) * best - 0.1)
        if piece.type == PieceType.USER_DEFINED
        else (piece.piece, piece.score)
        for piece in model.pieces
    ]
    return models.Unigram(pieces, list(model.pieces).index(_unknown(model)), fallback)


def _merges(model: Any) -> list[tuple[str, str]]:
    """The pairs of pieces that are a piece together, in the order in which they are merged.

    SentencePiece has no such pairs: it merges any two neighbours whose text is a piece, those of
    the highest score first.
    """
    normal = list(_of_type(model, PieceType.NORMAL))
    known = {piece.piece for piece in normal}
    return [
        (text[:cut], text[cut:])
        for text in (piece.piece for piece in sorted(normal, key=lambda piece: -piece.score))
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]


def _normalizer(model: Any) -> Any:
    """What SentencePiece does to a text before it looks for pieces, in its order."""
    library = import_tokenizers()
    spec, normalizers = model.normalizer_spec, library.normalizers
    steps = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        # Spaces only, but at the end also marks that the text had itself, as SentencePiece does.
        steps.append(normalizers.Replace(library.Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(library.Regex(rf"\A +|[ {_SPACE}]+\z"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])


def _decoder(model: Any) -> Any:
    decoders, spec = import_tokenizers().decoders, model.normalizer_spec
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        most = _ALL if spec.remove_extra_whitespaces else 1
        steps.append(decoders.Strip(" ", most, 0))
    return decoders.Sequence(steps)


def _compare(tokenizer: Any, vocabulary: Vocabulary, path: str | os.PathLike[str]) -> None:
    """Refuses a tokenizer that cuts a sample in another way than the vocabulary."""
    tokenizer.encode_special_tokens = True  # as `split_special_tokens` asks of it
    for text, expected in zip(_SAMPLES, vocabulary.encode(_SAMPLES), strict=True):
        given = tokenizer.encode(text, add_special_tokens=False).ids
        if given != expected.tolist():
            raise RunError(
                f"vocabulary {path} cannot be written as a tokenizer.json: {text!r} is "
                f"{expected.tolist()} to SentencePiece and {given} to tokenizers"
            )


def _special_tokens(model: Any, vocabulary: Vocabulary) -> dict[str, str]:
    """Which pieces end a document, stand for what is unknown, and fill a batch up."""
    eos = model.pieces[vocabulary.eos_id].piece
    pad = model.trainer_spec.pad_piece
    pad = pad if pad in _controls(model) else eos
    return {"eos_token": eos, "pad_token": pad, "unk_token": _unknown(model).piece}


def _controls(model: Any) -> list[str]:
    """The pieces that are never text, in the order of their ids."""
    return [
        piece.piece
        for piece in model.pieces
        if piece.type in (PieceType.CONTROL, PieceType.UNKNOWN)
    ]


def _unknown(model: Any) -> Any:
    return next(_of_type(model, PieceType.UNKNOWN))  # SentencePiece reads no model without


def _of_type(model: Any, wanted: PieceType) -> Iterator[Any]:
    return (piece for piece in model.pieces if piece.type == wanted)


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
