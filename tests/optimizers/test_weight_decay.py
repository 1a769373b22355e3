"""Weight decay that follows the run, in every optimizer."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noisy_quadratic import START, UPDATES, Adam, gradient, rate, run, start

from anytime_jax.lab.optimizers import AMUSE, GPA, EMANesterov, NorMuon
from anytime_jax.optimizers import AdamW, Muon, Pace, RunInfo, ScheduleFreeAdamW

WARMUP = 4
RUN = RunInfo(rate, WARMUP, matrix_axes={"matrix": (-2, -1)}, matrices={"matrix", "head"})
EVERY = [AdamW, Muon, ScheduleFreeAdamW, Pace, AMUSE, GPA, EMANesterov, NorMuon]


def share(g, t):
    """What update t = 1, 2, ... takes of a matrix."""
    return min(g * math.log(2) / t, 0.1) if t > WARMUP else 0.0


@pytest.mark.parametrize("g", [0.5, 2, 30])
def test_adamw_in_float64(g):
    params = {name: value.copy() for name, value in START.items()}
    adams = {name: Adam(b1=0.9, b2=0.98, epsilon=1e-8) for name in params}
    ours = run(AdamW(weight_decay=f"g{g}").transform(RUN))
    for t, (tree, _) in enumerate(ours, 1):
        grads = gradient(params, t)
        for name, theta in params.items():
            taken = share(g, t) if name == "matrix" else 0.0
            mean, root = adams[name].moments(grads[name])
            params[name] = theta - rate(t - 1) * mean / root - taken * theta
            np.testing.assert_allclose(tree[name], params[name], rtol=3e-5, atol=3e-5)
    assert t == UPDATES


@pytest.mark.parametrize("kind", EVERY)
def test_without_gradients_it_alone_moves_the_matrices(kind):
    """Whatever the rate, and so for every optimizer of a kind that has a weight decay."""
    method = kind(weight_decay="g2")
    for factor in (1e-3, 1.0):
        run_info = dataclasses.replace(RUN, learning_rate=lambda count, x=factor: x * rate(count))
        transform = method.transform(run_info)
        params = {**start(), "matrix": jnp.ones((3, 2))}
        state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)
        bias = params["bias"]
        for t in range(1, WARMUP + 2):
            updates, state = transform.update(zeros, state, params)
            params = optax.apply_updates(params, updates)
            if t == WARMUP:
                np.testing.assert_allclose(params["matrix"], np.ones((3, 2)), rtol=1e-6)
        np.testing.assert_allclose(params["bias"], bias, rtol=1e-6)
        moved = 1 - params["matrix"]
        assert 0 < moved.min() <= moved.max() < 0.11  # an average by less, an extrapolation by more
        if kind in (AdamW, Muon, NorMuon):
            np.testing.assert_allclose(moved, 0.1, rtol=1e-5)


@pytest.mark.parametrize("g", [1, 2.5])
def test_half_of_a_weight_is_left_after_a_share_of_the_run(g):
    """From t on, e^(1/g) - 1 times t later, for any t."""
    transform = AdamW(weight_decay=f"g{g}").transform(dataclasses.replace(RUN, warmup_steps=2000))
    params = {"matrix": jnp.ones(())}
    state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)
    steps = round(2000 * math.exp(1 / g))

    def body(_, carry):
        params, state = carry
        updates, state = transform.update(zeros, state, params)
        return optax.apply_updates(params, updates), state

    params, _ = jax.lax.fori_loop(0, steps, body, (params, state))
    assert params["matrix"] == pytest.approx(0.5, rel=2e-3)


@pytest.mark.parametrize("kind", EVERY)
def test_a_run_tells_its_time_in_every_update(kind):
    """As the trainer does: the count of the optimizer does not matter."""
    times = [0.0]
    info = dataclasses.replace(RUN, relative_time=lambda: jnp.float32(times[-1]))
    transform = kind(weight_decay="g2").transform(info)
    params = {"matrix": jnp.ones((3, 2))}
    state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)
    updates, state = transform.update(zeros, state, params)
    np.testing.assert_allclose(updates["matrix"], 0, atol=1e-6)
    times.append(0.01)
    updates, _ = transform.update(zeros, state, params)
    moved = -np.asarray(updates["matrix"])
    assert 0 < moved.min() <= moved.max() < 0.022 * math.log(2)
    if kind in (AdamW, Muon, NorMuon):
        np.testing.assert_allclose(moved, 0.02 * math.log(2), rtol=1e-5)
