"""The decay that follows the run against a float64 loop and its half-life."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noisy_quadratic import START, UPDATES, Adam, gradient, rate, run
from optimizer_contract import RUN, WARMUP

from anytime_jax.optimizers import Muon
from anytime_lab.optimizers.log_time_decay import LogTimeDecay


def share(g, t):
    """What update t = 1, 2, ... takes of a matrix."""
    return min(g * math.log(2) / t, 0.1) if t > WARMUP else 0.0


@pytest.mark.parametrize("g", [0.5, 30])
def test_adamw_in_float64(g):
    params = {name: value.copy() for name, value in START.items()}
    adams = {name: Adam(b1=0.9, b2=0.98, epsilon=1e-8) for name in params}
    ours = run(LogTimeDecay(g=g).transform(RUN))
    for t, (tree, _) in enumerate(ours, 1):
        grads = gradient(params, t)
        for name, theta in params.items():
            taken = share(g, t) if name == "matrix" else 0.0
            mean, root = adams[name].moments(grads[name])
            params[name] = theta - rate(t - 1) * mean / root - taken * theta
            np.testing.assert_allclose(tree[name], params[name], rtol=3e-5, atol=3e-5)
    assert t == UPDATES


def test_an_update_of_muon_is_muons_and_the_share():
    """Of g = 0.3, whose share after the warmup is far from the largest one."""
    before = list(run(Muon().transform(RUN), WARMUP))[-1][0]["matrix"]
    (params, _), (decayed, _) = (
        list(run(x.transform(RUN), WARMUP + 1))[-1]
        for x in (Muon(), LogTimeDecay(matrices="muon", g=0.3))
    )
    taken = params["matrix"] - decayed["matrix"]
    np.testing.assert_allclose(taken, share(0.3, WARMUP + 1) * before, atol=1e-6)
    np.testing.assert_array_equal(params["bias"], decayed["bias"])


def test_half_of_a_weight_is_left_after_a_share_of_the_run():
    """From t on, e^(1/g) - 1 times t later, for any t."""
    g = 2.5
    transform = LogTimeDecay(g=g).transform(dataclasses.replace(RUN, warmup_steps=2000))
    params = {"matrix": jnp.ones(())}
    state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)

    def body(_, carry):
        params, state = carry
        updates, state = transform.update(zeros, state, params)
        return optax.apply_updates(params, updates), state

    params, _ = jax.lax.fori_loop(0, round(2000 * math.exp(1 / g)), body, (params, state))
    assert params["matrix"] == pytest.approx(0.5, rel=2e-3)
