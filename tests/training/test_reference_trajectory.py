"""Thirty updates: against PyTorch and AI2's code (fixture of tests/oracles)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from paths import FIXTURES
from reference_decoders import OLMO, from_olmo, oracle

from anytime_jax import averaging
from anytime_jax.training import step

SHAPE = {
    name: getattr(OLMO, name)
    for name in ("layers", "heads", "width", "mlp_width", "length", "vocab_size", "embedding_rows")
}


START = oracle("olmo")[1]


@pytest.fixture(scope="module", name="oracle")
def oracle_fixture():
    return dict(np.load(FIXTURES / "olmo_training.npz"))


MICROBATCHES = [1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=MICROBATCHES, ids="microbatches={}".format)
def ours(request, oracle):
    """Metrics by name, and the last state, of the same run here."""
    config = small_run.config(
        "unused",
        **{f"model__{name}": value for name, value in SHAPE.items()},
        batch_size=4,
        microbatches=request.param,
        schedule__warmup="5 steps",
        schedule__alpha=7.0,
        optimizer__b2=0.95,
    )
    program = small_run.program(config, small_run.mesh())
    first = program.init()
    # Copies, since the train step donates its state.
    params, *copies = (jax.tree.map(jnp.array, START) for _ in ("last", *small_run.AVERAGES))
    copies = dict(zip(small_run.AVERAGES, copies, strict=True))
    opt_state = averaging.replace_averages(first.opt_state, copies)
    state = first._replace(params=params, opt_state=opt_state)
    rows = []
    for count, tokens in enumerate(oracle["tokens"]):
        rates = step.rates_at(config, count)
        state, metrics = program.train_step(state, jnp.asarray(tokens), rates)
        rows.append(jax.device_get(metrics))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}, state


def test_losses(ours, oracle):
    np.testing.assert_allclose(ours[0]["loss"], oracle["losses"], rtol=0, atol=1e-5)


def test_gradient_norms(ours, oracle):
    # Rounding grows along the trajectory: to 1.5e-4 after 26 updates on one kind of CPU.
    np.testing.assert_allclose(ours[0]["grad_norm"], oracle["gradient_norms"], rtol=5e-4)
    clipped = oracle["gradient_norms"] > 1
    np.testing.assert_array_equal(ours[0]["clipped"], clipped)
    assert 0 < clipped.sum() < len(clipped)  # both sides of the clip


def test_learning_rates(ours, oracle):
    np.testing.assert_allclose(ours[0]["lr"], oracle["learning_rates"], rtol=1e-6)


@pytest.mark.parametrize("label", ["last", "f6.25", "f25"])
def test_weights_and_averages(ours, oracle, label):
    state = ours[1]
    actual = state.params if label == "last" else averaging.averages(state.opt_state)[label]
    prefix = "final" if label == "last" else f"average/{label.removeprefix('f')}"
    expected = small_run.leaves(from_olmo(oracle, prefix))
    actual = small_run.leaves(actual)
    assert actual.keys() == expected.keys()
    for name, leaf in actual.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=0, atol=5e-5, err_msg=name)


def test_padding_rows_of_embedding_never_change(ours):
    state = ours[1]
    padding = slice(OLMO.vocab_size, OLMO.embedding_rows)
    trees = {"last": state.params, **averaging.averages(state.opt_state)}
    for label, tree in trees.items():
        np.testing.assert_array_equal(
            tree["embedding"][padding], START["embedding"][padding], err_msg=label
        )
    assert int(state.step) == 30
