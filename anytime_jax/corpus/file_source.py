"""Files of text as a source: JSON lines, Parquet and plain text, on disks and at addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from anytime_jax.corpus.document_files import (
    JSON_SUFFIXES,
    FoundFiles,
    find_files,
    full_path,
    last_change,
    read_json_lines,
    read_text,
)
from anytime_jax.corpus.parquet_files import PARQUET_SUFFIX, read_row_groups
from anytime_jax.corpus.source_interface import BadRecord, BadRecords, LeftOut, Part, Source
from anytime_jax.corpus.validation_split import check_fraction, default_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.url_files import UNKNOWN_SIZE

# A part takes about a second to tokenize: a kill loses little, and every core has work.
PART_BYTES = 4_000_000
# A part of a Parquet file reads the file's footer, which names hundreds of row groups.
_PARQUET_PART_BYTES = 64_000_000
LEAST_FRACTION = 0.01


class FileStretch(NamedTuple):
    """A file of `size` bytes; of a Parquet file, one of some stretches of its row groups.

    Only the size of the file has to be known, so that thousands of files are listed unopened.
    """

    path: str
    size: int
    stretch: int = 0
    stretches: int = 1

    def documents(
        self, text_field: str, bad_records: BadRecords | None
    ) -> Iterator[str | LeftOut | BadRecord | None]:
        """Returns the documents: of a text file, of lines of JSON, or of rows."""
        if self.path.lower().endswith(PARQUET_SUFFIX):
            stretch = (self.stretch, self.stretches)
            return read_row_groups(self.path, text_field, *stretch, bad_records)
        if self.path.lower().endswith(JSON_SUFFIXES):
            return read_json_lines(self.path, text_field, bad_records)
        return read_text(self.path)


@dataclasses.dataclass(frozen=True)
class FilesPart:
    """Files, or a stretch of one; `hidden` names others that are left out."""

    files: tuple[FileStretch, ...]
    text_field: str
    validation_fraction: float
    hidden: tuple[str, ...] = ()
    bad_records: BadRecords | None = None

    @property
    def identity(self) -> list[Any]:
        """Paths, sizes, stretches and last changes of the files."""
        files = [[*file, last_change(file.path)] for file in self.files]
        return [*files, self.validation_fraction]

    def documents(self) -> Iterator[str | LeftOut | BadRecord | None]:
        """Yields the documents of each file in turn."""
        yield from (LeftOut("hidden", path) for path in self.hidden)
        for file in self.files:
            yield from file.documents(self.text_field, self.bad_records)


@dataclasses.dataclass(frozen=True)
class InputFiles(Source):
    """Files for training and for validation; a subclass divides them into parts.

    Attributes:
      input: a file, a quoted glob, or a folder, which is searched recursively; each also as an
        address, such as hf://datasets/OWNER/NAME/*.parquet; @FILE for a list of addresses.
      validation_input: the same, for validation.
      validation_fraction: without `validation_input`, fraction of the documents for validation, by
        the hash of their content (default: 0.01).
    """

    input: str
    validation_input: str | None = None
    validation_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.validation_fraction is not None:
            if self.validation_input is not None:
                raise InputError("give one of --validation-fraction and --validation-input")
            check_fraction(self.validation_fraction)
        for name in ("input", "validation_input"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, full_path(path))

    def divide(self, found: FoundFiles, fraction: float) -> Sequence[Part]:
        """Divides files, of whose documents a fraction is for validation, into parts."""
        raise NotImplementedError

    def default_fraction(self, found: FoundFiles) -> float:
        """Returns the fraction for validation where the user gives none."""
        return LEAST_FRACTION

    def parts(self) -> Sequence[Part]:
        """Lists the parts of the files, which are sorted by path."""
        train = find_files(self.input)
        if self.validation_input is None:
            fraction = self.validation_fraction
            return self.divide(
                train, self.default_fraction(train) if fraction is None else fraction
            )
        validation = find_files(self.validation_input)
        if common := set(train.files) & set(validation.files):
            raise InputError(
                f"{min(common)[0]} is in the training and in the validation input; give validation "
                "text of its own, or a validation fraction instead"
            )
        return [*self.divide(train, 0.0), *self.divide(validation, 1.0)]


@dataclasses.dataclass(frozen=True)
class FileSource(InputFiles):
    """Files of text, and JSON lines and Parquet, which their names end with.

    Attributes:
      validation_fraction: without `validation_input`, fraction of the documents for validation, by
        the hash of their content (default: 0.01, and more of up to 2,000 documents).
      text_field: key of the text in a JSON line, column in a Parquet file; a.b for b inside a.
      bad_records: "skip" leaves out and counts records that cannot be read (default: the first
        one is an error).
    """

    text_field: str = "text"
    bad_records: BadRecords | None = None

    def default_fraction(self, found: FoundFiles) -> float:
        """Reads the first documents: of few, a larger fraction is for validation."""
        return default_fraction(self.divide(found, LEAST_FRACTION), LEAST_FRACTION)

    def divide(self, found: FoundFiles, fraction: float) -> list[FilesPart]:
        """Gathers small files into parts of some megabytes."""
        is_table = {path: path.lower().endswith(PARQUET_SUFFIX) for path, _ in found.files}
        others = [x for x in found.files if not is_table[x[0]]]
        parts = group_files(FoundFiles(others, found.hidden), fraction, self.text_field)
        for path, size in (x for x in found.files if is_table[x[0]]):
            count = max(1, -(-size // _PARQUET_PART_BYTES))
            stretches = (FileStretch(path, size, index, count) for index in range(count))
            parts += [FilesPart((each,), self.text_field, fraction) for each in stretches]
        return [dataclasses.replace(part, bad_records=self.bad_records) for part in parts]


def group_files(
    found: FoundFiles, validation_fraction: float, text_field: str = ""
) -> list[FilesPart]:
    """Groups files in order, into parts of at least `PART_BYTES` each except the last."""
    groups: list[list[FileStretch]] = [[]] if found.hidden else []
    total = 0
    for path, size in found.files:
        if not groups or total >= PART_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(FileStretch(path, size))
        total += PART_BYTES if size == UNKNOWN_SIZE else size
    hidden = [tuple(found.hidden), *[()] * len(groups)]
    return [
        FilesPart(tuple(files), text_field, validation_fraction, hidden[index])
        for index, files in enumerate(groups)
    ]
