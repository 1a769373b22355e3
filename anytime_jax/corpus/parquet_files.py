"""Parquet files: the texts of one column, a row group at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from anytime_jax.corpus.document_files import open_file
from anytime_jax.corpus.source_interface import (
    BadRecord,
    BadRecords,
    LeftOut,
    bad_record,
    reading_error,
)

PARQUET_SUFFIX = ".parquet"
_BATCH_ROWS = 256  # that are decoded at once


def read_row_groups(
    path: str, column: str, index: int, count: int, bad_records: BadRecords | None = None
) -> Iterator[str | LeftOut | BadRecord | None]:
    """Yields the texts of the `index`-th of `count` stretches of a file's row groups.

    A column inside another is named `outer.inner`. A null gives None.
    """
    import pyarrow
    from pyarrow import parquet

    place = path
    try:
        with open_file(path, buffered=False) as file:
            table = parquet.ParquetFile(file, page_checksum_verification=True)
            groups = table.num_row_groups
            if not index and not table.metadata.num_rows:
                yield LeftOut("empty", path)
            for group in range(groups * index // count, groups * (index + 1) // count):
                place = f"{path} row group {group}"
                # One group at a time, so that no more is in memory.
                batches = table.iter_batches(_BATCH_ROWS, [group], [column], use_threads=False)
                texts = itertools.chain.from_iterable(_texts(batch, column) for batch in batches)
                for row, text in enumerate(texts):
                    try:
                        yield None if text is None else text.decode("utf-8")
                    except UnicodeDecodeError as error:
                        yield bad_record(f"{place} row {row}", error, bad_records)
    # KeyError: there is no such column.
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        raise reading_error(place, error) from error


def _texts(batch: Any, column: str) -> list[bytes | None]:
    import pyarrow
    import pyarrow.compute

    if column in batch.schema.names:
        values = batch.column(column)
    else:
        outer, *inner = column.split(".")
        values = batch.column(outer)
        for name in inner:
            values = pyarrow.compute.struct_field(values, name)  # pyright: ignore
    return values.cast(pyarrow.large_binary()).to_pylist()  # only text and bytes can be cast
