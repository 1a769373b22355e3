"""Where text comes from: files, prepared TFDS datasets, and the Python source on this machine.

A source lists its `Part`s, in an order that depends on nothing but the input. A part is a unit of
work that any process can read on its own, in any order: small, picklable, without open files.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from anytime_jax.errors import InputError

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
# About a second of tokenisation: little is lost to a kill, and every core has something to do.
PART_BYTES = 4_000_000


class Part(Protocol):
    """A unit of work, read by one process from start to end."""

    @property
    def validation_share(self) -> float:
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


def split_of(text: str, validation_share: float) -> str:
    """Decides by its content which split a document belongs to, so that equal ones share one.

    Args:
      text: the document.
      validation_share: 0 puts all in "train", 1 all in "validation".

    Returns:
      "train" or "validation".
    """
    if validation_share in (0, 1):
        return SPLITS[int(validation_share)]
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return VALIDATION if int.from_bytes(digest, "big") < validation_share * 2**64 else TRAIN


@dataclasses.dataclass(frozen=True)
class FilesPart:
    """Some text files (a document each) and JSON files (a document a line).

    Attributes:
      files: (path, bytes) of each, in order.
      text_field: the key of the text in a JSON line.
      validation_share: see `Part`.
    """

    files: tuple[tuple[str, int], ...]
    text_field: str
    validation_share: float

    @property
    def identity(self) -> list[Any]:
        """The files' paths and sizes."""
        return [*map(list, self.files), self.validation_share]

    def documents(self) -> Iterator[str]:
        """Yields the documents of each file in turn."""
        for path, _ in self.files:
            if path.endswith(JSON_SUFFIXES):
                yield from _read_json_lines(path, self.text_field)
            else:
                yield _read_text(path)


@dataclasses.dataclass(frozen=True)
class FileSource:
    """JSON lines (kind "json": allenai/c4 and its like) or any folder of text (kind "folder").

    Attributes:
      kind: which of the two.
      input: a file, a glob, or (a folder, searched recursively).
      validation_input: the same, for validation.
      validation_share: where there is no validation_input, the share of documents set aside for
        validation by the hash of their content.
      text_field: the key of the text in a JSON line.
    """

    kind: Literal["json", "folder"]
    input: str
    validation_input: str | None = None
    validation_share: float = 0.01
    text_field: str = "text"

    def parts(self) -> Sequence[Part]:
        """Lists the files by path, small ones gathered into parts of some megabytes."""
        if self.validation_input is None:
            check_share(self.validation_share)
            return self._list(self.input, self.validation_share)
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
            return settings | {"validation_share": self.validation_share}
        return settings | {"validation_input": os.path.abspath(self.validation_input)}

    def _list(self, pattern: str, share: float) -> list[FilesPart]:
        suffixes = JSON_SUFFIXES if self.kind == "json" else (".txt", *JSON_SUFFIXES)
        files = _find_files(pattern, suffixes)
        return [FilesPart(group, self.text_field, share) for group in group_files(files)]


@dataclasses.dataclass(frozen=True)
class TfdsPart:
    """The records of one shard of a prepared TFDS dataset.

    Attributes:
      directory: that of the dataset.
      file: the shard.
      skip: records to pass over at its start.
      take: records to read.
      text_field: the feature that holds the text.
      validation_share: see `Part`.
    """

    directory: str
    file: str
    skip: int
    take: int
    text_field: str
    validation_share: float

    @property
    def identity(self) -> list[Any]:
        """The shard's name, the records and its size."""
        size = Path(self.file).stat().st_size
        return [Path(self.file).name, self.skip, self.take, size, self.validation_share]

    def documents(self) -> Iterator[str]:
        """Yields the texts of the shard's records, read without TensorFlow."""
        features = _tfds_builder(self.directory).info.features
        assert features is not None  # builder_from_directory always restores them
        records = self._records()
        for number in range(self.skip, self.skip + self.take):
            where = f"{self.file} record {number}"
            try:
                text = features.deserialize_example_np(next(records))[self.text_field]
                yield text.decode("utf-8")
            except StopIteration:
                raise InputError(
                    f"{self.file} ends after {number} records of {self.skip + self.take}; "
                    "copy or prepare the TFDS dataset again"
                ) from None
            except UnicodeDecodeError as error:
                raise InputError(f"{where} is not UTF-8 text ({error})") from error
            # Protobuf, Riegeli and Grain each have their own exceptions for damaged files.
            except Exception as error:
                raise InputError(f"{where} cannot be read ({_one_line(error)})") from error

    def _records(self) -> Iterator[bytes]:
        if ".tfrecord-" in Path(self.file).name:
            # Grain brings jax along: imported only by those who read this format.
            import grain

            yield from _after(self.skip, iter(grain.experimental.TFRecordIterDataset(self.file)))
            return
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(self.file)
        try:
            # Some at a time: one by one, the calls cost more than the records.
            end = min(self.skip + self.take, reader.num_records())
            for start in range(self.skip, end, 256):
                yield from reader.read(start, min(start + 256, end))
        finally:
            reader.close()


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A prepared TFDS dataset with text in it, such as C4, as array_record or tfrecord.

    Attributes:
      input: the directory with `dataset_info.json`, such as `~/tensorflow_datasets/c4/en/3.1.0`.
      split: the training split; a slice such as "train[:10]" is allowed.
      validation_split: the same, for validation; None to set a share of `split` aside.
      validation_share: that share, by the hash of the documents' content.
      text_field: the feature that holds the text.
    """

    input: str
    split: str = "train"
    validation_split: str | None = "validation"
    validation_share: float = 0.01
    text_field: str = "text"

    def parts(self) -> Sequence[Part]:
        """Lists the shards of both splits."""
        if self.validation_split is None:
            check_share(self.validation_share)
            return self._list(self.split, self.validation_share)
        return [*self._list(self.split, 0.0), *self._list(self.validation_split, 1.0)]

    def settings(self) -> dict[str, Any]:
        """The attributes, with an absolute path."""
        settings = {
            "kind": "tfds",
            "input": os.path.abspath(os.path.expanduser(self.input)),
            "split": self.split,
            "text_field": self.text_field,
        }
        if self.validation_split is None:
            return settings | {"validation_share": self.validation_share}
        return settings | {"validation_split": self.validation_split}

    def _list(self, split: str, share: float) -> Sequence[Part]:
        directory = os.path.abspath(os.path.expanduser(self.input))
        info = _tfds_builder(directory).info
        formats = ("array_record", "tfrecord")
        if info.file_format is None or info.file_format.value not in formats:
            raise InputError(
                f"{directory} is stored as {info.file_format}; prepare it as one of {formats}"
            )
        if self.text_field not in (info.features or {}):
            raise InputError(
                f"{directory} has no feature {self.text_field!r}; it has {sorted(info.features)}"
            )
        try:
            instructions = info.splits[split].file_instructions
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{directory} has no split {split!r}; it has {sorted(info.splits)}"
            ) from error
        parts: list[Part] = []
        for shard in instructions:
            file = os.fspath(shard.filename)
            if not os.path.isfile(file):
                raise InputError(f"{file} is missing; copy or prepare the TFDS dataset again")
            parts.append(TfdsPart(directory, file, shard.skip, shard.take, self.text_field, share))
        return parts


def check_share(share: float) -> None:
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


def _find_files(pattern: str, suffixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Finds the files of a path, a glob or a folder (recursively), with sizes, sorted by path."""
    root = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isfile(root):
        found = [root]
    elif os.path.isdir(root):
        found = [os.path.join(folder, n) for folder, _, names in os.walk(root) for n in names]
        found = [path for path in found if path.endswith(suffixes)]
    else:
        found = [path for path in glob.glob(root, recursive=True) if os.path.isfile(path)]
    for path in found:
        if not path.endswith(suffixes):
            raise InputError(f"{path} is none of {', '.join(suffixes)}; name only such files")
    if not found:
        raise InputError(
            f"{pattern} names no file; give a file, a folder or a quoted glob of "
            f"{', '.join(suffixes)} files"
        )
    return [(path, os.path.getsize(path)) for path in sorted(found)]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert or remove it") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def _read_json_lines(path: str, text_field: str) -> Iterator[str]:
    number = 0
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield _text_of_line(line, text_field, f"{path} line {number}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is a broken gzip file after line {number} ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def _text_of_line(line: bytes, text_field: str, where: str) -> str:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text ({error}); convert the file") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not a JSON object ({error}); give one a line") from error
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        keys = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise InputError(
            f"{where} has no text under {text_field!r} (it has {keys}); name the field that "
            "holds the text"
        )
    try:
        text.encode("utf-8")  # JSON can spell half of a surrogate pair, which is no text
    except UnicodeEncodeError as error:
        raise InputError(f"{where} is not valid Unicode ({error}); mend that line") from error
    return text


def _tfds_builder(directory: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        return tfds.builder_from_directory(directory)
    except Exception as error:  # TFDS has no exception of its own for this
        raise InputError(
            f"{directory} is not a prepared TFDS dataset ({_one_line(error)}); give the directory "
            "that holds dataset_info.json"
        ) from error


def _after(skip: int, records: Iterator[bytes]) -> Iterator[bytes]:
    for number, record in enumerate(records):
        if number >= skip:
            yield record


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
