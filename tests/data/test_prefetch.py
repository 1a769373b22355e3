"""Reading ahead: batches, their order and their errors are as if each was read when it is due."""

import gc
import itertools
import threading

import numpy as np
import pytest
from token_datasets import write_dataset

from anytime_jax.data.prefetch import read_ahead
from anytime_jax.data.windows import DataExhausted, Windows

LENGTH, COUNT = 16, 200


@pytest.fixture(scope="module")
def info(tmp_path_factory):
    tokens = np.arange(COUNT * LENGTH + 1)
    return write_dataset(tmp_path_factory.mktemp("data"), tokens, parts=3)


@pytest.fixture(scope="module")
def windows(info):
    return Windows.from_dataset(info, "train", length=LENGTH, seed=9, repeat=True)


def test_sizes_may_change_and_the_samples_are_consecutive(windows):
    sizes = [*[8] * 20, *[3] * 20, *[24] * 20]
    batches = list(read_ahead(windows.batch, 11, sizes))
    assert [len(batch) for batch in batches] == sizes
    np.testing.assert_array_equal(np.concatenate(batches), windows.batch(11, sum(sizes)))


def test_error_is_raised_after_the_batches_before_it(info):
    once = Windows.from_dataset(info, "train", length=LENGTH, seed=9)
    batches = read_ahead(once.batch, 0, itertools.repeat(9))
    for _ in range(COUNT // 9):
        next(batches)
    with pytest.raises(DataExhausted, match=str(COUNT)):
        next(batches)


@pytest.mark.parametrize("end", ["close", "forget", "error"])
def test_no_thread_outlives_the_iterator(windows, end):
    def read(first, size):
        if end == "error" and first > 80:
            raise ValueError
        return windows.batch(first, size)

    before = set(threading.enumerate())
    batches = read_ahead(read, 0, itertools.repeat(8))
    next(batches)
    assert set(threading.enumerate()) - before
    if end == "close":
        batches.close()
    elif end == "error":
        with pytest.raises(ValueError):
            list(batches)
    else:
        del batches
        gc.collect()
    assert not set(threading.enumerate()) - before
