"""Token cross-entropy, in blocks and from logits, against float64."""

import functools

import jax
import numpy as np
import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint
from anytime_jax.models import loss

B, L, D, V = 8, 6, 5, 11


def random_arrays():
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(B, L, D)), 3 * rng.normal(size=(D, V))
    return hidden.astype(np.float32), head.astype(np.float32), rng.integers(0, V, (B, L))


def reference(hidden, head, targets, z_loss=0.0):
    """Token losses and the gradients of their mean with a z-loss, by the textbook."""
    hidden, head = hidden.astype(np.float64), head.astype(np.float64)
    p = np.exp(hidden @ head)
    log_sum = np.log(p.sum(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    losses = -np.log(np.take_along_axis(p, targets[..., None], axis=-1)[..., 0])
    grad = (p - np.eye(V)[targets] + z_loss * 2 * log_sum * p) / targets.size
    return losses, grad @ head.T, np.einsum("bld,blv->dv", hidden, grad)


@pytest.fixture(name="rows", params=[1, 8])
def rows_fixture(request, monkeypatch):
    """Rows in a block of logits."""
    monkeypatch.setattr(loss, "_LOGITS", {"cpu": request.param * L * V})
    return request.param


def twice_mean_and_gradients(constrain, *arrays):
    def twice_mean(hidden, head, targets):
        return 2 * loss.mean_loss_from_hidden(hidden, head, targets, "float32", constrain)

    return jax.jit(jax.value_and_grad(twice_mean, argnums=(0, 1)))(*arrays)


def test_token_losses_and_hits_from_hidden(rows):
    hidden, head, targets = random_arrays()
    likeliest = (hidden @ head).argmax(axis=-1)
    targets[::2] = likeliest[::2]
    losses, is_hit = loss.token_losses_from_hidden(
        hidden, head, targets, "float32", UNCONSTRAINED, loss.token_losses_and_hits
    )
    expected = reference(hidden, head, targets)[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(is_hit, likeliest == targets)
    assert not is_hit.all()


def test_mean_loss_from_hidden_and_gradients(rows):
    arrays = random_arrays()
    losses, dhidden, dhead = reference(*arrays)
    twice_mean, grads = twice_mean_and_gradients(UNCONSTRAINED, *arrays)
    assert float(twice_mean) == pytest.approx(2 * losses.mean(), rel=1e-6)
    mean = loss.mean_loss_from_hidden(*arrays, "float32", UNCONSTRAINED)  # without a gradient
    assert float(mean) == pytest.approx(losses.mean(), rel=1e-6)
    np.testing.assert_allclose(grads[0], 2 * dhidden, rtol=0, atol=2e-7)
    np.testing.assert_allclose(grads[1], 2 * dhead, rtol=0, atol=2e-6)


def test_z_loss_is_in_the_gradient_alone(rows):
    arrays, z_loss = random_arrays(), 0.3
    losses, dhidden, dhead = reference(*arrays, z_loss)
    assert np.abs(dhead - reference(*arrays)[2]).max() > 0.1

    def mean(hidden, head, targets):
        constrain = UNCONSTRAINED
        return loss.mean_loss_from_hidden(hidden, head, targets, "float32", constrain, z_loss)

    value, grads = jax.value_and_grad(mean, argnums=(0, 1))(*arrays)
    assert float(value) == pytest.approx(losses.mean(), rel=1e-6)
    np.testing.assert_allclose(grads[0], dhidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[1], dhead, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [{}, {"fsdp": 2, "tensor": 2}])
def test_sharded_loss_matches_single_device(axes, rows):
    """Each shard has its own blocks; the gradient of the head is summed at the end."""
    mesh = small_run.mesh(4, **axes)
    hidden, head, targets = random_arrays()
    head = np.concatenate([head, head[:, :1]], axis=1)  # an even number, to split
    put = functools.partial(sharding.put_batch, mesh, batch_size=B)
    constrain = ShardingConstraint(mesh)
    loss_and_grads = twice_mean_and_gradients(constrain, put(hidden), head, put(targets))
    expected = twice_mean_and_gradients(UNCONSTRAINED, hidden, head, targets)
    assert float(loss_and_grads[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    for grad, single in zip(loss_and_grads[1], expected[1], strict=True):
        np.testing.assert_allclose(grad, single, rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    ("rows", "length", "vocabulary", "platform", "expected"),
    [
        (32, 128, 1024, "cpu", 8),  # 2^20 logits
        (12, 1024, 32_128, "gpu", 6),  # a divisor of the rows
        (3, 8192, 100_352, "gpu", 1),  # one row at least
    ],
)
def test_rows_per_block(rows, length, vocabulary, platform, expected):
    assert loss.rows_per_block(rows, length, vocabulary, platform) == expected
