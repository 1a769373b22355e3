"""One update against NumPy and plain `jax.grad`, on every layout, donated, compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run

from anytime_jax import averaging
from anytime_jax.config.schema import Config
from anytime_jax.models import decoder

STEPS = 5
TOKENS = np.random.RandomState(0).randint(
    0, small_run.VOCABULARY, (STEPS, small_run.BATCH, small_run.LENGTH + 1), np.int32
)


def run(config: Config, mesh: jax.sharding.Mesh, steps: int = STEPS):
    """States after every update, the first included, and the metrics of each."""
    program = small_run.program(config, mesh)
    state = program.init()
    states, metrics = [small_run.leaves(state)], []
    for tokens in TOKENS[:steps]:
        state, given = program.train_step(state, jnp.asarray(tokens))
        states.append(small_run.leaves(state))
        metrics.append({name: float(value) for name, value in given.items()})
    return states, metrics, state, program


def params_of(leaves):
    return {k: v for k, v in leaves.items() if k.startswith(".params")}


def norm(leaves):
    return np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in leaves.values()))


def plain_loss(config: Config, params, tokens):
    """The mean cross-entropy, written out."""
    logits = decoder.apply(config.model, params, tokens[:, :-1])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    right = jnp.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jnp.log(jnp.exp(shifted).sum(axis=-1)) - right).mean()


@pytest.fixture(scope="module")
def config():
    return small_run.config("unused")


@pytest.fixture(scope="module")
def ran(config):
    return run(config, small_run.mesh())


def test_metrics_are_those_of_numpy_and_of_plain_grad(config, ran):
    states, metrics, _, program = ran
    value_and_grad = jax.jit(
        lambda params, tokens: jax.value_and_grad(lambda p: plain_loss(config, p, tokens))(params)
    )
    structure = jax.tree.structure(program.abstract_state.params)
    for count, (before, after, got) in enumerate(zip(states, states[1:], metrics, strict=False)):
        params = jax.tree.unflatten(structure, list(params_of(before).values()))
        loss, grads = value_and_grad(params, TOKENS[count])
        grad_norm = norm(small_run.leaves(grads))
        moved = {k: after[k].astype(np.float64) - before[k] for k in params_of(before)}
        rate = 0.1 + 0.9 * count / 3 if count < 3 else np.sqrt(7 / (count - 3 + 7))
        assert got["loss"] == pytest.approx(float(loss), rel=1e-6)
        assert got["grad_norm"] == pytest.approx(grad_norm, rel=1e-5)
        assert got["clipped"] == float(grad_norm > config.optimizer.clip_norm)
        assert got["lr"] == pytest.approx(1e-2 * rate, rel=1e-6)
        assert got["update_norm"] == pytest.approx(norm(moved), rel=1e-4)
    assert {"loss", "lr", "grad_norm", "clipped", "update_norm"} < metrics[0].keys()


@pytest.mark.slow
def test_a_gradient_within_the_norm_is_not_clipped():
    config = small_run.config("unused", optimizer__clip_norm=50.0)
    _, metrics, state, _ = run(config, small_run.mesh(), steps=1)
    moments = [x for k, x in small_run.leaves(state).items() if ".mu" in k]
    mu_norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in moments))
    assert metrics[0]["clipped"] == 0
    assert 0.1 * metrics[0]["grad_norm"] == pytest.approx(mu_norm, rel=1e-5)
    assert metrics[0]["grad_norm"] > 1.5  # so that a clip at 1 would have shown


def test_every_count_is_the_step(ran):
    states, *_ = ran
    for done, leaves in enumerate(states):
        whole = {k: int(x) for k, x in leaves.items() if np.issubdtype(x.dtype, np.integer)}
        counts = {k: x for k, x in whole.items() if k.endswith((".step", ".count", ".taken"))}
        # The step, Adam, the schedule, the averages, and the losses that the guard has seen.
        assert len(counts) == 5, counts
        assert set(whole.values()) - set(counts.values()) <= {0}  # what went wrong: nothing
        assert set(counts.values()) == {done}


def test_averages_follow_the_weights(ran):
    states, *_ = ran
    for label, rule in averaging.label_rules(small_run.RULES).items():
        for name in (".params['head']", ".params['blocks']['q_norm']['scale']"):
            weights = rule.kernel(STEPS)
            wanted = sum(
                w * s[name].astype(np.float64) for w, s in zip(weights, states, strict=True)
            )
            found = [
                x
                for k, x in states[-1].items()
                if f"averages['{label}']{name.removeprefix('.params')}" in k
            ]
            assert len(found) == 1
            np.testing.assert_allclose(found[0], wanted, rtol=0, atol=2e-7)


def test_a_second_update_compiles_nothing_and_buffers_are_reused(config, compilations):
    program = small_run.program(config, small_run.mesh())
    state, _ = program.train_step(program.init(), jnp.asarray(TOKENS[0]))
    tokens = [jnp.asarray(tokens) for tokens in TOKENS]
    with compilations() as count:
        for batch in tokens:
            old = jax.tree.leaves(state)
            state, _ = program.train_step(state, batch)
            assert all(leaf.is_deleted() for leaf in old)
    assert count() == 0


def test_abstract_state_is_the_state(ran):
    *_, state, program = ran
    for leaf, abstract in zip(
        jax.tree.leaves(state), jax.tree.leaves(program.abstract_state), strict=True
    ):
        assert (leaf.shape, leaf.dtype) == (abstract.shape, abstract.dtype)
        assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)


@pytest.mark.slow
def test_microbatches_give_the_loss_and_gradient_of_the_batch():
    """Two parts are held against the oracle in test_trajectory.py."""
    whole, parts = (
        run(
            small_run.config("unused", microbatches=n, optimizer__clip_norm=50.0),
            small_run.mesh(),
            steps=1,
        )
        for n in (1, 4)
    )
    assert parts[1][0]["loss"] == pytest.approx(whole[1][0]["loss"], rel=3e-7)
    # Nothing is clipped, so the first moment is a tenth of the gradient.
    wanted, found = (
        {k: x for k, x in states[1].items() if ".mu" in k} for states, *_ in (whole, parts)
    )
    difference = {k: found[k].astype(np.float64) - wanted[k] for k in wanted}
    assert norm(difference) < 2e-6 * norm(wanted)


@pytest.mark.parametrize(
    ("axes", "microbatches"),
    [
        pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, 2, marks=pytest.mark.slow),
        pytest.param({"fsdp": 8}, 1, marks=pytest.mark.slow),
        pytest.param({"data": 8}, 1, marks=pytest.mark.slow),
        pytest.param({"fsdp": 2, "tensor": 4}, 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_layout_of_eight_devices_trains_alike(ran, axes, microbatches, compilations):
    alone, metrics, *_ = ran
    config = small_run.config("unused", microbatches=microbatches)
    states, others, state, program = run(config, small_run.mesh(8, **axes))
    with compilations() as count:
        state, _ = program.train_step(state, jnp.asarray(TOKENS[0]))
    assert count() == 0
    for name, leaf in states[0].items():  # the initial weights are the same bits
        np.testing.assert_array_equal(leaf, alone[0][name], err_msg=name)
    losses, wanted = ([row["loss"] for row in rows] for rows in (others, metrics))
    # Sums in another order move a loss of 6 by some 1e-6.
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        [row["grad_norm"] for row in others], [row["grad_norm"] for row in metrics], rtol=1e-4
    )
    # Moments and averages are split as the parameters are.
    split = state.params["blocks"]["qkv"].sharding
    alike = [
        leaf.sharding.is_equivalent_to(split, leaf.ndim)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "'qkv'" in jax.tree_util.keystr(path)
    ]
    assert alike == [True] * 4  # two moments, two averages
    assert split.is_fully_replicated == (axes == {"data": 8})


def test_another_seed_gives_other_weights(ran):
    states, *_ = ran
    config = small_run.config("unused", seed=1)
    head = small_run.leaves(small_run.program(config, small_run.mesh()).init().params)["['head']"]
    assert not np.array_equal(head, states[0][".params['head']"])


@pytest.mark.slow
def test_the_first_state_has_the_bits_of_full_optimisation(config, monkeypatch):
    """On a CPU, what runs once is compiled with less of it, unless XLA_FLAGS says something."""
    monkeypatch.delenv("XLA_FLAGS")
    init = small_run.program(config, small_run.mesh()).init
    soon = small_run.leaves(init())
    chosen = {"xla_backend_optimization_level": 3}
    for name, leaf in small_run.leaves(init.lower().compile(compiler_options=chosen)()).items():
        np.testing.assert_array_equal(leaf, soon[name], err_msg=name)
