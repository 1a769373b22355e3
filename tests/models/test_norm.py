"""Norms: against those of Flax, and their gradients against its differentiated programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from anytime_jax.models.norm import normalize


@pytest.mark.parametrize(("centered", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_norm_and_gradients_match_flax(centered, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(0.7, 3.0, (2, 5, 32)), dtype)
    scale = jnp.asarray(rng.normal(size=32), jnp.float32)
    sensitivity = rng.normal(size=x.shape)
    flax_norm = (
        nn.LayerNorm(epsilon=0.1, use_bias=False, use_fast_variance=False, dtype=jnp.float32)
        if centered
        else nn.RMSNorm(epsilon=0.1, use_fast_variance=False, dtype=jnp.float32)
    )

    def value_and_gradients(norm):
        def weighted_sum(x, scale):
            y = norm(x, scale)
            assert y.dtype == jnp.float32
            return (y * sensitivity).sum(), y

        gradient = jax.jit(jax.value_and_grad(weighted_sum, argnums=(0, 1), has_aux=True))
        (_, y), grads = gradient(x, scale)
        assert grads[0].dtype == x.dtype
        return y, *grads

    ours = value_and_gradients(lambda x, scale: normalize(x, scale, 0.1, centered))
    theirs = value_and_gradients(lambda x, scale: flax_norm.apply({"params": {"scale": scale}}, x))
    for a, b, limit in zip(
        ours, theirs, (2e-6, 2e-6 if dtype == "float32" else 0.01, 2e-6), strict=True
    ):
        a, b = np.asarray(a, "f8"), np.asarray(b, "f8")
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit * np.abs(b).max())


def test_norm_over_heads_is_that_of_all_their_channels():
    """The scale has the two axes that are normalized together."""
    rng = np.random.default_rng(1)
    x, grad = (jnp.asarray(rng.normal(0.7, 3.0, (2, 5, 4, 8)), jnp.float32) for _ in range(2))
    scale = jnp.asarray(rng.normal(size=(4, 8)), jnp.float32)

    def flat(x, scale):
        y = normalize(x.reshape(2, 5, 32), scale.reshape(32), 0.1, centered=False)
        return y.reshape(x.shape)

    ours, vjp = jax.vjp(lambda x, scale: normalize(x, scale, 0.1, centered=False), x, scale)
    expected, flat_vjp = jax.vjp(flat, x, scale)
    for a, b in zip((ours, *vjp(grad)), (expected, *flat_vjp(grad)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
