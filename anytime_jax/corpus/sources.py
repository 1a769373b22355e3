"""Sources of text: the interface, and the source that reads files.

A source lists its parts in an order that depends on nothing but the input. A part is a unit of work
that any process can read, in any order: small, picklable, without open files.

A source of your own is a frozen dataclass, a subclass of `Source` with a method `parts`; `prepare
--source=package.module:Class` makes one, whose fields are given with `--option` (docs/extend.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from anytime_jax.corpus.document_files import (
    JSON_SUFFIXES,
    TEXT_SUFFIXES,
    find_files,
    local_path,
    read_json_lines,
    read_text,
    would_find,
)
from anytime_jax.corpus.validation_split import check_fraction
from anytime_jax.errors import InputError

# A part takes about a second to tokenize: a kill loses little, and every core has work.
PART_BYTES = 4_000_000


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

    def documents(self) -> Iterator[str]:
        """Yields the documents in order; raises InputError at the first bad one."""
        ...


class Source(Protocol):
    """Text, divided into parts. A subclass inherits `settings` and `reads` for its fields."""

    def parts(self) -> Sequence[Part]:
        """Lists the parts in order; raises InputError if there is nothing to read."""
        ...

    def settings(self) -> dict[str, Any]:
        """Returns the settings, as JSON values, for the dataset's metadata."""
        fields = dataclasses.asdict(cast(Any, self))
        return {"kind": f"{type(self).__module__}:{type(self).__name__}", **fields}

    def reads(self, file: Path) -> bool:
        """Returns whether a file, which need not exist yet, is part of the text."""
        del file
        return False


@dataclasses.dataclass(frozen=True)
class FilesPart:
    """Text files (a document each) and JSON files (a document a line), as (path, bytes)."""

    files: tuple[tuple[str, int], ...]
    text_field: str
    validation_fraction: float

    @property
    def identity(self) -> list[Any]:
        """Paths and sizes of the files."""
        return [*map(list, self.files), self.validation_fraction]

    def documents(self) -> Iterator[str]:
        """Yields the documents of each file in turn."""
        for path, _ in self.files:
            if path.endswith(JSON_SUFFIXES):
                yield from read_json_lines(path, self.text_field)
            else:
                yield from read_text(path)


@dataclasses.dataclass(frozen=True)
class FileSource:
    """JSON lines, such as allenai/c4 (kind "json"), or any folder of text (kind "folder").

    Attributes:
      input: a file, a glob, or a folder, which is searched recursively.
      validation_input: the same, for validation.
      validation_fraction: without `validation_input`, fraction of the documents for validation, by
        the hash of their content.
      text_field: key of the text in a JSON line.
    """

    kind: Literal["json", "folder"]
    input: str
    validation_input: str | None = None
    validation_fraction: float = 0.01
    text_field: str = "text"

    def parts(self) -> Sequence[Part]:
        """Lists the files by path, small ones gathered into parts of some megabytes."""
        if self.validation_input is None:
            check_fraction(self.validation_fraction)
            train = find_files(self.input, self._suffixes)
            return group_files(train, self.validation_fraction, self.text_field)
        train = find_files(self.input, self._suffixes)
        validation = find_files(self.validation_input, self._suffixes)
        if common := set(train) & set(validation):
            raise InputError(
                f"{min(common)[0]} is in the training and in the validation input; give validation "
                "text of its own, or a validation fraction instead"
            )
        return [
            *group_files(train, 0.0, self.text_field),
            *group_files(validation, 1.0, self.text_field),
        ]

    def settings(self) -> dict[str, Any]:
        """Returns the attributes that are used, with absolute paths."""
        settings = dataclasses.asdict(self) | {"input": local_path(self.input)}
        if self.validation_input is None:
            del settings["validation_input"]
            return settings
        del settings["validation_fraction"]
        return settings | {"validation_input": local_path(self.validation_input)}

    def reads(self, file: Path) -> bool:
        """See `Source.reads`."""
        inputs = (self.input, self.validation_input)
        return any(would_find(each, self._suffixes, file) for each in inputs if each is not None)

    @property
    def _suffixes(self) -> tuple[str, ...]:
        return JSON_SUFFIXES if self.kind == "json" else (*TEXT_SUFFIXES, *JSON_SUFFIXES)


def group_files(
    files: Iterable[tuple[str, int]], validation_fraction: float, text_field: str = ""
) -> list[FilesPart]:
    """Groups (path, bytes) in order, into parts of at least `PART_BYTES` each except the last."""
    groups: list[list[tuple[str, int]]] = []
    total = 0
    for path, size in files:
        if not groups or total >= PART_BYTES:
            groups.append([])
            total = 0
        groups[-1].append((path, size))
        total += size
    return [FilesPart(tuple(group), text_field, validation_fraction) for group in groups]
