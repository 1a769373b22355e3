"""The loss of a batch, a block of rows at a time, against float64 and against the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint
from anytime_jax.models import loss

B, L, D, V = 8, 6, 5, 11


def made(seed=0):
    rng = np.random.default_rng(seed)
    hidden, head = rng.normal(size=(B, L, D)), 3 * rng.normal(size=(D, V))
    return hidden.astype(np.float32), head.astype(np.float32), rng.integers(0, V, (B, L))


def in_float64(hidden, head, targets):
    """Token losses, and the gradients of their mean, by the textbook."""
    hidden, head = hidden.astype(np.float64), head.astype(np.float64)
    p = np.exp(hidden @ head)
    p /= p.sum(axis=-1, keepdims=True)
    losses = -np.log(np.take_along_axis(p, targets[..., None], axis=-1)[..., 0])
    grad = (p - np.eye(V)[targets]) / targets.size
    return losses, grad @ head.T, np.einsum("bld,blv->dv", hidden, grad)


@pytest.fixture(name="rows", params=[1, 2, 8])
def rows_fixture(request, monkeypatch):
    """Rows whose logits are in memory at once."""
    monkeypatch.setattr(loss, "_LOGITS", {"cpu": request.param * L * V})
    return request.param


def mean_and_gradients(constrain, *arrays):
    mean = functools.partial(loss.mean_loss_from_hidden, dtype="float32", constrain=constrain)
    value_and_grad = jax.value_and_grad(lambda h, w, t: mean(h, w, t), argnums=(0, 1))
    return jax.jit(value_and_grad)(*arrays)


def test_losses_of_logits():
    hidden, head, targets = made()
    found = loss.token_losses(jnp.asarray(hidden @ head), jnp.asarray(targets))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, in_float64(hidden, head, targets)[0], rtol=1e-5, atol=1e-6)


def test_losses_in_blocks(rows):
    arrays = made()
    found = loss.token_losses_from_hidden(*arrays, "float32", UNCONSTRAINED)
    np.testing.assert_allclose(found, in_float64(*arrays)[0], rtol=1e-5, atol=1e-6)


def test_the_mean_and_its_gradients(rows):
    arrays = made()
    losses, dhidden, dhead = in_float64(*arrays)
    mean, grads = mean_and_gradients(UNCONSTRAINED, *arrays)
    assert float(mean) == pytest.approx(losses.mean(), rel=1e-6)
    assert float(loss.mean_loss_from_hidden(*arrays, "float32", UNCONSTRAINED)) == pytest.approx(
        float(mean)
    )
    np.testing.assert_allclose(grads[0], dhidden, rtol=0, atol=1e-7)
    np.testing.assert_allclose(grads[1], dhead, rtol=0, atol=1e-6)


def test_a_factor_goes_through():
    """As where a loss is one term of a sum."""
    hidden, head, targets = made()
    twice = jax.grad(
        lambda x: 2 * loss.mean_loss_from_hidden(x, head, targets, "float32", UNCONSTRAINED)
    )(hidden)
    np.testing.assert_allclose(twice, 2 * in_float64(hidden, head, targets)[1], rtol=0, atol=2e-7)


@pytest.mark.parametrize("axes", [{}, {"fsdp": 2}, {"fsdp": 2, "tensor": 2}])
def test_rows_stay_on_their_devices(axes, rows):
    """Each of the shards has its own blocks; the gradient of the head is summed at the end."""
    mesh = small_run.mesh(4, **axes)
    hidden, head, targets = made()
    head = np.concatenate([head, head[:, :1]], axis=1)  # an even number, to split
    put = functools.partial(sharding.put_batch, mesh, batch_size=B)
    mean, grads = mean_and_gradients(ShardingConstraint(mesh), put(hidden), head, put(targets))
    one, wanted = mean_and_gradients(UNCONSTRAINED, hidden, head, targets)
    assert float(mean) == pytest.approx(float(one), rel=1e-6)
    for found, expected in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_operands_of_16_bits():
    """Rounded to 8 bits before each product, and the result still float32."""
    arrays = made()
    grad = jax.grad(lambda x: loss.mean_loss_from_hidden(x, *arrays[1:], "bfloat16", UNCONSTRAINED))
    found, wanted = np.asarray(grad(arrays[0])), in_float64(*arrays)[1]
    assert found.dtype == np.float32
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-4 < error < 3e-2


@pytest.mark.parametrize(
    ("rows", "length", "vocabulary", "platform", "expected"),
    [
        (32, 128, 1024, "cpu", 8),  # 2^20 logits
        (16, 1024, 32_128, "gpu", 8),  # at most 2^28
        (16, 1024, 32_128, "tpu", 8),
        (12, 1024, 32_128, "gpu", 6),  # a divisor of the rows
        (3, 8192, 100_352, "gpu", 1),  # one row at least
    ],
)
def test_how_many_rows_at_once(rows, length, vocabulary, platform, expected):
    assert loss.rows_per_block(rows, length, vocabulary, platform) == expected
