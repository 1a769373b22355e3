"""Datasets in a bucket give the batches of the same ones on a disk, with and without a cache."""

import itertools
import os
import pathlib
import time

import bucket_copies
import numpy as np
import pytest

from anytime_jax.data.dataset import load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage import shard_cache


def batches(info, count=3):
    windows = Windows(info, "train", length=info.length, seed=1, repeat=True)
    return [windows.batch(first, 16) for first in range(0, 16 * count, 16)]


def copies(tmp_path):
    """The local copies of files, without those in progress."""
    return [x for x in (tmp_path / "cache").rglob("*.tokens-*") if not x.name.endswith(".part")]


def wait_for_copies(tmp_path, count):
    deadline = time.monotonic() + 20
    while len(found := copies(tmp_path)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def remote(dataset, bucket):
    return load_dataset(bucket_copies.to_bucket(dataset.path, bucket / "data"))


def test_batches_are_those_of_the_disk(dataset, remote, tmp_path, monkeypatch):
    monkeypatch.setenv(shard_cache.LIMIT, "0")
    assert remote.fingerprint == dataset.fingerprint
    for ours, theirs in zip(batches(remote), batches(dataset), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert copies(tmp_path) == []


def test_copied_files_are_read_from_the_disk(dataset, remote, tmp_path, bucket_server):
    windows = Windows(remote, "train", length=remote.length, seed=1, repeat=True)
    windows.batch(0, 16)
    wait_for_copies(tmp_path, 1)
    before = len(bucket_server.requests)
    windows.batch(16, 16)
    np.testing.assert_array_equal(windows.batch(16, 16), batches(dataset, 2)[1])
    assert bucket_server.requests[before:] == []


def test_damaged_copy_is_read_from_the_bucket_again(dataset, remote, tmp_path):
    batches(remote)
    (copy,) = wait_for_copies(tmp_path, 1)
    content = bytearray(copy.read_bytes())
    content[: len(content) // 2] = os.urandom(len(content) // 2)
    copy.write_bytes(content)
    for ours, theirs in zip(batches(remote), batches(dataset), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not copy.exists() or copy.read_bytes() != bytes(content)


def test_damaged_file_in_the_bucket_is_named(remote, monkeypatch):
    monkeypatch.setenv(shard_cache.LIMIT, "0")
    path = remote.path / remote.files["train"][0].name
    content = bytearray(path.read_bytes())
    content[:100] = bytes(100)
    path.write_bytes(bytes(content))
    with pytest.raises(RunError, match="a checksum does not match") as error:
        batches(remote)
    assert str(path) in str(error.value)


def test_files_of_other_datasets_are_evicted_first(bucket, tmp_path, monkeypatch):
    def read(folder, name, size):
        (bucket / folder / name).write_bytes(os.urandom(size))
        file = shard_cache.CachedFile(bucket / folder / name, size, 7)
        file.read(0, 1)
        time.sleep(0.3)
        return [x.parent.name + x.name for x in (tmp_path / "cache").rglob("*-00000007")]

    monkeypatch.setenv(shard_cache.LIMIT, "2.5e-6")  # 2,500 bytes
    assert len(read("one", "a", 1000)) == 1
    assert len(read("one", "b", 1000)) == 2
    assert len(read("one", "c", 1000)) == 2  # nothing of its own dataset gives way
    after = read("two", "d", 2000)
    assert len(after) == 1
    assert after[0].endswith("d-00000007")
    assert len(read("two", "e", 4000)) == 1


def test_part_of_a_killed_process_with_the_same_id_is_no_obstacle(bucket, tmp_path):
    (bucket / "a").write_bytes(b"abc")
    path = shard_cache.CachedFile(bucket / "b", 10**15, 1)._copy.with_name("a-00000001")
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.name}.{os.getpid()}.part").write_bytes(b"a")
    shard_cache.CachedFile(bucket / "a", 3, 1)
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert path.read_bytes() == b"abc"


def test_part_that_becomes_a_copy_meanwhile_is_no_obstacle(bucket, tmp_path, monkeypatch):
    gone = tmp_path / "cache" / "anytime_jax" / "shards" / "0" / "gone.part"
    found = pathlib.Path.glob
    monkeypatch.setattr(pathlib.Path, "glob", lambda path, pattern: [gone, *found(path, pattern)])
    part = gone.with_name("new.part")
    assert shard_cache._reserve(part, 3, 1000)
    assert part.stat().st_size == 3


@pytest.mark.parametrize("limit", ["many", "-1", "nan"])
def test_invalid_limit_is_refused(bucket, monkeypatch, limit):
    monkeypatch.setenv(shard_cache.LIMIT, limit)
    (bucket / "a").write_bytes(b"1")
    with pytest.raises(InputError, match=shard_cache.LIMIT):
        shard_cache.CachedFile(bucket / "a", 1, 0)


def test_prepared_dataset_is_that_of_a_disk(dataset, bucket, monkeypatch):
    import small_run

    from anytime_jax.data.preparation import prepare
    from anytime_jax.data.sources import FileSource
    from anytime_jax.data.verification import verify_dataset

    monkeypatch.setenv(shard_cache.LIMIT, "0")
    source = FileSource("folder", str(dataset.path.parent / "text"), validation_fraction=0.15)
    arguments = {"length": small_run.LENGTH, "vocabulary": small_run.VOCABULARY, "workers": 1}
    prepared = prepare(source, bucket / "data", **arguments)
    assert prepared.fingerprint == dataset.fingerprint
    for file in itertools.chain(*dataset.files.values()):
        content = (prepared.path / file.name).read_bytes()
        assert content == (dataset.path / file.name).read_bytes()
    assert not (bucket / "data" / ".preparing").exists()
    assert verify_dataset(bucket / "data").fingerprint == dataset.fingerprint
    assert prepare(source, bucket / "data", **arguments).fingerprint == dataset.fingerprint
    with pytest.raises(InputError, match="length"):
        prepare(source, bucket / "data", **{**arguments, "length": 4})


def test_preparation_creates_no_bucket(dataset, bucket):
    from anytime_jax.data.preparation import prepare
    from anytime_jax.data.sources import FileSource
    from anytime_jax.storage.paths import storage_path

    source = FileSource("folder", str(dataset.path.parent / "text"), validation_fraction=0.15)
    with pytest.raises(InputError, match="gs://not-there"):
        prepare(source, "gs://not-there/data", length=8, vocabulary=300, workers=1)
    assert not storage_path("gs://not-there").exists()
