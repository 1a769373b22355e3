"""Parquet files: the texts of one column, a row group at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from anytime_jax.corpus.document_files import open_file
from anytime_jax.errors import InputError, format_value

PARQUET_SUFFIX = ".parquet"
_BATCH_ROWS = 256  # that are decoded at once


def check_column(path: str, column: str) -> None:
    """Raises an InputError unless a file has a column of text with this name."""
    with _open_table(path, column):
        pass


def read_row_groups(path: str, column: str, index: int, count: int) -> Iterator[str | None]:
    """Yields the texts of the `index`-th of `count` stretches of a file's row groups.

    A column inside another is named `outer.inner`. A null gives None.
    """
    with _open_table(path, column) as table:
        groups = table.num_row_groups
        for group in range(groups * index // count, groups * (index + 1) // count):
            # One group at a time, so that no more is in memory.
            batches = table.iter_batches(_BATCH_ROWS, [group], [column], use_threads=False)
            row = 0
            for batch in batches:
                try:
                    yield from _texts(batch, column)
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{path} row group {group} has a text near row {row} that is not UTF-8 "
                        f"({error}); correct it"
                    ) from error
                row += batch.num_rows


def _texts(batch: Any, column: str) -> list[str | None]:
    import pyarrow.compute

    if column in batch.schema.names:
        values = batch.column(column)
    else:
        outer, *inner = column.split(".")
        values = batch.column(outer)
        for name in inner:
            values = pyarrow.compute.struct_field(values, name)  # pyright: ignore
    return [x.decode("utf-8") if isinstance(x, bytes) else x for x in values.to_pylist()]


@contextlib.contextmanager
def _open_table(path: str, column: str) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        with open_file(path, buffered=False) as file:
            table = parquet.ParquetFile(file, page_checksum_verification=True)
            schema = table.schema_arrow
            texts = _text_columns(schema)
            if column not in texts:
                fault = f"no column of text named {column!r}"
                if column in schema.names:
                    fault += f", which is of type {schema.field(column).type}"
                others = f"has text in {format_value(texts)}: name one of these with --text-field"
                raise InputError(
                    f"{path} has {fault}; it {others if texts else 'has no text elsewhere'}"
                )
            yield table
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} cannot be read as a Parquet file ({reason[:200]}); fetch it again"
        ) from error


def _text_columns(fields: Any, prefix: str = "") -> list[str]:
    """The names of the columns that hold text, also inside others."""
    import pyarrow

    names, types = [], pyarrow.types
    is_text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    for field in fields:
        kind = field.type
        if types.is_struct(kind):
            names += _text_columns(kind, f"{prefix}{field.name}.")
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if any(x(kind) for x in is_text):
            names.append(f"{prefix}{field.name}")
    return names
