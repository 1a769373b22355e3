"""Products of matrices with operands of 16 bits, accumulated in float32, and their gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anytime_jax.config.model import Dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _product(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> jax.Array:
    return _product_forward(spec, x, y, dtype)[0]


def _product_forward(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> tuple[jax.Array, Any]:
    x = _round(x, dtype)
    # y is mostly a weight: kept as given, it is not stored a second time in 16 bits.
    return _einsum(spec, x, _round(y, dtype)), (x, y)


def _product_backward(
    spec: str, dtype: Dtype, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = saved
    grad = _round(grad, dtype)
    operands, out_axes = spec.split("->")
    x_axes, y_axes = operands.split(",")
    dx = _einsum(f"{out_axes},{y_axes}->{x_axes}", grad, _round(y, dtype))
    dy = _einsum(f"{x_axes},{out_axes}->{y_axes}", x, grad)
    return dx, dy


_product.defvjp(_product_forward, _product_backward)


def mixed_einsum(spec: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> jax.Array:
    """Returns a two-operand einsum with operands in `dtype`, accumulated and given in float32.

    The gradient is two products of the same kind. JAX's own rule would multiply the float32
    cotangent with a 16-bit operand, which is slow, or round weight gradients to 16 bits.

    Args:
      spec: einsum of two operands; every index stands in two of its three terms at least.
      x: first operand, float32.
      y: second operand, float32.
      dtype: type of both operands as they are multiplied.
    """
    return _product(spec, x, y, dtype)


def _round(x: jax.Array, dtype: Dtype) -> jax.Array:
    """Rounds an operand to `dtype`.

    XLA's CPU backend lacks some products of bfloat16 with a float32 result and is slow at the rest,
    so there the rounded values stay in float32: the same product, since it is exact in float32.
    """
    if dtype == "bfloat16" and jax.default_backend() == "cpu":
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(dtype)


def _einsum(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32)
