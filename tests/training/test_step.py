"""Training step: against NumPy and plain `jax.grad`, on every layout.

Donation and compilations: test_update_costs.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.training import step

STEPS = 5
TOKENS = np.random.RandomState(0).randint(
    0, small_run.VOCABULARY, (STEPS, small_run.BATCH, small_run.LENGTH + 1), np.int32
)
CONFIG = small_run.config("unused")
loss_and_gradient = jax.jit(step.loss_and_gradient, static_argnums=(0, 1, 4, 5))


def train(config=CONFIG, mesh=None, steps=STEPS):
    """States before and after every update, the metrics of each, and the last state on device."""
    program = small_run.program(config, mesh or small_run.mesh())
    state = program.init()
    states, metrics = [small_run.leaves(state)], []
    for count, tokens in enumerate(TOKENS[:steps]):
        rates = step.rates_at(config, count)
        state, row = program.train_step(state, jnp.asarray(tokens), rates)
        states.append(small_run.leaves(state))
        metrics.append({name: float(value) for name, value in row.items()})
    return states, metrics, state


def select(leaves, part):
    return {path: np.float64(leaf) for path, leaf in leaves.items() if part in path}


def norm(leaves):
    return np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in leaves.values()))


def norm_of_difference(one, other):
    return norm({path: one[path] - other[path] for path in one})


def plain_loss(params, tokens):
    """The mean cross-entropy, written out."""
    logits = decoder.apply(CONFIG.model, params, tokens[:, :-1])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = jnp.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jnp.log(jnp.exp(shifted).sum(axis=-1)) - target).mean()


@pytest.fixture(scope="module")
def trained():
    return train()


def test_metrics_match_numpy_and_plain_grad(trained):
    states, metrics, last = trained
    value_and_grad = jax.jit(jax.value_and_grad(plain_loss))
    structure = jax.tree.structure(last.params)
    for count, row in enumerate(metrics):
        old, new = (select(leaves, ".params") for leaves in states[count : count + 2])
        params = jax.tree.unflatten(structure, map(np.float32, old.values()))
        loss, grads = value_and_grad(params, TOKENS[count])
        grad_norm = norm(small_run.leaves(grads))
        rate = 0.1 + 0.9 * count / 3 if count < 3 else np.sqrt(7 / (count - 3 + 7))
        assert row["loss"] == pytest.approx(float(loss), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(grad_norm, rel=1e-5)
        assert row["clipped"] == float(grad_norm > CONFIG.clip_norm)
        assert row["lr"] == pytest.approx(1e-2 * rate, rel=1e-6)
        assert row["update_norm"] == pytest.approx(norm_of_difference(new, old), rel=1e-4)


@pytest.mark.slow
def test_microbatches_give_unclipped_loss_and_gradient_of_batch():
    """Two microbatches are compared with another library in test_reference_trajectory.py."""
    whole, parts = (
        train(small_run.config("unused", microbatches=n, clip_norm=50.0), steps=1) for n in (1, 4)
    )
    assert parts[1][0]["loss"] == pytest.approx(whole[1][0]["loss"], rel=3e-7)
    # Nothing is clipped, so the first moment is a tenth of the gradient.
    expected, actual = (select(result[0][1], ".mu") for result in (whole, parts))
    assert norm_of_difference(actual, expected) < 2e-6 * norm(expected)
    assert whole[1][0]["clipped"] == 0
    assert 0.1 * whole[1][0]["grad_norm"] == pytest.approx(norm(expected), rel=1e-5)
    assert whole[1][0]["grad_norm"] > 1.5  # a clip at 1 would have shown


def test_gradient_of_a_whole_batch_is_not_rounded():
    params = small_run.program(CONFIG, small_run.mesh()).init().params
    arguments = CONFIG.model, sharding.UNCONSTRAINED, params, jnp.asarray(TOKENS[0]), 1
    _, expected = loss_and_gradient(*arguments)
    _, grads = loss_and_gradient(*arguments, "bfloat16")
    jax.tree.map(np.testing.assert_array_equal, grads, expected)


def test_gradients_of_microbatches_are_summed_in_the_named_type():
    """The rounded sums by hand, of gradients that are not rounded."""
    config, params = CONFIG.model, small_run.program(CONFIG, small_run.mesh()).init().params
    rows = TOKENS[0]
    gradient = jax.jit(jax.grad(plain_loss))
    parts = [gradient(params, rows[i::4]) for i in range(4)]
    for dtype in ("float32", "bfloat16"):
        arguments = config, sharding.UNCONSTRAINED, params, jnp.asarray(rows), 4, dtype
        _, grads = loss_and_gradient(*arguments)
        for name, leaf in small_run.leaves(grads).items():
            total = np.zeros(leaf.shape, dtype)
            for part in parts:
                total = (total + small_run.leaves(part)[name]).astype(dtype)
            expected = total.astype(np.float32) / 4
            assert leaf.dtype == np.float32
            is_exact = np.array_equal(leaf, leaf.astype(jnp.bfloat16).astype(np.float32))
            assert is_exact == (dtype == "bfloat16")
            assert norm({0: leaf - expected}) < 1e-3 * norm({0: expected})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "microbatches"),
    [({"data": 2, "fsdp": 2, "tensor": 2}, 2), ({"data": 8}, 1)],
    ids=str,
)
def test_layouts_of_eight_devices_train_alike(trained, axes, microbatches, compilations):
    single_states, single_metrics, _ = trained
    config, mesh = small_run.config("unused", microbatches=microbatches), small_run.mesh(8, **axes)
    states, metrics, state = train(config, mesh)
    with compilations() as count:
        train_step = small_run.program(config, mesh).train_step
        state, _ = train_step(state, jnp.asarray(TOKENS[0]), step.rates_at(config, 0))
    assert count() == 0
    assert small_run.same_bits(states[0], single_states[0])  # the initial weights
    # Sums in another order change a loss of 6 by some 1e-6.
    for name, tolerance in (("loss", {"atol": 1e-5, "rtol": 0}), ("grad_norm", {"rtol": 1e-4})):
        values, expected = ([row[name] for row in rows] for rows in (metrics, single_metrics))
        np.testing.assert_allclose(values, expected, **tolerance)
    # Moments and averages are split as the parameters are.
    split = state.params["blocks"]["qkv"].sharding
    equivalent = [
        leaf.sharding.is_equivalent_to(split, leaf.ndim)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "'qkv'" in jax.tree_util.keystr(path)
    ]
    assert equivalent == [True] * 4  # two moments, two averages
    assert not split.is_fully_replicated


def test_seed_changes_initial_weights(trained):
    program = small_run.program(small_run.config("unused", seed=1), small_run.mesh())
    assert not np.array_equal(program.init().params["head"], trained[0][0][".params['head']"])


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
