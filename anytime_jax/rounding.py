"""Stochastic rounding, for running means whose increments are smaller than the spacing of numbers.

A value is rounded to one of the two numbers around it, with probabilities that make the expectation
exact. Rounding to the nearest number would drop every increment below half the spacing, and a mean
that moves by such increments would stop.

The choice is a hash of the update count and the position of the element in its array. So a run that
is repeated or resumed rounds in the same way, on any layout of devices.
"""

import jax
import jax.numpy as jnp


def round_sum(x: jax.Array, increment: jax.Array, uniform: jax.Array) -> jax.Array:
    """Returns x + increment in float32; `uniform` are random numbers from 0 to 1.

    The sum lies between the nearest float32 number and a neighbor of this number. The residual is
    the sum minus the nearest number. The neighbor is taken with probability |residual| / distance,
    where the distance is between these two numbers. (Below a power of two, the distance is half of
    the distance above it.)

    Examples:
      >>> x, increment = jnp.ones(4), 2.0**-25  # a quarter of the spacing above 1
      >>> (rounding.round_sum(x, increment, jnp.array([0.0, 0.2, 0.4, 0.9])) - 1) * 2**23
      Array([1., 1., 0., 0.], dtype=float32)
    """
    nearest = x + increment
    # The residual is exact for an increment up to x; for a larger one, its error is less than its
    # own rounding. Both hold if the compiler fuses the product in the increment into either sum.
    residual = increment - (nearest - x)
    step = jnp.where((residual > 0) == (nearest > 0), 1, -1)  # bits: away from zero, or toward it
    bits = jax.lax.bitcast_convert_type(nearest, jnp.int32) + step
    neighbor = jax.lax.bitcast_convert_type(bits, jnp.float32)
    is_neighbor = uniform * jnp.abs(neighbor - nearest) < jnp.abs(residual)
    return jnp.where(is_neighbor, neighbor, nearest)


def round_to_bfloat16(x: jax.Array, bits: jax.Array) -> jax.Array:
    """Returns float32 numbers in bfloat16; `bits` are random uint32 numbers.

    The lower 16 bits of x are dropped. Their share of 2^16 is the probability of the next number
    away from zero. A number beyond the largest of bfloat16 may become infinite.

    Examples:
      >>> x = jnp.full(4, 1 + 2.0**-9)  # a quarter of the spacing above 1
      >>> rounding.round_to_bfloat16(x, jnp.arange(4, dtype=jnp.uint32) << 30)
      Array([1, 1, 1, 1.00781], dtype=bfloat16)
    """
    words = jax.lax.bitcast_convert_type(x, jnp.uint32) + (bits >> 16)
    return jax.lax.bitcast_convert_type((words >> 16).astype(jnp.uint16), jnp.bfloat16)


def random_uniform(shape: tuple[int, ...], count: jax.Array) -> jax.Array:
    """Returns float32 numbers in [0, 1), of the upper 24 of the random bits.

    Examples:
      >>> jnp.floor(100 * rounding.random_uniform((2,), jnp.int32(1)))
      Array([12., 78.], dtype=float32)
    """
    bits = random_bits(shape, count)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def random_bits(shape: tuple[int, ...], count: jax.Array, stream: int = 0) -> jax.Array:
    """Returns uint32 numbers, spread evenly: a hash of the position and the update count.

    Arrays of one shape have other bits where `stream` differs.

    Examples:
      >>> rounding.random_bits((2,), jnp.int32(1))
      Array([ 522966764, 3364782511], dtype=uint32)
    """
    bits = count.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    if stream:
        bits += jnp.uint32(stream * 0x85EBCA6B % 2**32)
    for axis, size in enumerate(shape):
        bits = bits * jnp.uint32(size | 1)
        bits += jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    for multiplier in (0x21F0AAAD, 0x735A2D97):
        bits = (bits ^ (bits >> 16)) * jnp.uint32(multiplier)
    return bits
