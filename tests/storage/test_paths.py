"""Paths in buckets behave as `pathlib` does, and others are refused."""

import contextlib
import gc
import itertools
import pickle
import re

import pytest

from anytime_jax.checkpoints import checkpoint_listing
from anytime_jax.errors import BucketError, InputError
from anytime_jax.storage import buckets, conditional_writes
from anytime_jax.storage.buckets import is_remote, upload
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.files import (
    file_sizes,
    list_files,
    remove_directory,
    rename_directory,
)
from anytime_jax.storage.paths import absolute_path, is_address, storage_path


@pytest.mark.parametrize("path", ["run", "/data/run", "~/run", "a:b", "C:run"])
def test_local_path_is_a_pathlib_path(path):
    assert not is_address(path)
    assert not is_remote(storage_path(path))


OTHERS = ["s3://bucket/run", "az://x/y", "http://host/run", "hdfs://a/b", "file:///tmp/x"]
INVALID = ["gs://", "gs://UPPER/run", "gs://b/a//b", "gs://b/a\nb"]
PATTERNS = ["a*", "a?", "a[1]", "a]", "a#12", "./a", "a/../b", ".."]


@pytest.mark.parametrize("address", [*OTHERS, *INVALID, *(f"gs://bucket/{x}" for x in PATTERNS)])
def test_address_that_is_none_of_a_bucket_is_refused(address):
    with pytest.raises(InputError, match=f"^{re.escape(address.partition('://')[0])}"):
        storage_path(address)


@pytest.mark.parametrize("name", ["a b", "a%20b", "a+b", "ü", "~a", "a&b=c", "a'b", ".a", "a..b"])
def test_other_characters_are_kept(bucket, name):
    directory = storage_path(f"{bucket}/{name}/")
    conditional_writes.create(directory / "f", b"x")
    assert list_files(directory) == list(directory.glob("[f]")) == [directory / "f"]
    assert (directory / "f").read_bytes() == b"x"
    remove_directory(directory)
    assert not bucket.exists()


def test_address_that_pathlib_has_shortened_is_one():
    assert str(storage_path("gs:/bucket/run/")) == "gs://bucket/run"


def test_path_in_a_bucket_reads_and_writes(bucket):
    file = bucket / "records" / "0000.jsonl"
    assert not bucket.exists()
    file.write_text("é\n", encoding="utf-8")
    (bucket / "run.json").write_bytes(b"{}")
    assert (bucket.is_dir(), file.is_file(), file.read_bytes()) == (True, True, b"\xc3\xa9\n")
    assert [str(x) for x in list_files(bucket)] == [str(file), str(bucket / "run.json")]
    assert file_sizes(bucket) == {"run.json": 2, "records/0000.jsonl": 3}
    assert pickle.loads(pickle.dumps(file)) == file
    assert absolute_path(bucket) == bucket
    rename_directory(bucket / "records", bucket / "old")
    assert [str(x) for x in list_files(bucket)] == [
        str(bucket / "old" / "0000.jsonl"),
        str(bucket / "run.json"),
    ]
    remove_directory(bucket)
    assert not bucket.exists()
    remove_directory(bucket, missing_ok=True)


def test_bucket_that_is_closed_or_out_of_reach(bucket_server, bucket, monkeypatch):
    check_directory(bucket, "--output")
    check_directory(storage_path("gs://bucket"), "--output")
    with pytest.raises(InputError, match="gs://missing"):
        check_directory(storage_path("gs://missing/x"), "--output")
    for status in (400, 403):
        bucket_server.failures[:] = [status] * 4
        with pytest.raises(InputError, match="--output"):
            check_directory(bucket, "--output")
    bucket_server.failures.clear()

    def refuse(*arguments, **options):
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(type(bucket), "exists", refuse)
    with pytest.raises(BucketError, match="--output"):
        check_directory(bucket, "--output")


def test_request_that_fails_hides_no_checkpoint(bucket_server, bucket):
    for step in (4, 8):
        (bucket / "checkpoints" / str(step) / "commit_success.txt").write_bytes(b"x")
    for failing in itertools.count(1):
        count = itertools.count(1)
        bucket_server.hook = lambda request, count=count, failing=failing: (
            bucket_server.failures.append(403) if next(count) == failing else None
        )
        with contextlib.suppress(OSError):
            assert checkpoint_listing.saved_steps(bucket) == [4, 8]
        if next(count) <= failing:
            break  # none of its requests is left to fail
    assert failing > 5


def read_in_pieces(path):
    with path.open("rb") as file:
        while file.read(2_000_000):
            pass


@pytest.mark.parametrize("failing", [3, 16])
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_read_that_fails_prints_nothing(bucket_server, bucket, caplog, failing):
    """The 16th request reads ahead, and nobody waits for its answer."""
    (bucket / "f").write_bytes(bytes(60_000_000))
    count = itertools.count(1)
    bucket_server.hook = lambda request: (
        bucket_server.failures.append(403) if next(count) >= failing else None
    )
    with pytest.raises(OSError, match="Forbidden"):
        read_in_pieces(bucket / "f")
    bucket_server.hook = lambda request: None
    bucket_server.failures.clear()
    gc.collect()
    assert not caplog.records


def test_uploaded_file_keeps_its_last_bytes(bucket, tmp_path):
    file = tmp_path / "file"
    ends = (b"", b"\r", b"\n", b"\r\n", b"\n\r", b"\r\r", b"\n\n")
    for start, end in itertools.product((b"", b"text", b"\r", b"\0"), ends):
        file.write_bytes(start + end)
        upload(file, bucket / "file")
        assert (bucket / "file").read_bytes() == start + end


def test_upload_that_stores_other_bytes_is_an_error(bucket, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"text\r")
    monkeypatch.setattr(buckets, "_SMALL", 0)  # sent as any other file
    with pytest.raises(buckets.bucket_errors()):
        upload(file, bucket / "file")
