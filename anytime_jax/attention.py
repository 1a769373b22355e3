"""Rotary position embedding and causal attention.

Legend of shape suffixes: B batch, L length, M length of keys, H heads, K head size.
"""

import math
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from anytime_jax.product import Dtype, product

Attention = Literal["auto", "plain", "xla", "cudnn"]


def rotary_angles(
    length: int, head_size: int, theta: float, start: int | jax.Array = 0
) -> jax.Array:
    """Returns the rotary angle of each position from `start` and channel, float32 of shape LxK.

    Channel i of the first half and its partner in the second turn by `position * theta^(-2i/K)`.
    """
    frequency = theta ** (-jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angles = (start + jnp.arange(length, dtype=jnp.float32))[:, None] * frequency
    return jnp.concatenate([angles, angles], axis=-1)


def rotate(x_BxLxHxK: jax.Array, angles_LxK: jax.Array) -> jax.Array:
    """Returns queries or keys turned by their position, in float32 (half rotation)."""
    x1, x2 = jnp.split(x_BxLxHxK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([-x2, x1], axis=-1)
    angles_LxHxK = angles_LxK[:, None, :]
    return x_BxLxHxK * jnp.cos(angles_LxHxK) + turned * jnp.sin(angles_LxHxK)


def causal_attention(
    q_BxLxHxK: jax.Array, k_BxLxHxK: jax.Array, v_BxLxHxK: jax.Array, dtype: Dtype, path: Attention
) -> jax.Array:
    """Returns causal softmax attention, float32 of shape BxLxHxK.

    Args:
      q_BxLxHxK: queries.
      k_BxLxHxK: keys.
      v_BxLxHxK: values.
      dtype: type of the operands of the two products; the softmax is float32.
      path: "plain", the oracle, or an implementation of `jax.nn.dot_product_attention`.
    """
    if path in ("xla", "cudnn"):
        q, k, v = (y.astype(dtype) for y in (q_BxLxHxK, k_BxLxHxK, v_BxLxHxK))
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=path)
        return out.astype(jnp.float32)
    length = q_BxLxHxK.shape[1]
    causal_LxM = jnp.tril(jnp.ones((length, length), bool))
    return _attend(q_BxLxHxK, k_BxLxHxK, v_BxLxHxK, causal_LxM, dtype)


def cached_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxHxK: jax.Array,
    v_BxLxHxK: jax.Array,
    cache: Mapping[str, jax.Array],
    start: int | jax.Array,
    dtype: Dtype,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the attention of tokens to themselves and all before them, and the cache with them.

    It is plain in every case: the kernels of `jax.nn.dot_product_attention` would want a mask for
    the places not filled yet, and are made for more queries than one.

    Args:
      q_BxLxHxK: queries of the tokens from position `start`.
      k_BxLxHxK: keys of the same tokens.
      v_BxLxHxK: values of the same tokens.
      cache: "keys" and "values" of shape BxMxHxK, by position; those from `start` are not read.
      start: tokens before these.
      dtype: type of the operands of the two products; the softmax is float32.
    """
    length, places = q_BxLxHxK.shape[1], cache["keys"].shape[1]
    cache = {
        "keys": _write(cache["keys"], k_BxLxHxK, start),
        "values": _write(cache["values"], v_BxLxHxK, start),
    }
    k_BxMxHxK, v_BxMxHxK = (cache[name].astype(jnp.float32) for name in ("keys", "values"))
    causal_LxM = jnp.arange(places) <= start + jnp.arange(length)[:, None]
    return _attend(q_BxLxHxK, k_BxMxHxK, v_BxMxHxK, causal_LxM, dtype), cache


def _write(cache_BxMxHxK: jax.Array, new_BxLxHxK: jax.Array, start: int | jax.Array) -> jax.Array:
    new_BxLxHxK = new_BxLxHxK.astype(cache_BxMxHxK.dtype)
    return jax.lax.dynamic_update_slice_in_dim(cache_BxMxHxK, new_BxLxHxK, start, axis=1)


def _attend(
    q_BxLxHxK: jax.Array,
    k_BxMxHxK: jax.Array,
    v_BxMxHxK: jax.Array,
    visible_LxM: jax.Array,
    dtype: Dtype,
) -> jax.Array:
    """Softmax attention to the keys that each query may see."""
    scores_BxHxLxM = product("blhk,bmhk->bhlm", q_BxLxHxK, k_BxMxHxK, dtype)
    scores_BxHxLxM *= 1 / math.sqrt(q_BxLxHxK.shape[-1])
    scores_BxHxLxM = jnp.where(visible_LxM, scores_BxHxLxM, jnp.finfo(jnp.float32).min)
    return product("bhlm,bmhk->blhk", jax.nn.softmax(scores_BxHxLxM), v_BxMxHxK, dtype)
