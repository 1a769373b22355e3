"""Training step: against NumPy and plain `jax.grad`, on every layout, donated, compiled once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax import averaging
from anytime_jax.config.schema import Config
from anytime_jax.models import decoder
from anytime_jax.training import step

STEPS = 5
TOKENS = np.random.RandomState(0).randint(
    0, small_run.VOCABULARY, (STEPS, small_run.BATCH, small_run.LENGTH + 1), np.int32
)


def train(config: Config, mesh: jax.sharding.Mesh, steps: int = STEPS):
    """States before and after every update, the metrics of each, and the last state on device."""
    program = small_run.program(config, mesh)
    state = program.init()
    states, metrics = [small_run.leaves(state)], []
    for tokens in TOKENS[:steps]:
        state, row = program.train_step(state, jnp.asarray(tokens))
        states.append(small_run.leaves(state))
        metrics.append({name: float(value) for name, value in row.items()})
    return states, metrics, state


def select(leaves, part):
    return {path: leaf for path, leaf in leaves.items() if part in path}


def norm(leaves):
    return np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in leaves.values()))


def plain_loss(config: Config, params, tokens):
    """The mean cross-entropy, written out."""
    logits = decoder.apply(config.model, params, tokens[:, :-1])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = jnp.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jnp.log(jnp.exp(shifted).sum(axis=-1)) - target).mean()


@pytest.fixture(scope="module")
def config():
    return small_run.config("unused")


@pytest.fixture(scope="module")
def program(config):
    return small_run.program(config, small_run.mesh())


@pytest.fixture(scope="module")
def trained(config):
    return train(config, small_run.mesh())


def test_metrics_match_numpy_and_plain_grad(config, program, trained):
    states, metrics, _ = trained
    value_and_grad = jax.jit(jax.value_and_grad(functools.partial(plain_loss, config)))
    structure = jax.tree.structure(program.abstract_state.params)
    for count, (before, after, row) in enumerate(zip(states, states[1:], metrics, strict=False)):
        old, new = (select(leaves, ".params") for leaves in (before, after))
        params = jax.tree.unflatten(structure, list(old.values()))
        loss, grads = value_and_grad(params, TOKENS[count])
        grad_norm = norm(small_run.leaves(grads))
        rate = 0.1 + 0.9 * count / 3 if count < 3 else np.sqrt(7 / (count - 3 + 7))
        assert row["loss"] == pytest.approx(float(loss), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(grad_norm, rel=1e-5)
        assert row["clipped"] == float(grad_norm > config.optimizer.clip_norm)
        assert row["lr"] == pytest.approx(1e-2 * rate, rel=1e-6)
        difference = {path: new[path].astype(np.float64) - old[path] for path in old}
        assert row["update_norm"] == pytest.approx(norm(difference), rel=1e-4)


@pytest.mark.slow
def test_gradient_below_clip_norm_is_not_clipped():
    config = small_run.config("unused", optimizer__clip_norm=50.0)
    states, metrics, _ = train(config, small_run.mesh(), steps=1)
    assert metrics[0]["clipped"] == 0
    assert 0.1 * metrics[0]["grad_norm"] == pytest.approx(norm(select(states[1], ".mu")), rel=1e-5)
    assert metrics[0]["grad_norm"] > 1.5  # a clip at 1 would have shown


def test_every_count_equals_step(trained):
    for done, leaves in enumerate(trained[0]):
        integers = {k: int(x) for k, x in leaves.items() if np.issubdtype(x.dtype, np.integer)}
        names = (".step", ".count", ".loss_count")
        counts = {k: x for k, x in integers.items() if k.endswith(names)}
        # The step, Adam, the schedule, the averages, and the losses seen by the guard.
        assert len(counts) == 5, counts
        assert set(counts.values()) == {done}
        assert all(not integers[k] for k in integers.keys() - counts.keys())  # no bad update


def test_averages_follow_their_kernels(trained):
    states = trained[0]
    for label, rule in averaging.label_rules(small_run.RULES).items():
        for name in ("['head']", "['blocks']['q_norm']['scale']"):
            weights = zip(rule.kernel(STEPS), states, strict=True)
            expected = sum(w * s[f".params{name}"].astype(np.float64) for w, s in weights)
            (average,) = select(states[-1], f"averages['{label}']{name}").values()
            np.testing.assert_allclose(average, expected, rtol=0, atol=2e-7)


def test_second_update_compiles_nothing_and_donates(program, compilations):
    state, _ = program.train_step(program.init(), jnp.asarray(TOKENS[0]))
    batches = [jnp.asarray(tokens) for tokens in TOKENS]
    with compilations() as count:
        for batch in batches:
            old = jax.tree.leaves(state)
            state, _ = program.train_step(state, batch)
            assert all(leaf.is_deleted() for leaf in old)
    assert count() == 0


def test_abstract_state_matches_state(program, trained):
    pairs = zip(*map(jax.tree.leaves, (trained[2], program.abstract_state)), strict=True)
    for leaf, abstract in pairs:
        assert (leaf.shape, leaf.dtype) == (abstract.shape, abstract.dtype)
        assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)


@pytest.mark.slow
def test_microbatches_give_loss_and_gradient_of_batch():
    """Two microbatches are compared with another library in test_reference_trajectory.py."""
    whole, parts = (
        train(
            small_run.config("unused", microbatches=n, optimizer__clip_norm=50.0),
            small_run.mesh(),
            steps=1,
        )
        for n in (1, 4)
    )
    assert parts[1][0]["loss"] == pytest.approx(whole[1][0]["loss"], rel=3e-7)
    # Nothing is clipped, so the first moment is a tenth of the gradient.
    expected, actual = (select(result[0][1], ".mu") for result in (whole, parts))
    difference = {k: actual[k].astype(np.float64) - expected[k] for k in expected}
    assert norm(difference) < 2e-6 * norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "microbatches"),
    [
        ({"data": 2, "fsdp": 2, "tensor": 2}, 2),
        ({"fsdp": 8}, 1),
        ({"data": 8}, 1),
        ({"fsdp": 2, "tensor": 4}, 1),
    ],
    ids=str,
)
def test_layouts_of_eight_devices_train_alike(trained, axes, microbatches, compilations):
    single_states, single_metrics, _ = trained
    config, mesh = small_run.config("unused", microbatches=microbatches), small_run.mesh(8, **axes)
    states, metrics, state = train(config, mesh)
    with compilations() as count:
        state, _ = small_run.program(config, mesh).train_step(state, jnp.asarray(TOKENS[0]))
    assert count() == 0
    for name, leaf in states[0].items():  # initial weights are bitwise the same
        np.testing.assert_array_equal(leaf, single_states[0][name], err_msg=name)
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
    assert split.is_fully_replicated == (axes == {"data": 8})


def test_seed_changes_initial_weights(trained):
    program = small_run.program(small_run.config("unused", seed=1), small_run.mesh())
    assert not np.array_equal(program.init().params["head"], trained[0][0][".params['head']"])


@pytest.mark.slow
def test_init_compiled_fast_has_bits_of_default_optimization(config, monkeypatch):
    """Level 1 against 3. Programs of other tests cannot serve: they are compiled at level 0."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    init = step.make_program(config, small_run.mesh()).init
    fast = small_run.leaves(init())
    options = {"xla_backend_optimization_level": 3}
    for name, leaf in small_run.leaves(init.lower().compile(options)()).items():
        np.testing.assert_array_equal(leaf, fast[name], err_msg=name)
