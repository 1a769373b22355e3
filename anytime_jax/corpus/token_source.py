"""Token files of other trainers as a source: their tokens are copied, not tokenized again.

A document is what stands between two tokens that begin or end documents, whichever of these the
writer of the file put there. The documents of Megatron's files end where the index says, too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from anytime_jax.corpus.document_files import FoundFiles, last_change
from anytime_jax.corpus.file_source import InputFiles
from anytime_jax.corpus.source_interface import LeftOut, Part, TokenPart
from anytime_jax.corpus.token_files import INDEX_SUFFIX, TOKEN_SUFFIXES, Stretch, open_tokens
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.errors import InputError

_SAMPLE_DOCUMENTS, _SAMPLE_TOKENS = 16, 1000
_UNSURE_TOKENS = 100


@dataclasses.dataclass(frozen=True)
class TokenStretch(TokenPart):
    """A stretch of a file, unless it is empty; `left_out` are files that are not read."""

    stretch: Stretch | None
    validation_fraction: float
    round_trip: bool
    left_out: tuple[LeftOut, ...] = ()

    @property
    def identity(self) -> list[Any]:
        """The file, its last change, and the stretch."""
        if self.stretch is None:
            return []
        file, *place = self.stretch
        changes = [last_change(path) for path in (file.path, file.data)]
        return [*file, *changes, *place, self.validation_fraction]

    def documents(self) -> Iterator[str]:
        """Refuses: there is no text to train a vocabulary on."""
        raise InputError("tokens are ids of a vocabulary: give it with --vocabulary")

    def token_documents(self, vocabulary: Vocabulary) -> Iterator[np.ndarray | LeftOut]:
        """Yields the documents without the tokens that begin or end them; none is empty."""
        yield from self.left_out
        if self.stretch is None:
            return
        path = self.stretch.file.path
        named = {vocabulary.eos_id, vocabulary.named_bos_id, *vocabulary.begin}
        delimiters = [x for x in named if x is not None]
        tokens, begins = self.stretch.read(delimiters)
        largest, least = int(tokens.max(initial=0)), int(tokens.min(initial=0))
        if least < 0 or largest >= vocabulary.size:
            raise InputError(
                f"{path} has token {least if least < 0 else largest}, and the vocabulary has "
                f"{vocabulary.size:,} pieces: give the vocabulary and the --dtype of the file"
            )
        tokens = tokens.astype(np.int32)
        is_delimiter = np.isin(tokens, delimiters)
        cuts = np.union1d(np.flatnonzero(is_delimiter) + 1, [0, tokens.size, *begins])
        spans = ((a, b - is_delimiter[b - 1]) for a, b in itertools.pairwise(cuts.tolist()))
        documents = (tokens[a:b] for a, b in spans if a < b)
        sample = list(itertools.islice(documents, _SAMPLE_DOCUMENTS))
        if self.round_trip and 2 * sum(_is_encoded(x, vocabulary) for x in sample) < len(sample):
            raise InputError(
                f"{path} is probably of another vocabulary or type: most of its first documents "
                "are single tokens, or have other ids when they are decoded and encoded again; "
                "--round-trip=false copies them all the same"
            )
        yield from itertools.chain(sample, documents)


def _is_encoded(ids: np.ndarray, vocabulary: Vocabulary) -> bool:
    """Whether the beginning of a document, decoded and encoded again, has the same ids.

    A single token shows nothing: tokens of 4 bytes, read as ones of 2, have a zero between each
    two, which may be the end of text.
    """
    if ids.size == 1:
        return False
    again = vocabulary.encode([vocabulary.decode(ids[:_SAMPLE_TOKENS])])[0]
    sure = _SAMPLE_TOKENS - _UNSURE_TOKENS  # where the text was cut, a word may have other ids
    return np.array_equal(ids[:sure], again[:sure])


@dataclasses.dataclass(frozen=True)
class TokenSource(InputFiles):
    """Files of tokens: .bin and .npy, with or without a header, and Megatron's .idx.

    Attributes:
      dtype: type of the tokens in files without a header.
      round_trip: whether a sample of the documents is decoded and encoded again, and files where
        most of them have other ids then are refused.
    """

    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int32", "int64"] | None = None
    round_trip: bool = True

    def divide(self, found: FoundFiles, fraction: float) -> Sequence[Part]:
        """Lists stretches of the files."""
        left_out = [LeftOut("hidden", path) for path in found.hidden]
        paths = {path for path, _ in found.files}
        stretches = []
        for path, _ in found.files:
            if not path.lower().endswith(TOKEN_SUFFIXES):
                left_out.append(LeftOut("not .bin, .npy or .idx", path))
            elif f"{path.removesuffix('.bin')}{INDEX_SUFFIX}" not in paths:
                file = open_tokens(path, self.dtype)
                stretches += file.divide()
                left_out += [LeftOut("empty", path)] * (not file.tokens)
        options = fraction, self.round_trip
        others = [TokenStretch(None, *options, tuple(left_out))] if left_out else []
        return [*others, *(TokenStretch(stretch, *options) for stretch in stretches)]
