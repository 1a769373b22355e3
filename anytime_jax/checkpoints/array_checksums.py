"""Checksums of arrays, independent of their sharding.

The checksum of an array is a sum of its elements' bits, each multiplied by an odd number that
depends on its position:

    sum_i (2 * h(i) + 1) * word_i  mod 2^32

    h(i) = (m ^ (m >> 12)) * 0x297A2D39,   m = (i ^ (i >> 15)) * 0x2C1B3C6D   mod 2^32

word_i has the bits of the i-th element in row-major order. A change of a single word always changes
the sum. Appended zeros or another type may leave the sum as it is, so a checksum includes dtype and
shape.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checkpoints.tree_names import flatten_by_name

_BLOCK = 2**16  # words that are summed at once, in the cache of a core


def checksums(tree: Any) -> dict[str, str]:
    """Returns checksums such as `float32[12,1024] 3294147079` of a tree's arrays by name.

    Arrays must have 16- or 32-bit elements; they may be sharded.
    """
    return checksums_and_nonfinite(tree)[0]


def checksums_and_nonfinite(tree: Any) -> tuple[dict[str, str], list[str]]:
    """Returns `checksums(tree)` and the names of arrays that contain a NaN or an infinity."""
    flat = flatten_by_name(tree)
    # One array after the other: a program for all would hold the factors of all in memory on a CPU.
    sums = {name: jax.device_get(_inspect(x)) for name, x in flat.items()}
    texts = {name: format_checksum(x.dtype, x.shape, sums[name][0]) for name, x in flat.items()}
    return texts, [name for name in flat if not sums[name][1]]


def format_checksum(dtype: Any, shape: Sequence[int], total: int) -> str:
    """Returns a checksum as text; `total` is the sum, which is taken mod 2^32."""
    return f"{dtype}[{','.join(map(str, shape))}] {int(total) % 2**32}"


@jax.jit
def _inspect(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return sum_words(x), jnp.all(jnp.isfinite(x))


def sum_words(x: jax.Array) -> jax.Array:
    """Returns the sum over an array."""
    words = jax.lax.bitcast_convert_type(x, _unsigned(x.dtype)).astype(jnp.uint32)
    position = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        position = position * jnp.uint32(size % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(words * _factor(position), dtype=jnp.uint32)


def sum_host_words(x: np.ndarray, number: int = 0) -> int:
    """Returns the sum over an array in host memory.

    The array may be part `number`, along the first axis, of a larger array; its words then count
    from the place of the part. The function runs no JAX program, so threads may call it at once.
    """
    words = np.ascontiguousarray(x).reshape(-1).view(_unsigned(x.dtype))
    first, total = number * words.size, 0
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK].astype(np.uint32)
        position = np.arange(block.size, dtype=np.uint32) + np.uint32((first + start) % 2**32)
        total += int(np.sum(block * _factor(position), dtype=np.uint32))
    return total % 2**32


def _unsigned(dtype: Any) -> Any:
    return {2: np.uint16, 4: np.uint32}[dtype.itemsize]


def _factor(position: Any) -> Any:
    """Returns `2 * h(position) + 1`, of uint32 arrays of JAX or NumPy."""
    mixed = (position ^ (position >> 15)) * np.uint32(0x2C1B3C6D)
    return 2 * ((mixed ^ (mixed >> 12)) * np.uint32(0x297A2D39)) + 1
