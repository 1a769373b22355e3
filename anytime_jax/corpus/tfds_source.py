"""Text from a prepared TFDS dataset, such as C4, read without TensorFlow.

Only names and numbers are taken from the dataset's description: `dataset_info.json` is read as
plain JSON, and the files it names must be in its directory. `features.json` is not read, as TFDS
would import any Python class that it names. Records are `tf.train.Example`s.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from anytime_jax.corpus.document_files import local_path
from anytime_jax.corpus.source_interface import Part
from anytime_jax.corpus.validation_split import check_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.files import file_size
from anytime_jax.storage.json_files import load_json

_INFO_NAME = "dataset_info.json"
_REMEDY = "copy or prepare the TFDS dataset again"
# Plain names in braces and characters of paths: no attributes, no widths.
_TEMPLATE = re.compile(r"(\{[A-Z_]+\}|[\w./@-])*")
_BATCH_RECORDS = 256
_VALIDATION = "validation"


@dataclasses.dataclass(frozen=True)
class TfdsPart:
    """`take` records of one shard after the first `skip`, of the `total` that it must have."""

    file: str
    skip: int
    take: int
    total: int
    text_field: str
    validation_fraction: float

    @property
    def identity(self) -> list[Any]:
        """Name of the shard, range of records, and size."""
        path = Path(self.file)
        return [path.name, self.skip, self.take, path.stat().st_size, self.validation_fraction]

    def documents(self) -> Iterator[str]:
        """Yields the texts of the records."""
        number = self.skip
        try:
            for number, record in enumerate(self._records(), self.skip):
                yield self._parse(record, number)
        except InputError:
            raise
        # Protobuf and Riegeli have exceptions of their own for damaged files.
        except Exception as error:
            raise InputError(
                f"{self.file} record {number} cannot be read ({_one_line(error)}); {_REMEDY}"
            ) from error

    def _records(self) -> Iterator[bytes]:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(self.file)
        try:
            if (count := reader.num_records()) != self.total:
                raise InputError(
                    f"{self.file} holds {count} records where {_INFO_NAME} says {self.total}; "
                    f"{_REMEDY}"
                )
            # Single calls would cost more than the records, so records are read in batches.
            end = self.skip + self.take
            for start in range(self.skip, end, _BATCH_RECORDS):
                yield from reader.read(start, min(start + _BATCH_RECORDS, end))
        finally:
            reader.close()

    def _parse(self, record: bytes, number: int) -> str:
        from tensorflow_datasets.proto import tf_example_pb2  # takes a second

        example = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
        example.ParseFromString(record)
        features = example.features.feature
        values = features[self.text_field].bytes_list.value if self.text_field in features else ()
        if len(values) != 1:
            what = "something else than one text" if self.text_field in features else "nothing"
            raise InputError(
                f"{self.file} record {number} has {what} under {self.text_field!r} (it has "
                f"{sorted(features)[:20]}); name the feature that holds the text"
            )
        try:
            return values[0].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.file} record {number} is not UTF-8 text ({error}); correct it"
            ) from error


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A prepared TFDS dataset with text in it, stored as array_record.

    Attributes:
      input: directory with `dataset_info.json`, such as `~/tensorflow_datasets/c4/en/3.1.0`.
      split: training split, or a slice such as "train[:10]".
      validation_split: the same, for validation (default: validation).
      validation_fraction: instead, fraction of `split` for validation, by the hash of the
        documents' content.
      text_field: feature that holds the text.
    """

    input: str
    split: str = "train"
    validation_split: str | None = None
    validation_fraction: float | None = None
    text_field: str = "text"

    def __post_init__(self) -> None:
        if self.validation_fraction is None:
            return
        if self.validation_split is not None:
            raise InputError("give one of --validation-fraction and --validation-split")
        check_fraction(self.validation_fraction)

    def parts(self) -> Sequence[Part]:
        """Lists the shards of both splits."""
        splits = _read_splits(local_path(self.input))
        if self.validation_fraction is not None:
            return self._list(splits, self.split, self.validation_fraction)
        train = self._list(splits, self.split, 0.0)
        return [*train, *self._list(splits, self.validation_split or _VALIDATION, 1.0)]

    def settings(self) -> dict[str, Any]:
        """Returns the attributes that are used, with an absolute path."""
        fields = dataclasses.asdict(self) | {"input": local_path(self.input)}
        if self.validation_fraction is None:
            fields["validation_split"] = self.validation_split or _VALIDATION
        used = {name: value for name, value in fields.items() if value is not None}
        return {"kind": "tfds", **used}

    def reads(self, file: Path) -> bool:
        """Returns False: only files that `dataset_info.json` names are read."""
        return False

    def _list(self, splits: Any, split: str, fraction: float) -> list[TfdsPart]:
        try:
            instructions = splits[split].file_instructions
        except Exception as error:  # TFDS has no own exception for what it cannot parse
            raise InputError(
                f"{os.path.join(local_path(self.input), _INFO_NAME)} has no split {split!r} "
                f"({_one_line(error)}); it has {sorted(splits)}"
            ) from error
        parts = []
        for shard in instructions:
            file = os.path.normpath(os.fspath(shard.filename))
            if not os.path.isfile(file):
                raise InputError(f"{file} is missing or not a file; {_REMEDY}")
            counts = (shard.skip, shard.take, shard.examples_in_shard)
            parts.append(TfdsPart(file, *counts, self.text_field, fraction))
        return parts


def _read_splits(directory: str) -> Any:
    """The splits that `dataset_info.json` describes, as TFDS slices them."""
    import tensorflow_datasets as tfds

    path = os.path.join(directory, _INFO_NAME)
    try:
        file_size(path)  # rejects a pipe, which may never end
        info = load_json(Path(path))
        stored_as = info.get("fileFormat") or "tfrecord"
        if stored_as != "array_record":
            raise InputError(
                f"{path}: the dataset is stored as {stored_as!r}; prepare it as 'array_record', or "
                "read C4 from its JSON files (docs/data.md)"
            )
        stored = info.get("splits", ())
        splits = [_split_info(directory, info["name"], split) for split in stored]
        return tfds.core.SplitDict([split for split in splits if split.num_examples])
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{directory} is not a prepared TFDS dataset ({_INFO_NAME}: {error.strerror}); give "
            f"the directory that holds {_INFO_NAME}"
        ) from error
    # Parsing JSON of unknown types, and TFDS, can raise any of these.
    except Exception as error:
        raise InputError(
            f"{path} is damaged ({type(error).__name__}: {_one_line(error)}); {_REMEDY}"
        ) from error


def _split_info(directory: str, name: str, split: dict[str, Any]) -> Any:
    import tensorflow_datasets as tfds

    template = split.get("filepathTemplate") or ""  # TFDS has a default
    if not _TEMPLATE.fullmatch(template):
        raise ValueError(f"the template {template!r} of its files' names")
    files = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(directory),
        dataset_name=name,
        split=split["name"],
        filetype_suffix="array_record",
        template=template,
    )
    lengths = [int(length) for length in split.get("shardLengths", ())]
    if any(length < 0 for length in lengths):
        raise ValueError(f"shardLengths {lengths} of split {split['name']!r}")
    for length, path in zip(lengths, files.sharded_filepaths(len(lengths)), strict=True):
        file = os.path.normpath(path)
        if not file.startswith(directory + os.sep):
            raise ValueError(f"it names {file}, outside the dataset's directory")
        # TFDS leaves out empty shards: check that they are empty.
        if length == 0 and os.path.isfile(file):
            list(TfdsPart(file, 0, 0, 0, "", 0.0).documents())
    return tfds.core.SplitInfo(
        name=split["name"], shard_lengths=lengths, num_bytes=0, filename_template=files
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
