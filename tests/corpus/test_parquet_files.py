"""Parquet files: texts of a column, a row group at a time."""

import itertools

import pyarrow
import pytest
from pyarrow import parquet
from source_documents import read_documents

from anytime_jax.corpus import file_source, parquet_files
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.errors import InputError

TEXTS = [f"document {i}: naïve 漢字\n" * (i % 4 + 1) for i in range(1000)]


def write(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **{"row_group_size": 70, **options})
    return path


def read(path, column="text", **options):
    parts = FileSource(str(path), text_field=column, validation_fraction=0.1, **options).parts()
    return [text for part in parts for text in part.documents()]


def test_texts_are_the_rows_of_the_column(tmp_path):
    columns = {"id": range(1000), "text": TEXTS, "url": ["u"] * 1000}
    write(tmp_path / "a.parquet", columns)
    write(tmp_path / "b.parquet", {"text": ["held out"]})
    source = FileSource(f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet")
    assert read_documents(source) == {"train": TEXTS, "validation": ["held out"]}


@pytest.mark.parametrize("count", [4, 40])
def test_parts_divide_the_row_groups(tmp_path, monkeypatch, count):
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    size = path.stat().st_size
    monkeypatch.setattr(file_source, "_PARQUET_PART_BYTES", -(-size // count))
    parts = FileSource(str(path), validation_fraction=0.1).parts()
    assert len({str(part.identity) for part in parts}) == len(parts)
    divided = [list(part.documents()) for part in parts]
    assert list(itertools.chain(*divided)) == TEXTS
    assert len(parts) > count // 2
    # 1,000 rows are 15 groups, and a part has whole ones.
    assert all(len(texts) % 70 in (0, 1000 % 70) for texts in divided)


@pytest.mark.parametrize(
    "kind", ["large_string", "binary", "dictionary", "string_view", "binary_view"]
)
def test_kinds_of_text(tmp_path, kind):
    values = pyarrow.array(TEXTS[:9])
    values = values.dictionary_encode() if kind == "dictionary" else values.cast(kind)
    assert read(write(tmp_path / "a.parquet", {"text": values})) == TEXTS[:9]


def test_column_inside_another_and_nulls(tmp_path):
    rows = [{"body": {"text": "a"}}, None, {"body": None}, {"body": {"text": None}}]
    path = write(tmp_path / "a.parquet", {"doc": rows, "doc.title": ["x", "y", "z", None]})
    assert read(path, "doc.body.text") == ["a", None, None, None]
    assert read(path, "doc.title") == ["x", "y", "z", None]


@pytest.mark.parametrize("column", ["body", "n", "doc.body", "doc"])
def test_column_that_is_missing_or_no_text_is_named(tmp_path, column):
    rows = [{"text": "a", "n": 1}]
    path = write(tmp_path / "a.parquet", {"content": ["a"], "n": [1], "doc": rows})
    with pytest.raises(InputError, match=r"a\.parquet row group 0 "):
        read(path, column)


def test_damage_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": TEXTS}, write_page_checksum=True)
    whole = path.read_bytes()
    middle = len(whole) // 3
    for content in (b"", whole[:-5]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=str(path)):
            read(path)
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(InputError, match=str(path)):
        read(path)
    write(path, {"text": pyarrow.array([b"good", b"caf\xe9"])})
    with pytest.raises(InputError, match="row group 0"):
        read(path)


def test_bad_row_is_left_out_if_asked_and_a_table_without_rows_is_named(tmp_path):
    rows = pyarrow.array([b"good", b"caf\xe9", None, b"more"])
    path = write(tmp_path / "a.parquet", {"text": rows})
    first, bad, null, last = read(path, bad_records="skip")
    assert (first, bad.place, null, last) == ("good", f"{path} row group 0 row 1", None, "more")
    write(path, {"text": pyarrow.array([], pyarrow.string())})
    assert [x.name for x in read(path)] == [str(path)]


def test_one_batch_of_one_row_group_is_in_memory(tmp_path):
    text = "x" * 10_000
    path = write(
        tmp_path / "a.parquet",
        {"text": [text] * 4_000},
        compression="none",
        row_group_size=500,
        use_dictionary=False,
    )
    before, most = pyarrow.total_allocated_bytes(), 0
    for _ in parquet_files.read_row_groups(str(path), "text", 0, 1):
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert most < 2 * 500 * 10_000 < path.stat().st_size
