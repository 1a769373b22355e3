"""Checksums, against the formula in Python's integers."""

import json

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import small_run

from anytime_jax.checkpoints.array_checksums import (
    checksums,
    checksums_and_nonfinite,
    sum_host_words,
)


def numpy_checksum(x) -> int:
    """The formula, for one array."""
    x = np.asarray(x)
    words = x.ravel().view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize]).tolist()
    total = 0
    for i, word in enumerate(words):
        h = (i ^ (i >> 15)) * 0x2C1B3C6D % 2**32
        h = (h ^ (h >> 12)) * 0x297A2D39 % 2**32
        total += (2 * h + 1) * word
    return total % 2**32


def checksum(x) -> int:
    kind, total = checksums({"x": x})["x"].split()
    assert kind == f"{np.asarray(x).dtype}[{','.join(map(str, np.shape(x)))}]"
    return int(total)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), np.int32),
        ((0,), np.float32),
        ((5, 3), ml_dtypes.bfloat16),
        ((2, 3, 4), np.uint16),
        ((40, 1000), np.float32),
    ],
    ids=str,
)
def test_checksum_equals_the_formula(shape, dtype):
    rng = np.random.RandomState(0)
    x = (1000 * rng.standard_normal(shape)).astype(np.float32)
    x = np.abs(x).astype(dtype) if dtype == np.uint16 else x.astype(dtype)
    assert checksum(jnp.asarray(x)) == numpy_checksum(x)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_sums_of_parts_in_host_memory_are_that_of_the_whole(dtype):
    x = np.random.RandomState(1).bytes(3 * 70_000 * np.dtype(dtype).itemsize)
    parts = np.frombuffer(x, dtype).reshape(3, 700, 100)  # more than is summed at once
    total = sum(sum_host_words(part, number) for number, part in enumerate(parts))
    assert total % 2**32 == numpy_checksum(parts)
    assert sum_host_words(parts[:, ::2]) == numpy_checksum(parts[:, ::2])
    assert sum_host_words(parts[0, 0, :1].reshape(())) == numpy_checksum(parts[0, 0, 0])


@pytest.mark.parametrize("spec", [(("data", "fsdp", "tensor"),), ("tensor", "fsdp")])
def test_checksum_does_not_depend_on_the_sharding(spec):
    x = np.random.RandomState(0).standard_normal((8, 16, 6)).astype(np.float32)
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    assert checksum(jax.device_put(x, sharding)) == numpy_checksum(x)


X = np.random.RandomState(1).standard_normal((9, 23)).astype(np.float32)


@hypothesis.given(st.integers(0, X.size - 1), st.integers(0, 31))
def test_flipped_bit_changes_checksum(element, bit):
    words = X.view(np.uint32).copy()
    words.ravel()[element] ^= np.uint32(1) << np.uint32(bit)
    assert checksum(words.view(np.float32)) != checksum(X)


@hypothesis.given(st.integers(0, X.size - 1), st.integers(0, X.size - 1))
def test_exchanged_elements_change_checksum(one, other):
    hypothesis.assume(one != other)
    y = X.copy()
    y.ravel()[[one, other]] = y.ravel()[[other, one]]
    assert checksum(y) != checksum(X)


def test_checksums_are_json():
    sums = checksums({"a": {"b": jnp.ones(3)}, "c": (jnp.zeros(2), X)})
    assert sums.keys() == {"a/b", "c/0", "c/1"}
    assert json.loads(json.dumps(sums)) == sums


def test_nonfinite_arrays_are_named():
    tree = {"a": jnp.asarray([1.0, jnp.nan]), "b": jnp.asarray([jnp.inf]), "c": jnp.ones(2)}
    assert checksums_and_nonfinite(tree)[1] == ["a", "b"]
