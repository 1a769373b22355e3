"""Windows: a batch depends on dataset, seed and first sample; passes are permutations."""

import hashlib
import json

import numpy as np
import pytest
from token_datasets import write_dataset

from anytime_jax.data.windows import DataExhausted, Windows
from anytime_jax.errors import InputError, RunError

LENGTH, COUNT = 16, 566
# Windows of the tokens 0, 1, 2, ...
STORED = np.arange(LENGTH + 1) + LENGTH * np.arange(COUNT)[:, None]


@pytest.fixture(scope="module")
def info(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"), range(COUNT * LENGTH + 1), 3)


def open_windows(info, split="train", *, seed=0, repeat=False, shuffle=True):
    return Windows.from_dataset(
        info, split, length=LENGTH, seed=seed, repeat=repeat, shuffle=shuffle
    )


def test_each_pass_is_another_permutation(info):
    windows = open_windows(info, repeat=True)
    passes = [windows.batch(number * COUNT, COUNT) for number in range(3)]
    for rows in passes:
        assert rows.dtype == np.int32
        np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], STORED)
    assert not np.array_equal(passes[0], STORED)
    assert not np.array_equal(passes[0], passes[1])
    assert not np.array_equal(passes[1], passes[2])


def test_order_of_a_seed_never_changes(info):
    """Runs resume on the samples that follow, whatever the version."""
    rows = open_windows(info, seed=3, repeat=True).batch(0, 2 * COUNT)
    order = (rows[:, 0] // LENGTH).tolist()
    assert order[:8] == [453, 537, 214, 344, 372, 329, 287, 183]
    assert hashlib.sha256(json.dumps(order).encode()).hexdigest()[:16] == "bf8bd907ad3e527e"


def test_row_i_is_sample_n_plus_i_for_any_batch_size_and_seed(info):
    windows = open_windows(info, seed=3, repeat=True)
    n = COUNT - 20  # across the end of a pass
    whole = windows.batch(n, 48)
    assert whole.shape == (48, LENGTH + 1)
    for size in (1, 3, 16):
        pieces = [windows.batch(n + k, size) for k in range(0, 48, size)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    np.testing.assert_array_equal(windows.batch(n, 48), whole)  # reading has left no trace
    np.testing.assert_array_equal(open_windows(info, seed=3, repeat=True).batch(n, 48), whole)
    assert not np.array_equal(open_windows(info, seed=77, repeat=True).batch(n, 48), whole)


def test_processes_read_their_rows_of_the_same_batch(info):
    windows = open_windows(info, seed=3)
    whole = windows.batch(7, 24)
    for own in (slice(0, 12), slice(12, 24)):
        np.testing.assert_array_equal(windows.batch(7, 24, own), whole[own])
    assert windows.batch(7, 24, slice(0, 0)).shape == (0, LENGTH + 1)


@pytest.mark.parametrize(("length", "count"), [(1, 9056), (100, 90), (4528, 2), (9056, 1)])
def test_windows_of_any_length_cover_the_same_tokens(info, length, count):
    assert info.splits["train"].windows(length) == count
    rows = Windows.from_dataset(info, "train", length=length, seed=0, shuffle=False).batch(0, count)
    np.testing.assert_array_equal(rows, np.arange(length + 1) + length * np.arange(count)[:, None])


def test_batch_beyond_the_last_sample_raises_data_exhausted(info):
    windows = open_windows(info)
    windows.batch(COUNT - 4, 4)
    with pytest.raises(DataExhausted, match="repeat") as error:
        # The batch as a whole must exist, or processes would disagree.
        windows.batch(COUNT - 4, 5, slice(0, 1))
    assert isinstance(error.value, RunError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("split", "test"), ("length", 9057), ("seed", -1), ("repeat", "False")),
    ],
)
def test_bad_settings_are_refused(info, name, value):
    settings = {"split": "train", "length": LENGTH, "seed": 0, name: value}
    with pytest.raises(InputError, match=rf"{name}|{value}" if name != "length" else r"9,057"):
        Windows.from_dataset(info, **settings)


@pytest.mark.parametrize(("n", "size"), [(-1, 4), (0, 0)])
def test_bad_batches_are_refused(info, n, size):
    with pytest.raises(InputError):
        open_windows(info).batch(n, size)
