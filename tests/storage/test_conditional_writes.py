"""A file in a bucket is created once, and replaced only by who has seen it last."""

import pytest

from anytime_jax.storage import conditional_writes
from anytime_jax.storage.conditional_writes import create, read_version, replace


def test_file_is_created_once(bucket):
    file = bucket / "run.json"
    create(file, b"mine")
    create(file, b"mine")  # as by a repeated request
    with pytest.raises(FileExistsError):
        create(file, b"other")
    assert file.read_bytes() == b"mine"


def test_file_is_replaced_by_who_has_seen_it_last(bucket):
    file = bucket / "lock"
    create(file, b"one")
    seen = read_version(file)
    generation = replace(file, b"two", seen.generation)
    assert generation is not None
    assert replace(file, b"three", seen.generation) is None
    assert file.read_bytes() == b"two"
    assert replace(file, None, generation) is not None
    assert read_version(file).content is None


def test_write_whose_answer_was_lost_has_not_failed(bucket):
    file = bucket / "lock"
    create(file, b"one")
    before = read_version(file)
    assert replace(file, b"two", before.generation)
    assert replace(file, b"two", before.generation) == read_version(file).generation


@pytest.mark.slow
def test_busy_server_is_asked_again(bucket_server, bucket):
    bucket_server.fail(1, 503)
    bucket_server.fail(1, 429)
    create(bucket / "x", b"1")
    assert bucket_server.failures == []
    assert (bucket / "x").read_bytes() == b"1"


def test_silent_server_raises_an_os_error(bucket_server, bucket, monkeypatch):
    monkeypatch.setattr(conditional_writes, "_ANSWER_SECONDS", 0.3)
    bucket_server.be_silent(1.5)
    with pytest.raises(OSError, match="no answer"):
        read_version(bucket / "x")
