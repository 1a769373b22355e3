"""Interface of a source of text, and the kinds that `prepare --source` takes.

A source lists its parts in an order that depends on nothing but the input. A part is a unit of work
that any process can read, in any order: small, picklable, without open files. The fields of a
source are options of `prepare`; a source of your own is named `package.module:Class`
(docs/extend.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from anytime_jax.config.kinds import Kinds
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import TextCounts
from anytime_jax.errors import InputError
from anytime_jax.formatting import count_noun, printable


class LeftOut(NamedTuple):
    """A file that is no document: why, and its path."""

    reason: str
    name: str


class BadRecord(NamedTuple):
    """A record that cannot be read: its place, and why."""

    place: str
    reason: str


BadRecords = Literal["skip"]


class Part(Protocol):
    """A unit of work, read by one process from start to end."""

    @property
    def validation_fraction(self) -> float:
        """Fraction of the documents, from 0 to 1, that go to validation by their hash."""
        ...

    @property
    def identity(self) -> list[Any]:
        """Names and sizes of the input as JSON values, which reveal a changed part."""
        ...

    def documents(self) -> Iterator[str | LeftOut | BadRecord | None]:
        """Yields the documents in order; raises InputError at the first bad one.

        None is a record without a text, which is counted, and so are `LeftOut` and `BadRecord`.
        """
        ...


@runtime_checkable
class TokenPart(Protocol):
    """A `Part` whose documents are tokens already; its `documents` are not read."""

    def token_documents(self, vocabulary: Vocabulary) -> Iterator[np.ndarray | LeftOut]:
        """Yields the documents as int32 ids of a vocabulary, without BOS and EOS.

        Raises an InputError if the ids cannot be of this vocabulary.
        """
        ...


@runtime_checkable
class Source(Protocol):
    """Text, divided into parts. A subclass is a dataclass, whose fields are JSON values."""

    def parts(self) -> Sequence[Part]:
        """Lists the parts in order; raises InputError if there is nothing to read."""
        ...


SOURCES = Kinds("source", Source, default="files", setting="--source")


def read_texts(parts: Iterable[Part]) -> Iterator[str]:
    """Yields the documents of parts without what is left out."""
    for part in parts:
        yield from (text for text in part.documents() if isinstance(text, str))


def describe_left_out(counts: TextCounts, folder: str = "") -> list[str]:
    """Returns lines with the counts of what is left out, by reason, and names in `folder`."""
    lines = []
    if counts.null_records:
        lines.append(f"left out: {count_noun(counts.null_records, 'record')} without a text (null)")
    if counts.bad_records:
        lines.append(f"left out: {count_noun(counts.bad_records, 'record')} that cannot be read")
        lines += (f"  {printable(place)} ({reason})" for place, reason in counts.first_bad_records)
    names: dict[str, list[str]] = {}
    for reason, name in counts.left_out:
        name = printable(name.removeprefix(folder and f"{folder}/"))
        names.setdefault(reason, []).append(name)
    return lines + [
        f"left out: {len(x):,} {reason} ({', '.join([*x[:3], *['...'][: len(x) - 3]])})"
        for reason, x in names.items()
    ]


def reading_error(place: str, error: Exception) -> InputError:
    """Returns the error of a file, line or record, with the reason that the library gives."""
    return InputError(f"{place} cannot be read ({_reason(error)})")


def bad_record(place: str, error: Exception, bad_records: BadRecords | None) -> BadRecord:
    """Returns a record that is left out; raises an InputError without `bad_records`."""
    if bad_records is None:
        advice = "--bad-records=skip leaves out such records"
        raise InputError(f"{reading_error(place, error)}; {advice}") from error
    return BadRecord(place, _reason(error))


def _reason(error: Exception) -> str:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    return reason or type(error).__name__
