"""Read-outs: found anywhere in a state by their methods, also in abstract ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noisy_quadratic import start

from anytime_jax import averaging
from anytime_jax.lab.optimizers import GPA, EMANesterov
from anytime_jax.optimizers import AdamW, Pace, RunInfo, ScheduleFreeAdamW, iterates, readouts

RUN = RunInfo(optax.constant_schedule(0.1))


class MeanState(NamedTuple):
    """A state with read-outs that the package does not know."""

    mean: optax.Params

    def iterates(self):
        return {"mean": self.mean}

    def readouts(self):
        return {"mean": {"mean": jnp.ones(())}, "half": {"last": 0.5, "mean": 0.5}}


def mean_of_iterates():
    def update(updates, state, params):
        return updates, MeanState(optax.tree.add(params, updates))

    return optax.GradientTransformation(MeanState, update)


OPTIMIZERS = {
    "gpa": (GPA(interpolation=0.8).transform(RUN), {"x": {"last": 1.25, "z": -0.25}}),
    "schedule_free": (
        ScheduleFreeAdamW(interpolation=0.8).transform(RUN),
        {"x": {"last": 1.25, "z": -0.25}},
    ),
    "pace": (Pace().transform(RUN), {"ema": {"ema": 1.0}}),
    "ema_nesterov": (  # kappa = beta (1 - gamma) / gamma = 1/4
        EMANesterov(ema_decay=0.5, extrapolation=0.25).transform(RUN),
        {"theta": {"last": 0.8, "ema": 0.2}, "ema": {"ema": 1.0}},
    ),
    "adam": (AdamW().transform(RUN), {}),
    "stranger": (mean_of_iterates(), {"mean": {"mean": 1.0}, "half": {"last": 0.5, "mean": 0.5}}),
}


def after_an_update(optimizer):
    params = start()
    return jax.jit(lambda p: optimizer.update(p, optimizer.init(p), p)[1])(params)


def wrapped(optimizer):
    """A chain with averages, in a chain: as the optimizer of a run holds its inner ones."""
    chain = optax.chain(optax.clip(1.0), optax.chain(optimizer, optax.identity()))
    return optax.chain(chain, averaging.average_params([25.0]))


@pytest.mark.parametrize("wrap", [lambda o: o, wrapped], ids=["alone", "wrapped"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_coefficients_and_iterates(kind, wrap):
    optimizer, expected = OPTIMIZERS[kind]
    state = after_an_update(wrap(optimizer))
    coefficients = readouts(state)
    assert coefficients.keys() == expected.keys()
    for label, readout in expected.items():
        assert coefficients[label] == pytest.approx(readout, rel=1e-6)
        assert sum(coefficients[label].values()) == pytest.approx(1)
    names = {name for readout in expected.values() for name in readout}
    assert iterates(state).keys() == names - {averaging.LIVE}
    for tree in iterates(state).values():
        assert jax.tree.map(jnp.shape, tree) == jax.tree.map(jnp.shape, start())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_abstract_states(kind):
    state = after_an_update(OPTIMIZERS[kind][0])
    abstract = jax.eval_shape(readouts, state)
    assert jax.tree.structure(abstract) == jax.tree.structure(readouts(state))
    assert {leaf.shape for leaf in jax.tree.leaves(abstract)} <= {()}
    abstract = jax.eval_shape(lambda: state)
    assert jax.tree.structure(iterates(abstract)) == jax.tree.structure(iterates(state))


def test_the_start_is_its_own_readout():
    for kind in ("gpa", "ema_nesterov"):
        for readout in readouts(OPTIMIZERS[kind][0].init(start())).values():
            assert sum(readout.values()) == pytest.approx(1)
            assert all(np.isfinite(a) for a in readout.values())


def test_two_nodes_with_readouts_are_refused():
    state = optax.chain(Pace().transform(RUN), EMANesterov().transform(RUN)).init(start())
    for read in (iterates, readouts):
        with pytest.raises(ValueError, match="PaceState, EmaNesterovState"):
            read(state)
