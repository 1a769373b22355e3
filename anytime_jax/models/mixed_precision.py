"""Mixed-precision einsum: 16-bit operands, float32 accumulation, gradient of the same kind."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anytime_jax.config.model import Dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _mixed_einsum(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> jax.Array:
    return _forward(spec, x, y, dtype)[0]


def _forward(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> tuple[jax.Array, Any]:
    x = _round(x, dtype)
    # y is mostly a weight: saved as it is, it needs no second copy in 16 bits.
    return _einsum(spec, x, _round(y, dtype)), (x, y)


def _backward(
    spec: str, dtype: Dtype, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = saved
    grad = _round(grad, dtype)
    operands, out_axes = spec.split("->")
    x_axes, y_axes = operands.split(",")
    dx = _einsum(f"{out_axes},{y_axes}->{x_axes}", grad, _round(y, dtype))
    dy = _einsum(f"{x_axes},{out_axes}->{y_axes}", x, grad)
    return dx, dy


_mixed_einsum.defvjp(_forward, _backward)


def mixed_einsum(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> jax.Array:
    """Returns a two-operand einsum with operands rounded to `dtype`, accumulated in float32.

    Every index of `spec` must be in at least two of its three terms. The gradient is two einsums of
    the same kind. JAX's own rule would multiply the float32 cotangent with a 16-bit operand, which
    is slow, or round weight gradients to 16 bits.
    """
    return _mixed_einsum(spec, x, y, dtype)


def _round(x: jax.Array, dtype: Dtype) -> jax.Array:
    """Rounds an operand to `dtype`.

    XLA's CPU backend lacks some bfloat16 products with a float32 result and is slow at the others.
    There the rounded values stay in float32, in which their product is exact.
    """
    if dtype == "bfloat16" and jax.default_backend() == "cpu":
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(dtype)


def _einsum(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32)
