"""Paths in buckets behave as `pathlib` does, and others are refused."""

import contextlib
import itertools
import os
import pickle
import re

import pytest
import tensorstore

from anytime_jax.checkpoints import checkpoint_listing
from anytime_jax.errors import BucketError, InputError
from anytime_jax.storage.buckets import file_system, is_remote, upload
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.files import (
    file_sizes,
    list_files,
    local_directory,
    read_files,
    remove_directory,
)
from anytime_jax.storage.paths import absolute_path, is_address, storage_path


@pytest.mark.parametrize("path", ["run", "/data/run", "~/run", "a:b", "C:run"])
def test_local_path_is_a_pathlib_path(path):
    assert not is_address(path)
    assert not is_remote(storage_path(path))


def test_path_that_tensorstore_would_misname_is_refused(monkeypatch):
    """Its own names are UTF-8, whatever the locale of the process."""
    assert absolute_path("/runs/é 漢").name == "é 漢"
    with pytest.raises(InputError, match="UTF-8"):
        absolute_path(os.fsdecode(b"/runs/\xe9"))
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode("latin-1"))
    assert absolute_path("/runs/e").name == "e"
    for path in ("/runs/é", "/runs/漢"):  # one has another name in that encoding, the other none
        with pytest.raises(InputError, match="UTF-8"):
            absolute_path(path)


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
    (directory / "f").write_bytes(b"x")
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
    assert list_files(bucket) == [file, bucket / "run.json"]
    assert file_sizes(bucket) == {"run.json": 2, "records/0000.jsonl": 3}
    assert pickle.loads(pickle.dumps(file)) == file
    assert absolute_path(bucket) == bucket
    assert read_files(list_files(bucket)) == {file: b"\xc3\xa9\n", bucket / "run.json": b"{}"}
    (bucket / "records").rename(bucket / "old")
    assert list_files(bucket) == [bucket / "old" / "0000.jsonl", bucket / "run.json"]
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

    monkeypatch.setattr(file_system(bucket)[0], "exists", refuse)
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


def test_directory_of_other_processes_is_seen_as_it_is(bucket):
    """TensorStore, Orbax and other hosts write there too."""
    assert list(bucket.glob("*")) == []
    for name in ("a", "b"):
        store = tensorstore.KvStore.open(f"{bucket}/").result()
        store.write(f"checkpoints/{name}", b"x").result()
        assert (bucket / "checkpoints" / name).exists()
        assert (bucket / "checkpoints" / name) in (bucket / "checkpoints").iterdir()


def test_directory_of_a_library_is_copied(bucket):
    with local_directory(bucket / "profile") as folder:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "c").write_bytes(b"x")
    assert file_sizes(bucket) == {"profile/a/b/c": 1}


def test_uploaded_file_keeps_its_last_bytes(bucket, tmp_path):
    file = tmp_path / "file"
    ends = (b"", b"\r", b"\n", b"\r\n", b"\n\r", b"\r\r", b"\n\n")
    for start, end in itertools.product((b"", b"text", b"\r", b"\0"), ends):
        file.write_bytes(start + end)
        upload(file, bucket / "file")
        assert (bucket / "file").read_bytes() == start + end
