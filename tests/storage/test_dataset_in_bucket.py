"""Datasets in a bucket: written, read and verified as on a disk."""

import dataclasses
import threading
import time

import bucket_copies
import numpy as np
import pytest
import small_run
from token_datasets import write_dataset

from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import Share, prepare
from anytime_jax.corpus.verification import verify_dataset
from anytime_jax.data.dataset_info import CHUNK_TOKENS, load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.files import list_files
from anytime_jax.storage.paths import storage_path


@pytest.fixture
def source(dataset):
    return FileSource(str(dataset.path.parent / "text"), validation_fraction=0.15)


@pytest.fixture
def remote(dataset, bucket):
    return load_dataset(bucket_copies.to_bucket(dataset.path, bucket / "data"))


def open_windows(info, length):
    return Windows.from_dataset(info, "train", length=length, seed=1, repeat=True)


def test_prepared_dataset_is_that_of_a_disk(dataset, source, bucket):
    arguments = {"vocabulary": small_run.VOCABULARY, "workers": 1}
    assert prepare(source, bucket / "data", share=Share(0, 2), **arguments) is None
    prepared = prepare(source, bucket / "data", **arguments)
    names = {str(path).removeprefix(f"{prepared.path}/") for path in list_files(prepared.path)}
    assert names == {str(path.relative_to(dataset.path)) for path in list_files(dataset.path)}
    for name in names - {"anytime_jax.json"}:
        assert (prepared.path / name).read_bytes() == (dataset.path / name).read_bytes()
    assert verify_dataset(prepared.path).fingerprint == dataset.fingerprint
    assert prepare(source, bucket / "data", **arguments) == prepared
    with pytest.raises(InputError, match="vocabulary"):
        prepare(source, bucket / "data", **{**arguments, "vocabulary": 290})


def test_preparation_creates_no_bucket(source, bucket):
    with pytest.raises(InputError, match="gs://not-there"):
        prepare(source, "gs://not-there/data", vocabulary=300, workers=1)
    assert not storage_path("gs://not-there").exists()


def test_windows_of_a_batch_are_requested_together(bucket, bucket_server, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 2**16, 90 * CHUNK_TOKENS)
    local = write_dataset(tmp_path / "data", tokens, parts=3)
    copy = bucket_copies.to_bucket(local.path, bucket / "data")
    remote = dataclasses.replace(local, path=copy)
    guard, waiting, most = threading.Lock(), 0, 0

    def answer_slowly(request):
        nonlocal waiting, most
        with guard:
            waiting += 1
            most = max(most, waiting)
        time.sleep(0.1)
        with guard:
            waiting -= 1

    count, bucket_server.hook = len(bucket_server.requests), answer_slowly
    batch = open_windows(remote, 1024).batch(0, 64)
    assert most > 5  # of the chunks
    assert len(bucket_server.requests) - count < 80
    np.testing.assert_array_equal(batch, open_windows(local, 1024).batch(0, 64))


def test_damaged_part_is_named(remote):
    path = remote.path / remote.parts["train"][0].name
    content = bytearray((path / "c/0").read_bytes())
    content[:100] = bytes(100)
    (path / "c/0").write_bytes(bytes(content))
    with pytest.raises(RunError, match=str(path)):
        open_windows(remote, 1024).batch(0, 64)
