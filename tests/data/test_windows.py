"""`batch(n)` is a pure function of (dataset, seed, n); passes are permutations."""

import gc
import json
import shutil
import threading
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from anytime_jax.data import shard_reader
from anytime_jax.data.dataset import load_dataset
from anytime_jax.data.preparation import prepare
from anytime_jax.data.sources import FileSource
from anytime_jax.data.windows import DataExhausted, Windows, prefetch_batches
from anytime_jax.errors import InputError, RunError

LENGTH = 16


@pytest.fixture(scope="module")
def info(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    lines = [json.dumps({"text": f"{i}: " + "words and numbers " * (i % 7)}) for i in range(400)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    source = FileSource("json", str(folder / "text.jsonl"), validation_fraction=0.2)
    return prepare(source, folder / "dataset", length=LENGTH, vocabulary=280)


@pytest.fixture(scope="module")
def stored(info):
    """All training windows in stored order, as TFDS itself reads them."""
    source = tfds.builder_from_directory(info.path).as_data_source("train")
    return np.stack([example["tokens"] for example in source])


def open_windows(info, split="train", *, seed=0, repeat=False, shuffle=True):
    return Windows(info, split, length=LENGTH, seed=seed, repeat=repeat, shuffle=shuffle)


def sorted_rows(rows):
    return sorted(map(tuple, rows.tolist()))


def test_each_pass_is_a_permutation_of_its_own(info, stored):
    windows, count = open_windows(info, repeat=True), len(stored)
    assert count == info.splits["train"].windows > 50
    passes = [windows.batch(number * count, count) for number in range(3)]
    for rows in passes:
        assert rows.dtype == np.int32
        assert sorted_rows(rows) == sorted_rows(stored)
    assert not np.array_equal(passes[0], stored)
    assert not np.array_equal(passes[0], passes[1])
    assert not np.array_equal(passes[1], passes[2])


def test_seeds_give_orders_of_their_own(info):
    first, second, again = (open_windows(info, seed=seed).batch(0, 50) for seed in (5, 77, 5))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_row_i_is_sample_n_plus_i_whatever_the_batch(info):
    windows = open_windows(info, seed=3, repeat=True)
    count = windows.batch(0, 1).shape[0] * info.splits["train"].windows
    n = count - 20  # across the end of a pass
    whole = windows.batch(n, 48)
    assert whole.shape == (48, LENGTH + 1)
    for size in (1, 3, 16):  # on either path of reading
        pieces = [windows.batch(n + k, size) for k in range(0, 48, size)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    np.testing.assert_array_equal(windows.batch(n, 48), whole)  # what came between left no trace


def test_windows_read_together_are_those_read_one_by_one(info, stored, monkeypatch):
    given = [7, 3, 3, len(stored) - 1, 0]
    for least in (1, len(given) + 1):
        monkeypatch.setattr(shard_reader, "_BATCHED_WINDOWS", least)
        read = shard_reader.ShardReader(info, info.shards["train"]).read(given)
        np.testing.assert_array_equal(read, stored[given])


def test_hosts_read_their_rows_of_the_same_batch(info):
    windows = open_windows(info, seed=3)
    whole = windows.batch(7, 24)
    for hosts in (1, 2, 4):
        rows = 24 // hosts
        for host in range(hosts):
            mine = slice(host * rows, (host + 1) * rows)
            np.testing.assert_array_equal(windows.batch(7, 24, mine), whole[mine])
    assert windows.batch(7, 24, slice(0, 0)).shape == (0, LENGTH + 1)


def test_stored_order(info, stored):
    windows = open_windows(info, shuffle=False)
    np.testing.assert_array_equal(windows.batch(0, len(stored)), stored)
    np.testing.assert_array_equal(windows.batch(5, 6), stored[5:11])
    validation = open_windows(info, "validation", shuffle=False)
    assert validation.samples_available == info.splits["validation"].windows


def test_running_out_is_a_clear_stop(info):
    windows, count = open_windows(info), info.splits["train"].windows
    assert windows.samples_available == count
    windows.batch(count - 4, 4)
    with pytest.raises(DataExhausted, match="repeat") as stop:
        # The batch as a whole must be there, or hosts would part ways.
        windows.batch(count - 4, 5, slice(0, 1))
    assert isinstance(stop.value, RunError)
    assert (stop.value.sample, stop.value.available) == (count - 4, count)
    assert open_windows(info, repeat=True).samples_available is None


def test_stream_is_the_batches_in_order(info):
    windows = open_windows(info, seed=9, repeat=True)
    batches = prefetch_batches(windows, 11, 8, slice(2, 5))
    for k in range(40):
        np.testing.assert_array_equal(next(batches), windows.batch(11 + 8 * k, 8)[2:5])


def test_stream_ends_where_the_data_ends(info):
    windows, count = open_windows(info), info.splits["train"].windows
    batches = prefetch_batches(windows, 0, 10)
    for _ in range(count // 10):
        next(batches)
    with pytest.raises(DataExhausted) as stop:
        next(batches)
    assert stop.value.sample == count - count % 10


def test_stream_leaves_no_threads(info):
    before = set(threading.enumerate())
    batches = prefetch_batches(open_windows(info, repeat=True), 0, 8)
    next(batches)
    assert set(threading.enumerate()) - before
    del batches
    gc.collect()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "no split 'test'.*train.*validation"),
        ({"length": LENGTH * 2}, "length 32 asked.*length 16"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**32}, "seed 4294967296"),
    ],
)
def test_bad_settings_are_refused(info, arguments, message):
    with pytest.raises(InputError, match=message):
        Windows(info, **{"split": "train", "length": LENGTH, "seed": 0, **arguments})


@pytest.mark.parametrize(("n", "size"), [(-1, 4), (0, 0)])
def test_bad_batches_are_refused(info, n, size):
    with pytest.raises(InputError, match="batch of"):
        open_windows(info).batch(n, size)


def test_load_dataset_says_what_is_wrong(info, tmp_path):
    with pytest.raises(InputError, match=r"not a prepared dataset.*; run this$"):
        load_dataset(tmp_path / "nowhere", "run this")
    (tmp_path / "half" / ".preparing").mkdir(parents=True)
    with pytest.raises(InputError, match="half prepared"):
        load_dataset(tmp_path / "half")
    copy = tmp_path / "copy"
    shutil.copytree(info.path, copy)
    assert load_dataset(copy).fingerprint == info.fingerprint
    (shard,) = copy.glob("*-train.array_record*")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match="bytes were written"):
        load_dataset(copy)
    shard.unlink()
    with pytest.raises(InputError, match="missing"):
        load_dataset(copy)
    (copy / "anytime_jax.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        load_dataset(copy)
    (copy / "anytime_jax.json").write_text('{"format_version": 99}')
    with pytest.raises(InputError, match="version 99"):
        load_dataset(copy)
