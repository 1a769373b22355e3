"""Arrays of tokens: what is written is read back, by other libraries too, or is an error."""

import dataclasses
import itertools
import json
import os
import shutil

import numpy as np
import pytest
from token_datasets import write_dataset

from anytime_jax.data.dataset_info import CHUNK_TOKENS, SplitInfo
from anytime_jax.data.token_arrays import TokenReader, read_part, write_part
from anytime_jax.errors import RunError

# Three parts of a chunk and a half each, with a chunk of zeros in the first one.
TOKENS = np.random.default_rng(0).integers(1, 2**16, 9 * CHUNK_TOKENS // 2).astype("<u2")
TOKENS[: CHUNK_TOKENS + 9] = 0
SIZE = 100


@pytest.fixture
def info(tmp_path):
    return write_dataset(tmp_path, TOKENS, parts=3)


def shard(info, number):
    return info.path / info.parts["train"][number].name / "c" / "0"


def read_every_row(info):
    return TokenReader([info], "train").read(range(0, len(TOKENS) - SIZE, SIZE), SIZE)


def test_zarr_reads_the_same_tokens(info):
    import zarr  # takes a second, in each worker of the tests

    arrays = [zarr.open_array(info.path / part.name, mode="r") for part in info.parts["train"]]
    assert all(array.dtype == np.uint16 for array in arrays)
    np.testing.assert_array_equal(np.concatenate([array[:] for array in arrays]), TOKENS)


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_rows_may_cross_parts_of_any_length(tmp_path, dtype):
    tokens = np.arange(3 * CHUNK_TOKENS).astype(dtype)
    cuts = [0, 1, 3, 7, 50, CHUNK_TOKENS - 1, CHUNK_TOKENS + 20, 2 * CHUNK_TOKENS, len(tokens)]
    parts = [
        write_part(tmp_path, f"train/{i}", tokens[start:stop])
        for i, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    info = dataclasses.replace(
        write_dataset(tmp_path / "other", tokens),
        path=tmp_path,
        token_dtype=np.dtype(dtype).name,
        parts={"train": tuple(parts)},
    )
    reader = TokenReader([info], "train")
    near = np.array([[cut - 60, cut - 1, cut, cut + 1] for cut in cuts]).ravel()
    starts = [int(start) for start in near if 0 <= start <= len(tokens) - 70]
    rows = reader.read([*starts, *starts], 70)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, np.array([*starts, *starts])[:, None] + np.arange(70))
    assert reader.read([], 70).shape == (0, 70)


def test_flipped_bit_is_an_error_of_its_chunk_alone(info):
    content = bytearray(shard(info, 1).read_bytes())
    content[2 * CHUNK_TOKENS // 3] ^= 4  # in the first chunk of part 1, after a short index
    shard(info, 1).write_bytes(content)
    reader = TokenReader([info], "train")
    first = len(TOKENS) // 3
    for start in range(0, len(TOKENS) - SIZE, SIZE):
        if start + SIZE <= first or start >= first + CHUNK_TOKENS:
            np.testing.assert_array_equal(reader.read([start], SIZE)[0], TOKENS[start:][:SIZE])
        else:
            with pytest.raises(RunError, match="train/1 tokens"):
                reader.read([start], SIZE)


def swap(info):
    shutil.copy(shard(info, 1), info.path / "x")
    shutil.copy(shard(info, 2), shard(info, 1))
    shutil.copy(info.path / "x", shard(info, 2))


DAMAGES = {
    "missing": lambda info: shard(info, 1).unlink(),
    "truncated": lambda info: os.truncate(shard(info, 1), 1000),
    "zeros": lambda info: shard(info, 1).write_bytes(bytes(shard(info, 1).stat().st_size)),
    "swapped": swap,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_part_is_named(info, damage):
    DAMAGES[damage](info)
    with pytest.raises(RunError, match=f"{info.path}/train/1 tokens"):
        read_every_row(info)
    with pytest.raises(RunError, match=f"{info.path}/train/1"):
        list(read_part(info, info.parts["train"][1]))


def test_shape_is_that_of_the_metadata(info):
    description = info.path / "train/1/zarr.json"
    edited = json.loads(description.read_text())
    edited["shape"] = [edited["shape"][0] - 1]
    description.write_text(json.dumps(edited))
    np.testing.assert_array_equal(read_every_row(info)[:, 0], TOKENS[: len(TOKENS) - SIZE : SIZE])
    with pytest.raises(RunError, match="train/1"):
        list(read_part(info, info.parts["train"][1]))


def test_part_with_another_beginning_is_found_by_reading_it_all(info):
    other = np.concatenate(list(read_part(info, info.parts["train"][1])))
    other[7] ^= 1
    write_part(info.path, "train/1", other)
    read_every_row(info)
    with pytest.raises(RunError, match="train/1"):
        list(read_part(info, info.parts["train"][1]))


def test_token_beyond_the_vocabulary_is_an_error(info):
    smaller = dataclasses.replace(info, vocab_size=2**15)
    with pytest.raises(RunError, match=r"train/0 .*vocabulary has 32768"):
        read_every_row(smaller)
    with pytest.raises(RunError, match="train/0"):
        list(read_part(smaller, info.parts["train"][0]))


def test_fingerprint_is_of_tokens_and_vocabulary(info, tmp_path):
    changed = TOKENS.copy()
    changed[-1] ^= 1
    others = [
        write_dataset(tmp_path / "changed", changed, parts=3),
        dataclasses.replace(info, vocabulary_sha256="b" * 64),
    ]
    assert len({x.fingerprint for x in [info, *others]}) == 3
    moved = write_dataset(tmp_path / "moved", TOKENS, parts=3)
    counts = dict.fromkeys(moved.splits, SplitInfo(7, len(TOKENS)))
    assert dataclasses.replace(moved, splits=counts).fingerprint == info.fingerprint
