"""Training step: against NumPy and plain `jax.grad`.

Donation and compilations: test_update_costs.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax.models import decoder
from anytime_jax.training import step
from anytime_jax.training.objective import Objective

TOKENS = np.random.RandomState(0).randint(
    0, small_run.VOCABULARY, (5, small_run.BATCH, small_run.LENGTH + 1), np.int32
)
CONFIG = small_run.config("unused")
loss_and_gradient = jax.jit(Objective(CONFIG.model).loss_and_gradient, static_argnums=(2, 3))


def norm(leaves):
    return np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in leaves))


def plain_loss(params, tokens):
    """The mean cross-entropy, written out."""
    logits = decoder.apply(CONFIG.model, params, tokens[:, :-1])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = jnp.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jnp.log(jnp.exp(shifted).sum(axis=-1)) - target).mean()


def test_metrics_match_numpy_and_plain_grad():
    program = small_run.program(CONFIG, small_run.mesh())
    value_and_grad = jax.jit(jax.value_and_grad(plain_loss))
    state = program.init()
    for count, tokens in enumerate(TOKENS):
        old = jax.device_get(state.params)
        loss, grads = value_and_grad(old, tokens)
        state, row = program.train_step(state, jnp.asarray(tokens), step.rates_at(CONFIG, count))
        new, grad_norm = jax.device_get(state.params), norm(jax.tree.leaves(grads))
        rate = 0.1 + 0.9 * count / 3 if count < 3 else np.sqrt(7 / (count - 3 + 7))
        moves = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), new, old)
        assert row["loss"] == pytest.approx(float(loss), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(grad_norm, rel=1e-5)
        assert row["clipped"] == float(grad_norm > CONFIG.clip_norm)
        assert row["lr"] == pytest.approx(1e-2 * rate, rel=1e-6)
        assert row["update_norm"] == pytest.approx(norm(jax.tree.leaves(moves)), rel=1e-4)


def test_gradient_of_a_whole_batch_is_not_rounded():
    params = small_run.program(CONFIG, small_run.mesh()).init().params
    arguments = params, jnp.asarray(TOKENS[0]), 1
    _, expected = loss_and_gradient(*arguments)
    _, grads = loss_and_gradient(*arguments, "bfloat16")
    jax.tree.map(np.testing.assert_array_equal, grads, expected)


def test_gradients_of_microbatches_are_summed_in_the_named_type():
    """The rounded sums by hand, of gradients that are not rounded."""
    params = small_run.program(CONFIG, small_run.mesh()).init().params
    rows = TOKENS[0]
    gradient = jax.jit(jax.grad(plain_loss))
    parts = [gradient(params, rows[i::4]) for i in range(4)]
    for dtype in ("float32", "bfloat16"):
        _, grads = loss_and_gradient(params, jnp.asarray(rows), 4, dtype)
        for name, leaf in small_run.leaves(grads).items():
            total = np.zeros(leaf.shape, dtype)
            for part in parts:
                total = (total + small_run.leaves(part)[name]).astype(dtype)
            expected = total.astype(np.float32) / 4
            assert leaf.dtype == np.float32
            is_exact = np.array_equal(leaf, leaf.astype(jnp.bfloat16).astype(np.float32))
            assert is_exact == (dtype == "bfloat16")
            assert norm([leaf - expected]) < 1e-3 * norm([expected])


def test_seed_changes_initial_weights():
    mesh = small_run.mesh()
    one, other = (
        small_run.program(small_run.config("unused", seed=seed), mesh).init() for seed in (0, 1)
    )
    assert not np.array_equal(one.params["head"], other.params["head"])


@pytest.mark.slow
def test_init_compiled_fast_has_bits_of_default_optimization(monkeypatch):
    """Level 1 against 3. Programs of other tests cannot serve: they are compiled at level 0."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    init = step.make_program(CONFIG, small_run.mesh()).init
    options = {"xla_backend_optimization_level": 3}
    assert small_run.same_bits(init(), init.lower().compile(options)())


def test_relative_time_of_updates():
    """Of a warmup of 3 updates, and then of a batch that doubles at 1x, time 10."""
    grown = {"batch_growth": (("1x", 16),), "microbatches": 2}
    config = small_run.config("unused", **grown)
    found = [step.rates_at(config, count) for count in range(12)]
    times = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14]
    expected = [0, 0, 0, *(1 / t for t in times[3:10]), 2 / 12, 2 / 14]
    np.testing.assert_allclose([x.relative_time for x in found], expected, rtol=1e-6)
    assert [x.learning_rate for x in found] == [np.float32(config.rate_at(i)) for i in range(12)]
    decay = {"decay__horizon": "1x", "decay__floor": 0.0, "stop": "horizon"}
    decaying = small_run.config("unused", **decay)
    share = step.rates_at(decaying, 9).relative_time
    assert share == pytest.approx(1 / 10)  # the decay begins here, at 90%
    branch = small_run.config("unused", branch__from_run="trunk", branch__at="6 steps", **decay)
    assert step.rates_at(branch, 8).relative_time == pytest.approx(0.5 / 9)


def test_relative_updates():
    config = small_run.config("unused", log__relative_updates=True)
    program = small_run.program(config, small_run.mesh())
    state, expected = program.init(), []
    before = jax.device_get(state.params)
    state, metrics = program.train_step(state, jnp.asarray(TOKENS[0]), step.rates_at(config, 0))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state.params), strict=True):
        old, new = (np.asarray(x, np.float64) for x in (old, new))
        expected.append(np.linalg.norm(new - old) / np.linalg.norm(old))
    np.testing.assert_allclose(metrics[step.RELATIVE_UPDATES], expected, rtol=1e-4)
