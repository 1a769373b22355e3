"""Files that grow hold what was written once `sync` returns, on a disk and in a bucket."""

import os
import time

import pytest

from anytime_jax.checkpoints import metric_records
from anytime_jax.checkpoints.metric_records import RecordWriter, read_records, segments
from anytime_jax.storage import growing_files
from anytime_jax.storage.growing_files import create_growing_file


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else request.getfixturevalue("bucket")


def test_file_holds_what_was_written(folder):
    file = create_growing_file(folder / "a.jsonl", "é\n")
    file.write("b\n")
    file.sync()
    assert (folder / "a.jsonl").read_text(encoding="utf-8") == "é\nb\n"
    assert file.size == 4
    with pytest.raises(FileExistsError):
        create_growing_file(folder / "a.jsonl", "c\n")
    file.write("d\n")
    file.close()
    assert (folder / "a.jsonl").read_text(encoding="utf-8") == "é\nb\nd\n"


def test_closed_file_is_on_disk(tmp_path, monkeypatch):
    """A segment of records that is closed as it is full is of steps that are saved later."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file = create_growing_file(tmp_path / "a.jsonl", "a\n")
    file.write("b\n")
    file.close()
    assert synced == [4]


def test_file_in_a_bucket_is_uploaded_at_an_interval(bucket, monkeypatch):
    monkeypatch.setattr(growing_files, "UPLOAD_SECONDS", 0.05)
    file = create_growing_file(bucket / "a.jsonl", "a\n")
    file.write("b\n")
    deadline = time.monotonic() + 120
    while (bucket / "a.jsonl").read_bytes() != b"a\nb\n":
        assert time.monotonic() < deadline
    file.close()


def test_upload_that_fails_is_an_os_error(bucket_server, bucket):
    file = create_growing_file(bucket / "a.jsonl", "a\n")
    file.write("b\n")
    bucket_server.fail(1, 403)
    with pytest.raises(OSError, match=r"a\.jsonl"):
        file.sync()
    file.sync()
    assert (bucket / "a.jsonl").read_bytes() == b"a\nb\n"
    (bucket / "a.jsonl").write_bytes(b"of another")
    file.write("c\n")
    with pytest.raises(FileExistsError):
        file.close()


def test_long_segment_is_continued_in_the_next(folder, monkeypatch):
    monkeypatch.setattr(metric_records, "_SEGMENT_BYTES", 300)
    writer = RecordWriter(folder, 0, {})
    for step in range(1, 21):
        writer.write(step, 10 * step, {"lr": 0.1 * step})
        writer.write(step, 10 * step, {"eval/last/loss": 1.0})
    assert writer.rows_before(20) == 19
    writer.close()
    assert len(segments(folder)) > 3
    rows = read_records(folder)
    assert [row.step for row in rows] == list(range(1, 21))
    assert all(set(row.values) == {"lr", "eval/last/loss"} for row in rows)
