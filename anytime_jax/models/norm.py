"""Layer norm and RMS norm, with a gradient that takes few passes over memory.

Shape suffixes: N all axes but the last, D width.
"""

import functools

import jax
import jax.numpy as jnp

_Statistics = tuple[jax.Array | None, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def normalize(x_NxD: jax.Array, scale_D: jax.Array, epsilon: float, centered: bool) -> jax.Array:
    """Returns a layer norm if `centered`, else an RMS norm, over the last axis, float32.

    `epsilon` is added to the variance, or to the mean square. There is no bias.
    """
    return _unit(x_NxD, _statistics(x_NxD, epsilon, centered)) * scale_D


def _forward(
    x_NxD: jax.Array, scale_D: jax.Array, epsilon: float, centered: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, _Statistics]]:
    statistics = _statistics(x_NxD, epsilon, centered)
    return _unit(x_NxD, statistics) * scale_D, (x_NxD, scale_D, statistics)


def _backward(
    epsilon: float,
    centered: bool,
    saved: tuple[jax.Array, jax.Array, _Statistics],
    grad_NxD: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    del epsilon
    x_NxD, scale_D, statistics = saved
    # Without the barrier, XLA recognizes the normalized array of the forward pass and stores it.
    unit_NxD = _unit(x_NxD, jax.lax.optimization_barrier(statistics))
    scaled_NxD = grad_NxD * scale_D
    dx_NxD = scaled_NxD - unit_NxD * (scaled_NxD * unit_NxD).mean(axis=-1, keepdims=True)
    if centered:
        dx_NxD -= scaled_NxD.mean(axis=-1, keepdims=True)
    dscale_D = (grad_NxD * unit_NxD).sum(axis=tuple(range(grad_NxD.ndim - 1)))
    return (dx_NxD * statistics[1]).astype(x_NxD.dtype), dscale_D


normalize.defvjp(_forward, _backward)


def _statistics(x_NxD: jax.Array, epsilon: float, centered: bool) -> _Statistics:
    """Returns the mean, if `centered`, and the reciprocal of the root mean square around it."""
    x_NxD = x_NxD.astype(jnp.float32)
    mean_Nx1 = x_NxD.mean(axis=-1, keepdims=True) if centered else None
    rest_NxD = x_NxD if mean_Nx1 is None else x_NxD - mean_Nx1
    variance_Nx1 = jnp.square(rest_NxD).mean(axis=-1, keepdims=True)
    return mean_Nx1, jax.lax.rsqrt(variance_Nx1 + epsilon)


def _unit(x_NxD: jax.Array, statistics: _Statistics) -> jax.Array:
    """Returns `x` less its mean, if there is one, with mean square 1."""
    mean_Nx1, inverse_Nx1 = statistics
    x_NxD = x_NxD.astype(jnp.float32)
    return (x_NxD if mean_Nx1 is None else x_NxD - mean_Nx1) * inverse_Nx1
