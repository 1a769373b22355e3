"""Read-outs: found anywhere in a state by their methods, also in abstract ones."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import optimizer_contract
import pytest
from noisy_quadratic import start
from optimizer_contract import RUN

from anytime_jax.optimizers import AdamW, ScheduleFreeAdamW, readouts


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
    "schedule_free": (
        ScheduleFreeAdamW(interpolation=0.8).transform(RUN),
        {"x": {"last": 1.25, "z": -0.25}},
    ),
    "adam": (AdamW().transform(RUN), {}),
    "stranger": (mean_of_iterates(), {"mean": {"mean": 1.0}, "half": {"last": 0.5, "mean": 0.5}}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_coefficients_and_iterates(kind):
    optimizer_contract.check_readouts(*OPTIMIZERS[kind])


def test_the_start_is_its_own_readout():
    for readout in readouts(OPTIMIZERS["schedule_free"][0].init(start())).values():
        assert sum(readout.values()) == pytest.approx(1)
        assert all(np.isfinite(a) for a in readout.values())


def test_two_nodes_with_readouts_are_refused():
    state = optax.chain(ScheduleFreeAdamW().transform(RUN), mean_of_iterates()).init(start())
    with pytest.raises(ValueError, match="ScheduleFreeState, MeanState"):
        readouts(state)
