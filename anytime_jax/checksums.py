"""Checksums: of arrays, the same on any layout of devices; and of what is saved beside them.

The checksum of an array is a sum modulo 2^32 of its words, each times an odd number made from its
position:

    sum_i (2 * h(i) + 1) * word_i  mod 2^32

    h(i) = (m ^ (m >> 12)) * 0x297A2D39,   m = (i ^ (i >> 15)) * 0x2C1B3C6D   mod 2^32

with word_i the bits of the i-th element in row-major order. Any single changed word changes it. The
type and the shape are written before it, since zeros, appended or retyped, leave the sum as it is.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def checksums(tree: Any) -> dict[str, str]:
    """Returns the checksum of every array of a tree, `float32[12,1024] 3294147079`, by its name.

    Args:
      tree: arrays of 16- or 32-bit elements, on any layout of devices or in host memory.
    """
    flat = by_name(tree)
    sums = jax.device_get(_checksum_all(list(flat.values())))
    return {
        name: f"{x.dtype}[{','.join(map(str, x.shape))}] {total}"
        for (name, x), total in zip(flat.items(), sums, strict=True)
    }


def not_finite(tree: Any) -> list[str]:
    """Returns the names of the arrays of a tree that hold a NaN or an infinity."""
    flat = by_name(tree)
    finite = jax.device_get(_are_finite(list(flat.values())))
    return [name for name, good in zip(flat, finite, strict=True) if not good]


def digest(plain: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of plain data, whatever the order of its keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def by_name(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by name, such as `1/mu/blocks/qkv`, tuples like dicts."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@jax.jit
def _checksum_all(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(leaf) for leaf in leaves]


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]


def _checksum(x: jax.Array) -> jax.Array:
    unsigned = {2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    words = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    position = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        position = position * jnp.uint32(size % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    mixed = (position ^ (position >> 15)) * jnp.uint32(0x2C1B3C6D)
    mixed = (mixed ^ (mixed >> 12)) * jnp.uint32(0x297A2D39)
    return jnp.sum(words * (2 * mixed + 1), dtype=jnp.uint32)
