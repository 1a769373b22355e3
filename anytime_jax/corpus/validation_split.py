"""Validation split of a text: which documents are in it, and how many by default."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from anytime_jax.corpus.source_interface import Part, read_texts
from anytime_jax.data.dataset_info import SPLITS, TRAIN, VALIDATION
from anytime_jax.errors import InputError

_MOST_DOCUMENTS = 2000  # with more, nearly any fraction works, and reading them again takes long
_ENOUGH_BYTES = 200_000  # default amount of validation text


def assign_split(document: str | np.ndarray, validation_fraction: float) -> str:
    """Assigns a document, a text or ids, to a split by the hash of its content.

    So duplicates share a split.
    """
    if validation_fraction in (0, 1):
        return SPLITS[int(validation_fraction)]
    return VALIDATION if split_position(document) < validation_fraction else TRAIN


def split_position(document: str | np.ndarray) -> float:
    """Returns a document's hash in [0, 1); it is in validation if this is below the fraction."""
    is_text = isinstance(document, str)
    content = document.encode("utf-8") if is_text else document.astype("<i4").tobytes()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def check_fraction(fraction: float) -> None:
    """Raises InputError unless both splits get documents."""
    if not 0 < fraction < 1:
        raise InputError(
            f"validation fraction {fraction} is not between 0 and 1; 0.01 sets aside 1% of the "
            "documents"
        )


def default_fraction(parts: Sequence[Part], least: float) -> float:
    """Returns the fraction of documents to set aside, `least` or more if there are few documents.

    Validation gets at least five documents (a quarter, if there are fewer than 20), and a tenth of
    the text or 200 kB.
    """
    first = itertools.islice(read_texts(parts), _MOST_DOCUMENTS + 1)
    sizes = sorted((split_position(text), len(text.encode("utf-8"))) for text in first)
    if len(sizes) > _MOST_DOCUMENTS:
        return least
    enough = min(_ENOUGH_BYTES, sum(size for _, size in sizes) // 10)
    count, total = min(5, -(-len(sizes) // 4)), 0
    for i, ((position, size), (following, _)) in enumerate(itertools.pairwise(sizes), start=1):
        total += size
        if i >= count and total >= enough and following > max(position, least):
            return max(least, _round_between(position, following))
    return least


def _round_between(low: float, high: float) -> float:
    """A short number above `low` and below `high`."""
    middle = (low + high) / 2
    rounded = (round(middle, digits) for digits in range(1, 17))
    return next((x for x in rounded if low < x < high), middle)
