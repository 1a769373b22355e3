"""Text from a prepared TFDS dataset, such as C4, read without TensorFlow.

TFDS itself reads `dataset_info.json`. It does not read `features.json`, since it would import any
Python class that this file names. So records are parsed here, as `tf.train.Example`s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from anytime_jax.corpus.document_files import full_path
from anytime_jax.corpus.source_interface import (
    BadRecord,
    BadRecords,
    Part,
    Source,
    bad_record,
    reading_error,
)
from anytime_jax.corpus.validation_split import check_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.paths import storage_path

_FORMAT = "array_record"
_BATCH_RECORDS = 256
_VALIDATION = "validation"


@dataclasses.dataclass(frozen=True)
class TfdsPart:
    """`take` records of one shard after the first `skip`, of the `total` that it must have.

    `size` is that of the shard, in bytes.
    """

    file: str
    size: int
    skip: int
    take: int
    total: int
    text_field: str
    validation_fraction: float
    bad_records: BadRecords | None

    @property
    def identity(self) -> list[Any]:
        """Name of the shard, range of records, and size."""
        name = os.path.basename(self.file)
        return [name, self.skip, self.take, self.size, self.validation_fraction]

    def documents(self) -> Iterator[str | BadRecord]:
        """Yields the texts of the records."""
        from array_record.python.array_record_module import ArrayRecordReader
        from tensorflow_datasets.proto import tf_example_pb2  # takes a second

        number, end = self.skip, self.skip + self.take
        try:
            with contextlib.closing(ArrayRecordReader(self.file)) as reader:
                if (count := reader.num_records()) != self.total:
                    raise ValueError(f"{count} records, where {self.total} were written")
                # Single calls would cost more than the records, so records are read in batches.
                for start in range(self.skip, end, _BATCH_RECORDS):
                    for record in reader.read(start, min(start + _BATCH_RECORDS, end)):
                        example = tf_example_pb2.Example()  # pyright: ignore
                        example.ParseFromString(record)
                        values = example.features.feature[self.text_field].bytes_list.value
                        try:
                            if len(values) != 1:
                                reason = f"no text under {self.text_field!r}; see --text-field"
                                raise ValueError(reason)
                            yield values[0].decode("utf-8")
                        except ValueError as error:
                            place = f"{self.file} record {number}"
                            yield bad_record(place, error, self.bad_records)
                        number += 1
        except InputError:  # of a record
            raise
        # Protobuf and Riegeli have exceptions of their own for damaged files.
        except Exception as error:
            raise reading_error(f"{self.file} record {number}", error) from error


@dataclasses.dataclass(frozen=True)
class TfdsSource(Source):
    """A prepared TFDS dataset with text in it, stored as array_record.

    Attributes:
      input: directory with `dataset_info.json`, such as `~/tensorflow_datasets/c4/en/3.1.0`.
      split: training split, or a slice such as "train[:10]".
      validation_split: the same, for validation (default: validation).
      validation_fraction: instead, fraction of `split` for validation, by the hash of the
        documents' content.
      text_field: feature that holds the text.
      bad_records: "skip" leaves out and counts records that cannot be read (default: the first
        one is an error).
    """

    input: str
    split: str = "train"
    validation_split: str | None = None
    validation_fraction: float | None = None
    text_field: str = "text"
    bad_records: BadRecords | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", full_path(self.input))
        if self.validation_fraction is None:
            split = self.validation_split or _VALIDATION
            object.__setattr__(self, "validation_split", split)
        elif self.validation_split is not None:
            raise InputError("give one of --validation-fraction and --validation-split")
        else:
            check_fraction(self.validation_fraction)

    def parts(self) -> Sequence[Part]:
        """Lists the shards of both splits."""
        splits = _read_splits(self.input)
        train = self._list(splits, self.split, self.validation_fraction or 0.0)
        if self.validation_split is None:
            return train
        return [*train, *self._list(splits, self.validation_split, 1.0)]

    def _list(self, splits: Any, split: str, fraction: float) -> list[TfdsPart]:
        place = f"split {split!r} of {self.input}"
        parts = []
        # TFDS has no exception of its own for what it cannot parse.
        try:
            for shard in splits[split].file_instructions:
                file = os.path.normpath(os.fspath(shard.filename))
                if os.path.dirname(file) != os.path.normpath(self.input):
                    raise ValueError(f"it names {file}, which is outside of that directory")
                counts = (shard.skip, shard.take, shard.examples_in_shard)
                size = os.path.getsize(file)
                part = TfdsPart(file, size, *counts, self.text_field, fraction, self.bad_records)
                parts.append(part)
        except Exception as error:
            raise reading_error(place, error) from error
        return parts


def _read_splits(directory: str) -> Any:
    """The splits that `dataset_info.json` describes, as TFDS slices them."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info

    try:
        path = storage_path(directory)
        info = dataset_info.read_proto_from_builder_dir(path)
        if info.file_format != _FORMAT:  # TFRecord has checksums that its readers do not compare
            raise ValueError(f"it is stored as {info.file_format or 'tfrecord'}, not as {_FORMAT}")
        files = tfds.core.ShardedFileTemplate(
            data_dir=epath.Path(path), dataset_name=info.name, filetype_suffix=_FORMAT
        )
        return tfds.core.SplitDict.from_proto(info.splits, files)
    except Exception as error:
        raise reading_error(f"the TFDS dataset {directory}", error) from error
