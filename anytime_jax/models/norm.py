"""Layer norm and RMS norm, with a gradient that takes few passes over memory.

Shape suffixes: D the last axis or axes, which are normalized together; N all axes before them.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

CHECKPOINT_NAME = "norm"  # of the statistics, for `jax.checkpoint`

_Statistics = tuple[jax.Array | None, jax.Array]


# For JAX's own gradient, XLA stores the normalized arrays of the forward pass in float32, and the
# products of the scale's gradient before it sums them.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def normalize(x_NxD: jax.Array, scale_D: jax.Array, epsilon: float, centered: bool) -> jax.Array:
    """Returns a layer norm if `centered`, else an RMS norm, float32; neither has a bias.

    `scale` has the shape of the last axes of `x`, which are normalized together. `epsilon` is added
    to the variance of a layer norm and to the mean square of an RMS norm.
    """
    return _unit(x_NxD, _statistics(x_NxD, scale_D.ndim, epsilon, centered)) * scale_D


def _forward(
    x_NxD: jax.Array, scale_D: jax.Array, epsilon: float, centered: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, _Statistics]]:
    statistics = _statistics(x_NxD, scale_D.ndim, epsilon, centered)
    statistics = checkpoint_name(statistics, CHECKPOINT_NAME)
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
    dx_NxD = scaled_NxD - unit_NxD * _mean(scaled_NxD * unit_NxD, scale_D.ndim)
    if centered:
        dx_NxD -= _mean(scaled_NxD, scale_D.ndim)
    dscale_D = (grad_NxD * unit_NxD).sum(axis=tuple(range(grad_NxD.ndim - scale_D.ndim)))
    return (dx_NxD * statistics[1]).astype(x_NxD.dtype), dscale_D


normalize.defvjp(_forward, _backward)


def _mean(x_NxD: jax.Array, axes: int) -> jax.Array:
    """Returns the mean over the last axes, which stay with size 1."""
    return x_NxD.mean(axis=tuple(range(-axes, 0)), keepdims=True)


def _statistics(x_NxD: jax.Array, axes: int, epsilon: float, centered: bool) -> _Statistics:
    """Returns the mean (None unless `centered`) and 1 / root mean square of `x` less the mean."""
    x_NxD = x_NxD.astype(jnp.float32)
    mean_Nx1 = _mean(x_NxD, axes) if centered else None
    rest_NxD = x_NxD if mean_Nx1 is None else x_NxD - mean_Nx1
    return mean_Nx1, jax.lax.rsqrt(_mean(jnp.square(rest_NxD), axes) + epsilon)


def _unit(x_NxD: jax.Array, statistics: _Statistics) -> jax.Array:
    """Returns `x`, less the mean unless it is None, scaled to a mean square of 1."""
    mean_Nx1, inverse_Nx1 = statistics
    x_NxD = x_NxD.astype(jnp.float32)
    return (x_NxD if mean_Nx1 is None else x_NxD - mean_Nx1) * inverse_Nx1
