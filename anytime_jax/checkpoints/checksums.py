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

from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.distributed.sharding import is_in_host_memory, to_device_memory


def checksums(tree: Any) -> dict[str, str]:
    """Returns the checksum of every array of a tree, `float32[12,1024] 3294147079`, by its name.

    Args:
      tree: arrays of 16- or 32-bit elements, on any layout of devices or in host memory.
    """
    return checksums_and_nonfinite(tree)[0]


def checksums_and_nonfinite(tree: Any) -> tuple[dict[str, str], list[str]]:
    """Returns what `checksums` does, and the names of arrays that hold a NaN or an infinity."""
    flat = flatten_by_name(tree)
    # All that is on the device at once; what is kept in host memory comes there array by array.
    away = [name for name, x in flat.items() if is_in_host_memory(x)]
    here = [name for name in flat if name not in away]
    examined: dict[str, tuple[Any, Any]] = {}
    for names in [here] * bool(here) + [[name] for name in away]:
        found = jax.device_get(_examine_all([to_device_memory(flat[name]) for name in names]))
        examined |= zip(names, found, strict=True)
    sums = {
        name: f"{x.dtype}[{','.join(map(str, x.shape))}] {examined[name][0]}"
        for name, x in flat.items()
    }
    return sums, [name for name in flat if not examined[name][1]]


def json_digest(plain: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of plain data, whatever the order of its keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@jax.jit
def _examine_all(leaves: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    return [(_checksum(leaf), jnp.all(jnp.isfinite(leaf))) for leaf in leaves]


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
