"""Interface of a source of text, and the kinds that `prepare --source` takes.

A source lists its parts in an order that depends on nothing but the input. A part is a unit of work
that any process can read, in any order: small, picklable, without open files. The fields of a
source are options of `prepare`; a source of your own is named `package.module:Class`
(docs/extend.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from anytime_jax.config.kinds import Kinds
from anytime_jax.errors import InputError


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

    def documents(self) -> Iterator[str | None]:
        """Yields the documents in order; raises InputError at the first bad one.

        None is a record without a text, which is left out and counted.
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
    """Yields the documents of parts without the records that have no text."""
    for part in parts:
        yield from (text for text in part.documents() if text is not None)


def reading_error(place: str, error: Exception) -> InputError:
    """Returns the error of a file, line or record, with the reason that the library gives."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    return InputError(f"{place} cannot be read ({reason or type(error).__name__})")
