"""Files of text as a source: JSON lines, Parquet and plain text, on disks and at addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.corpus.document_files import (
    JSON_SUFFIXES,
    find_files,
    full_path,
    read_json_lines,
    read_text,
    would_find,
)
from anytime_jax.corpus.parquet_files import PARQUET_SUFFIX, check_column, read_row_groups
from anytime_jax.corpus.source_interface import Part
from anytime_jax.corpus.validation_split import check_fraction, default_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.addresses import UNKNOWN_SIZE

# A part takes about a second to tokenize: a kill loses little, and every core has work.
PART_BYTES = 4_000_000
# A part of a Parquet file reads the file's footer, which names hundreds of row groups.
_PARQUET_PART_BYTES = 64_000_000
_LEAST_FRACTION = 0.01


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

    def documents(self) -> Iterator[str | None]:
        """Yields the documents of each file in turn."""
        for path, _ in self.files:
            if path.lower().endswith(JSON_SUFFIXES):
                yield from read_json_lines(path, self.text_field)
            else:
                yield from read_text(path)


@dataclasses.dataclass(frozen=True)
class RowGroupsPart:
    """Row groups of a Parquet file: the `index`-th of `count` stretches of equal numbers of them.

    Only the size of the file has to be known, so that thousands of files are listed unopened.
    """

    file: str
    size: int
    index: int
    count: int
    text_field: str
    validation_fraction: float

    @property
    def identity(self) -> list[Any]:
        """Path and size of the file, and the stretch."""
        return [self.file, self.size, self.index, self.count, self.validation_fraction]

    def documents(self) -> Iterator[str | None]:
        """Yields the texts of the rows, None for null."""
        return read_row_groups(self.file, self.text_field, self.index, self.count)


@dataclasses.dataclass(frozen=True)
class FileSource:
    """Files of text, of the kinds that their names end with.

    Attributes:
      input: a file, a quoted glob, or a folder, which is searched recursively; each also as an
        address, such as hf://datasets/OWNER/NAME/*.parquet; @FILE for a list of addresses.
      validation_input: the same, for validation.
      validation_fraction: without `validation_input`, fraction of the documents for validation, by
        the hash of their content (default: 0.01, and more of up to 2,000 documents).
      text_field: key of the text in a JSON line, column in a Parquet file; a.b for b inside a.
    """

    input: str
    validation_input: str | None = None
    validation_fraction: float | None = None
    text_field: str = "text"

    def __post_init__(self) -> None:
        if self.validation_fraction is not None:
            if self.validation_input is not None:
                raise InputError("give one of --validation-fraction and --validation-input")
            check_fraction(self.validation_fraction)

    def parts(self) -> Sequence[Part]:
        """Lists the files by path, small ones gathered into parts of some megabytes."""
        train = find_files(self.input)
        if self.validation_input is None:
            fraction = self.validation_fraction
            if fraction is None:
                parts = self._divide(train, _LEAST_FRACTION)
                fraction = default_fraction(parts, _LEAST_FRACTION)
            return self._divide(train, fraction)
        validation = find_files(self.validation_input)
        if common := set(train) & set(validation):
            raise InputError(
                f"{min(common)[0]} is in the training and in the validation input; give validation "
                "text of its own, or a validation fraction instead"
            )
        return [*self._divide(train, 0.0), *self._divide(validation, 1.0)]

    def settings(self) -> dict[str, Any]:
        """Returns the attributes that are used, with absolute paths."""
        fields = dataclasses.asdict(self)
        settings = {name: value for name, value in fields.items() if value is not None}
        for name in ("input", "validation_input"):
            if name in settings:
                settings[name] = full_path(settings[name])
        return {"kind": "files", **settings}

    def reads(self, file: Path) -> bool:
        """See `Source.reads`."""
        inputs = (self.input, self.validation_input)
        return any(would_find(each, file) for each in inputs if each is not None)

    def _divide(self, files: Sequence[tuple[str, int]], fraction: float) -> list[Part]:
        tables = [file for file in files if file[0].lower().endswith(PARQUET_SUFFIX)]
        if tables:
            check_column(tables[0][0], self.text_field)
        parts: list[Part] = []
        for path, size in tables:
            count = max(1, -(-size // _PARQUET_PART_BYTES))
            stretches = ((path, size, index, count) for index in range(count))
            parts += [RowGroupsPart(*each, self.text_field, fraction) for each in stretches]
        rest = (file for file in files if not file[0].lower().endswith(PARQUET_SUFFIX))
        return [*group_files(rest, fraction, self.text_field), *parts]


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
        total += PART_BYTES if size == UNKNOWN_SIZE else size
    return [FilesPart(tuple(group), text_field, validation_fraction) for group in groups]
