"""Characters that a tokenizer drops.

Byte pairs without an unknown token write nothing for a character that they lack. A pre-tokenizer
can remove the text at which it splits, and a normalizer can delete characters. White space does not
count, as many tokenizers join or remove it. Nor does a normalizer's change of a character, such as
to lowercase, or the loss of its accent.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# Normalizers and pre-tokenizers that delete no character but white space and accents, unless they
# replace text by nothing or remove the text at which they split.
# fmt: off
_KEEPING = {
    "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip", "StripAccents",
    "ByteLevel", "Metaspace", "Split", "Punctuation", "Digits", "UnicodeScripts", "FixedLength",
    "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Sequence",
}
# fmt: on
# Normalizers that delete some characters, such as control characters, whatever is beside them.
_DELETING = {"Precompiled", "BertNormalizer", "Nmt"}
_SPACE = "\u2581"  # stands for a space


class DeletedCharacters:
    """Counts the characters of texts that `normalize` deletes, whatever is beside them."""

    def __init__(self, normalize: Callable[[str], str]):
        self._deletes = functools.cache(lambda x: is_deleted(normalize, "a", x, "a"))

    def count(self, text: str) -> int:
        """Counts them in a text."""
        return sum(text.count(x) for x in set(text) if self._deletes(x))


class DroppedCharacters:
    """Counts the characters that a tokenizer of the Hugging Face libraries drops of texts.

    `library` is the package tokenizers, `rules` the parsed `tokenizer.json` of the tokenizer.
    """

    def __init__(self, library: Any, tokenizer: Any, rules: dict[str, Any]):
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        steps = [*_steps(rules.get("normalizer")), *_steps(rules.get("pre_tokenizer"))]
        kinds = {step["type"] for step in steps}
        self._removes = not kinds <= _KEEPING | _DELETING or any(
            step.get("behavior") == "Removed" or step.get("content") == "" for step in steps
        )
        self._deleted: DeletedCharacters | None = None
        if kinds & _DELETING and not self._removes:
            self._deleted = DeletedCharacters(self._normalizer.normalize_str)
        self._model = model = rules["model"]
        self._bytes: Any = None
        if "ByteLevel" in kinds:
            self._bytes = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pieces = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else [""]
        pieces = self._bytes.alphabet() if self._bytes else pieces
        # Models of other types than byte pairs refuse a text for which they have no unknown token.
        is_pairs = model.get("type", "BPE") == "BPE" and model.get("unk_token") is None
        self._writes_all = not is_pairs or model["vocab"].keys() >= set(pieces)
        self._writes = functools.cache(self._has_pieces)

    def count(self, text: str, encoding: Any) -> int:
        """Counts them in a text, given the library's encoding of it without special tokens."""
        # Offsets would add a third to the time of most encodings, and those of byte pairs that drop
        # characters are wrong. So they only tell where a text can have been removed.
        gaps = _gaps(text, encoding.offsets) if self._removes else []
        dropped = self._deleted.count(text) if self._deleted else 0
        if self._normalizer:
            normalize = self._normalizer.normalize_str
            beside = ((text[max(x - 1, 0) : x], text[x], text[x + 1 : x + 2]) for x in gaps)
            dropped += sum(is_deleted(normalize, *each) for each in beside)
        if self._writes_all and not gaps:
            return dropped
        normal = self._normalizer.normalize_str(text) if self._normalizer else text
        unwritten = set() if self._writes_all else {x for x in set(normal) if not self._writes(x)}
        dropped += sum(map(normal.count, unwritten))
        if self._removes and self._pre_tokenizer:
            pieces = self._pre_tokenizer.pre_tokenize_str(normal)
            removed = _gaps(normal, [span for _, span in pieces])
            dropped += sum(normal[index] not in unwritten for index in removed)
        return dropped

    def _has_pieces(self, character: str) -> bool:
        """Whether byte pairs have pieces for a character; they need none for white space."""
        model = self._model
        spelled: Iterable[str] = [character]
        if self._bytes:
            spelled = self._bytes.pre_tokenize_str(character)[0][0]
        elif model.get("byte_fallback") and character not in model["vocab"]:
            spelled = [f"<0x{byte:02X}>" for byte in character.encode("utf-8")]
        start, end = (
            model.get(x) or "" for x in ("continuing_subword_prefix", "end_of_word_suffix")
        )
        forms = ((x, start + x, x + end, start + x + end) for x in spelled)
        return _is_space(character) or all(not model["vocab"].keys().isdisjoint(x) for x in forms)


def is_deleted(normalize: Callable[[str], str], before: str, character: str, after: str) -> bool:
    """Whether `normalize` deletes a character: its neighbors become the same without it."""
    is_accent = unicodedata.category(character).startswith("M")
    if is_accent or _is_space(character):
        return False
    return normalize(before + character + after) == normalize(before + after)


def _gaps(text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the indices of the characters, other than white space, that no span covers."""
    edges = np.fromiter(itertools.chain.from_iterable(spans), np.int64)
    starts, ends = (np.bincount(x, minlength=len(text) + 1) for x in (edges[::2], edges[1::2]))
    uncovered = np.flatnonzero(np.cumsum(starts - ends)[:-1] == 0).tolist()
    return [index for index in uncovered if not _is_space(text[index])]


def _is_space(character: str) -> bool:
    return character.isspace() or character == _SPACE


def _steps(rule: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns a normalizer or a pre-tokenizer, and those in it if it is a sequence."""
    if rule is None:
        return []
    nested = [*rule.get("normalizers", ()), *rule.get("pretokenizers", ())]
    return [rule, *itertools.chain.from_iterable(map(_steps, nested))]
