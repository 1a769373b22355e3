"""Runs of tokens that stand verbatim in an earlier document, and the lines they cover.

Shape suffixes: N tokens of all documents, D documents, P positions where a run may start, T tokens
of one document.
"""

from __future__ import annotations

import numpy as np
import sentencepiece

from anytime_jax.corpus.vocabulary_interface import Vocabulary

RUN = 32  # tokens; a power of two
_FACTOR = 0x9E3779B97F4A7C15  # odd


def repeated_tokens(
    tokens_N: np.ndarray, lengths_D: np.ndarray, groups_D: np.ndarray
) -> np.ndarray:
    """Finds the tokens in runs of 32 whose first place is in a document of an earlier group.

    A run lies within one document. Equal 64-bit hashes count as equal runs: among 10⁸ runs, a pair
    that differs has the same hash with probability 0.0003.

    Args:
      tokens_N: ids of all documents, one after the other.
      lengths_D: numbers of tokens of the documents.
      groups_D: their groups, ascending; `np.arange(D)` if each is a group of its own.

    Returns:
      repeated_N: bool.
    """
    repeated_N = np.zeros(len(tokens_N), bool)
    left_N = np.repeat(np.cumsum(lengths_D), lengths_D) - np.arange(len(tokens_N))
    starts_P = np.flatnonzero(left_N >= RUN)
    if not len(starts_P):
        return repeated_N
    hashes_P = _run_hashes(tokens_N)[starts_P]
    order_P = np.argsort(hashes_P, kind="stable")
    hashes_P = hashes_P[order_P]
    groups_P = np.repeat(groups_D.astype(np.int32), lengths_D)[starts_P[order_P]]
    first_P = np.flatnonzero(np.r_[True, hashes_P[1:] != hashes_P[:-1]])
    counts = np.diff(np.r_[first_P, len(hashes_P)])
    is_later_P = groups_P != np.repeat(groups_P[first_P], counts)
    repeated_N[starts_P[order_P[is_later_P]]] = True
    shift = 1
    while shift < RUN:  # from the starts to all tokens of the runs
        repeated_N[shift:] |= repeated_N[:-shift].copy()
        shift *= 2
    return repeated_N


def _run_hashes(tokens_N: np.ndarray) -> np.ndarray:
    """uint64 hashes of the 32 tokens from each position, those of the last 31 without meaning.

    A polynomial in `_FACTOR` modulo 2⁶⁴ over a random value for each id, by doubling the length.
    """
    values = np.random.default_rng(0).integers(0, 2**64, int(tokens_N.max()) + 1, np.uint64)
    hashes_N = values[tokens_N]
    length, power = 1, _FACTOR
    while length < RUN:
        following_N = hashes_N[length:].copy()
        hashes_N *= np.uint64(power)
        hashes_N[:-length] += following_N
        length, power = 2 * length, power * power % 2**64
    return hashes_N


def piece_bytes(vocabulary: Vocabulary) -> np.ndarray:
    """Returns the number of bytes of text for each id of a SentencePiece vocabulary."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    texts = (pieces.IdToPiece(i).replace("\u2581", " ") for i in range(vocabulary.size))
    return np.array([1 if pieces.IsByte(i) else len(x.encode()) for i, x in enumerate(texts)])


def remove_lines(text: str, bytes_T: np.ndarray, repeated_T: np.ndarray) -> str:
    """Removes the lines of a document all of whose tokens are repeated.

    Args:
      text: the document.
      bytes_T: number of bytes of each token, which add up to those of the text.
      repeated_T: bool for each token. A token at the end of a line may reach into the next: it
        belongs to both.
    """
    if not repeated_T.any():
        return text
    lines = text.encode("utf-8").splitlines(keepends=True)  # of bytes: \n, \r and \r\n only
    ends = np.cumsum([len(line) for line in lines])
    token_ends_T = np.cumsum(bytes_T)
    assert token_ends_T[-1] == ends[-1]
    new_T = ~repeated_T
    first = np.searchsorted(ends, (token_ends_T - bytes_T)[new_T], side="right")
    last = np.searchsorted(ends, token_ends_T[new_T] - 1, side="right")
    # The number of new tokens in each line, from where they begin and end.
    change = np.bincount(first, minlength=len(lines) + 1)
    change -= np.bincount(last + 1, minlength=len(lines) + 1)
    kept = np.cumsum(change[:-1]) > 0
    return b"".join(line for line, keep in zip(lines, kept, strict=True) if keep).decode("utf-8")
