"""Mixed-precision einsum: 16-bit operands and results, float32 sums, in the gradient too.

The gradient is written by hand. JAX's own would multiply the rounded operands with a cotangent in
float32, or round the gradients of weights to 16 bits.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from anytime_jax.config.model import Dtype


class Precision(NamedTuple):
    """Type to which operands and results of products are rounded, and the platform.

    XLA's CPU backend has some bfloat16 products, all of them slow, and lacks others. So a CPU
    stores the rounded values in float32, in which a product of two rounded values is exact.
    """

    dtype: Dtype
    platform: str

    @property
    def stored_dtype(self) -> Dtype:
        """Type of the arrays that hold rounded values."""
        return "float32" if self.platform == "cpu" else self.dtype

    def round(self, x: jax.Array) -> jax.Array:
        """Rounds an array to `dtype`, as an array of `stored_dtype`."""
        if self.dtype == "bfloat16" and self.platform == "cpu":
            return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        return x.astype(self.dtype)


def mixed_einsum(
    spec: str, x: jax.Array, y: jax.Array, precision: Precision, round_result: bool = True
) -> jax.Array:
    """Returns a two-operand einsum of rounded operands, with float32 sums.

    With `round_result`, the result is rounded, of type `precision.stored_dtype`; without it, the
    result is float32. Every index of `spec` must be in at least two of its three terms. In the
    backward pass, operands are rounded too. The gradient of `x` is rounded; the gradient of `y`,
    usually a weight, stays float32.
    """
    return _mixed_einsum(spec, x, y, precision, round_result)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def _mixed_einsum(
    spec: str, x: jax.Array, y: jax.Array, precision: Precision, round_result: bool
) -> jax.Array:
    return _forward(spec, x, y, precision, round_result)[0]


def _forward(
    spec: str, x: jax.Array, y: jax.Array, precision: Precision, round_result: bool
) -> tuple[jax.Array, Any]:
    rounded = precision.round(x)
    out = _einsum(spec, rounded, precision.round(y), precision, round_result)
    # y, usually a weight, is saved unrounded: there is no copy in 16 bits beside the weight. The
    # zero carries the type of x, in which the gradient of x is returned.
    return out, (rounded, y, jnp.zeros((), x.dtype))


def _backward(
    spec: str,
    precision: Precision,
    round_result: bool,
    saved: tuple[jax.Array, jax.Array, jax.Array],
    grad: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    del round_result
    x, y, like_x = saved
    grad = precision.round(grad)
    operands, out_axes = spec.split("->")
    x_axes, y_axes = operands.split(",")
    dx = _einsum(f"{out_axes},{y_axes}->{x_axes}", grad, precision.round(y), precision, True)
    dy = _einsum(f"{x_axes},{out_axes}->{y_axes}", x, grad, precision, False)
    return dx.astype(like_x.dtype), dy.astype(y.dtype)


_mixed_einsum.defvjp(_forward, _backward)


def mixed_einsums(
    spec: str, x: jax.Array, ys: Sequence[jax.Array], precision: Precision
) -> tuple[jax.Array, ...]:
    """Returns `mixed_einsum` of `x` with each of `ys`, which have one shape.

    The gradient of `x` is the float32 sum of the gradients of all products, rounded once. It is
    that of one product with all `ys` joined along another axis, but for the order of the sum.
    """
    return cast(tuple[jax.Array, ...], _mixed_einsums(spec, x, list(ys), precision))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _mixed_einsums(
    spec: str, x: jax.Array, ys: list[jax.Array], precision: Precision
) -> tuple[jax.Array, ...]:
    return _forward_each(spec, x, ys, precision)[0]


def _forward_each(
    spec: str, x: jax.Array, ys: list[jax.Array], precision: Precision
) -> tuple[tuple[jax.Array, ...], Any]:
    rounded = precision.round(x)
    outs = tuple(_einsum(spec, rounded, precision.round(y), precision, True) for y in ys)
    return outs, (rounded, ys, jnp.zeros((), x.dtype))


def _backward_each(
    spec: str, precision: Precision, saved: Any, grads: tuple[jax.Array, ...]
) -> tuple[jax.Array, Any]:
    x, ys, like_x = saved
    operands, out_axes = spec.split("->")
    x_axes, y_axes = operands.split(",")
    of_x, of_y = f"{out_axes},{y_axes}->{x_axes}", f"{x_axes},{out_axes}->{y_axes}"
    grads = tuple(map(precision.round, grads))
    pairs = zip(grads, map(precision.round, ys), strict=True)
    dx = sum(_einsum(of_x, grad, y, precision, False) for grad, y in pairs)
    dys = [_einsum(of_y, x, grad, precision, False) for grad in grads]
    dys = [dy.astype(y.dtype) for dy, y in zip(dys, ys, strict=True)]
    return precision.round(jnp.asarray(dx)).astype(like_x.dtype), dys


_mixed_einsums.defvjp(_forward_each, _backward_each)


def _einsum(
    spec: str, x: jax.Array, y: jax.Array, precision: Precision, round_result: bool
) -> jax.Array:
    stored = precision.stored_dtype if round_result else "float32"
    out = jnp.einsum(spec, x, y, preferred_element_type=jnp.dtype(stored))
    return precision.round(out) if round_result else out
