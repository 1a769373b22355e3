"""Rounding to bfloat16 against float64, and the bits that choose."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_jax import rounding

NORMAL = st.floats(2.0**-100, 2.0**100, width=32)
ALL_BITS = (np.arange(2**16, dtype=np.uint32) << 16) + np.uint32(12345)


@jax.jit
def _round_each_way(x):
    return rounding.round_to_bfloat16(jnp.full(ALL_BITS.shape, x), ALL_BITS)


@given(size=NORMAL, sign=st.sampled_from([-1, 1]))
def test_a_number_is_rounded_to_its_neighbors_and_exactly_in_the_mean(size, sign):
    x = np.float32(sign * size)
    rounded = np.float64(_round_each_way(x))
    nearest = ml_dtypes.bfloat16(x)
    side = np.copysign(np.inf, x - np.float32(nearest))
    other = np.nextafter(nearest, ml_dtypes.bfloat16(side))
    assert set(rounded) <= {float(nearest), float(other)}
    assert rounded.mean() == np.float64(x)


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.finfo(np.float32).tiny])
def test_a_number_of_bfloat16_stays(x):
    rounded = np.float64(_round_each_way(np.float32(x)))
    np.testing.assert_array_equal(rounded, np.float64(np.float32(x)))


def test_nan_stays_nan():
    assert np.isnan(np.float64(_round_each_way(np.float32(np.nan)))).all()


def test_bits_are_independent_of_neighbors_updates_and_streams():
    shape, counts = (64, 96), range(1, 21)
    bits = jax.jit(rounding.random_bits, static_argnums=(0, 2))
    uniform = np.stack([[bits(shape, jnp.int32(t), s) for t in counts] for s in range(3)]) / 2.0**32
    centered = uniform - 0.5
    pairs = {
        "position": (centered[..., 1:], centered[..., :-1]),
        "row": (centered[..., 1:, :], centered[..., :-1, :]),
        "update": (centered[:, 1:], centered[:, :-1]),
        "stream": (centered[1:], centered[:-1]),
    }
    for name, (one, other) in pairs.items():
        deviation = 1 / 12 / np.sqrt(one.size)
        assert abs(np.mean(one * other)) < 4 * deviation, name
    assert abs(centered.mean()) < 4 * np.sqrt(1 / 12 / centered.size)
    counted, _ = np.histogram(uniform, 256, (0, 1))
    assert np.abs(counted / counted.mean() - 1).max() < 5 / np.sqrt(counted.mean())
