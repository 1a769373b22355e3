"""Where text comes from: the idea of a source, and files of text.

A source lists its `Part`s, in an order that depends on nothing but the input. A part is a unit of
work that any process can read on its own, in any order: small, picklable, without open files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from anytime_jax.data.text_files import JSON_SUFFIXES, find_files, read_json_lines, read_text
from anytime_jax.errors import InputError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
# About a second of tokenisation: little is lost to a kill, and every core has something to do.
PART_BYTES = 4_000_000


class Part(Protocol):
    """A unit of work, read by one process from start to end."""

    @property
    def validation_fraction(self) -> float:
        """The share of the documents that go to validation: 0, 1, or between, by their hash."""
        ...

    @property
    def identity(self) -> list[Any]:
        """What tells this part from another one, for the plan: names and sizes."""
        ...

    def documents(self) -> Iterator[str]:
        """Yields the documents in order; raises InputError at the first that is bad."""
        ...


class Source(Protocol):
    """Text, and how it is divided into parts."""

    def parts(self) -> Sequence[Part]:
        """Lists the parts, in order; raises InputError where there is nothing to read."""
        ...

    def settings(self) -> dict[str, Any]:
        """What was asked for, in JSON values, to be remembered with the dataset."""
        ...


def assign_split(text: str, validation_fraction: float) -> str:
    """Decides by its content which split a document belongs to, so that equal ones share one.

    Args:
      text: the document.
      validation_fraction: 0 puts all in "train", 1 all in "validation".

    Returns:
      "train" or "validation".
    """
    if validation_fraction in (0, 1):
        return SPLITS[int(validation_fraction)]
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return VALIDATION if int.from_bytes(digest, "big") < validation_fraction * 2**64 else TRAIN


@dataclasses.dataclass(frozen=True)
class FilesPart:
    """Some text files (a document each) and JSON files (a document a line).

    Attributes:
      files: (path, bytes) of each, in order.
      text_field: the key of the text in a JSON line.
      validation_fraction: see `Part`.
    """

    files: tuple[tuple[str, int], ...]
    text_field: str
    validation_fraction: float

    @property
    def identity(self) -> list[Any]:
        """The files' paths and sizes."""
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
    """JSON lines (kind "json": allenai/c4 and its like) or any folder of text (kind "folder").

    Attributes:
      kind: which of the two.
      input: a file, a glob, or (a folder, searched recursively).
      validation_input: the same, for validation.
      validation_fraction: where there is no validation_input, the share of documents set aside for
        validation by the hash of their content.
      text_field: the key of the text in a JSON line.
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
            return self._list(self.input, self.validation_fraction)
        train, validation = self._list(self.input, 0.0), self._list(self.validation_input, 1.0)
        both = {path for part in train for path, _ in part.files} & {
            path for part in validation for path, _ in part.files
        }
        if both:
            raise InputError(
                f"{min(both)} is in the training and in the validation input; give validation text "
                "of its own, or a validation fraction instead"
            )
        return [*train, *validation]

    def settings(self) -> dict[str, Any]:
        """The attributes, with absolute paths."""
        settings = {
            "kind": self.kind,
            "input": os.path.abspath(self.input),
            "text_field": self.text_field,
        }
        if self.validation_input is None:
            return settings | {"validation_fraction": self.validation_fraction}
        return settings | {"validation_input": os.path.abspath(self.validation_input)}

    def _list(self, pattern: str, share: float) -> list[FilesPart]:
        suffixes = JSON_SUFFIXES if self.kind == "json" else (".txt", *JSON_SUFFIXES)
        files = find_files(pattern, suffixes)
        return [FilesPart(group, self.text_field, share) for group in group_files(files)]


def check_fraction(share: float) -> None:
    """Raises InputError unless `share` leaves documents for both splits."""
    if not 0 < share < 1:
        raise InputError(
            f"validation fraction {share} is not between 0 and 1; 0.01 sets aside 1% of the "
            "documents"
        )


def group_files(files: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, int], ...]]:
    """Gathers (path, bytes) into groups of at least `PART_BYTES`, but for the last, in order."""
    groups, group, total = [], [], 0
    for path, size in files:
        group.append((path, size))
        total += size
        if total >= PART_BYTES:
            groups.append(tuple(group))
            group, total = [], 0
    return [*groups, tuple(group)] if group else groups
