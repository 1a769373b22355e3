"""Sums of gradients that are added to where each gradient is computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax.models import decoder, gradient_sum_vjp
from anytime_jax.training.objective import Objective

LAYERS = 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_read_adds_the_gradient_of_each_layer_to_its_sum(dtype):
    """Against the gradient of a plain function, of weights of 16 bits too."""
    random = np.random.default_rng(0)
    weights = jnp.asarray(random.normal(size=(LAYERS, 4, 4)), "bfloat16")
    scale = jnp.asarray(random.normal(size=4), "float32")
    x = jnp.asarray(random.normal(size=4), "float32")
    before = tuple(jnp.asarray(random.normal(size=y.shape), dtype) for y in (weights, scale))

    def plain(weights, scale):
        y = x * scale
        for weight in weights:
            y = jnp.sin(weight @ y)
        return y.sum()

    def loss_and_sums(sums):
        scale_read, scale_sum = gradient_sum_vjp.read(scale, sums[1])

        def run_layer(carry, of_layer):
            (y, sums), (weight, layer) = carry, of_layer
            weight, sums = gradient_sum_vjp.read(weight, sums, layer)
            assert weight.dtype == jnp.float32
            return (jnp.sin(weight @ y), sums), None

        carry = (x * scale_read, sums[0])
        (y, weight_sums), _ = jax.lax.scan(run_layer, carry, (weights, jnp.arange(LAYERS)))
        return y.sum(), (weight_sums, scale_sum)

    zeros = jax.tree.map(jnp.zeros_like, before)
    (loss, _), vjp = jax.vjp(loss_and_sums, zeros)
    (after,) = vjp((jnp.ones(()), before))
    expected_loss, grads = jax.value_and_grad(plain, (0, 1))(weights.astype("float32"), scale)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
    for was, now, grad in zip(before, after, grads, strict=True):
        assert now.dtype == dtype
        expected = (was.astype("float32") + grad).astype(dtype)
        limit = 1e-6 if dtype == "float32" else 2**-8
        np.testing.assert_allclose(np.float32(now), np.float32(expected), rtol=limit, atol=1e-6)
    assert np.abs(np.float32(after[0] - before[0])).min(axis=(1, 2)).max() > 0  # of every layer


@pytest.mark.parametrize(("layer_loop", "remat"), [("scan", "full"), ("unroll", "none")])
def test_no_gradient_of_all_layers_is_added(layer_loop, remat):
    """The sums of stacked layers are added to one layer at a time."""
    config = small_run.config("run").model
    config = dataclasses.replace(config, layer_loop=layer_loop, remat=remat, layers=LAYERS)
    params = decoder.param_shapes(config)
    tokens = np.zeros((4, small_run.LENGTH + 1), np.int32)
    text = str(
        jax.make_jaxpr(lambda params: Objective(config).loss_and_gradient(params, tokens, 2))(
            params
        )
    )
    stacked = [f"f32[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(params["blocks"])]
    added = [x for x in stacked if f":{x} = add" in text or f":{x} = add_any" in text]
    assert not added
    assert ("dynamic_update_slice" in text) == (layer_loop == "scan")
