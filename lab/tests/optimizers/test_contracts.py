"""The wrappers of a descent: what reaches it, and their arguments."""

import jax
import numpy as np
import optax
import pytest
from noisy_quadratic import start

from anytime_lab.optimizers.amuse import rising_interpolation, schedule_free_weight
from anytime_lab.optimizers.ema_nesterov import ema_nesterov
from anytime_lab.optimizers.primal_averaging import primal_averaging

WRAPPERS = {
    "primal": lambda inner: primal_averaging(inner, rising_interpolation(0.9, 3, 0.8), 0.1),
    "ema_nesterov": lambda inner: ema_nesterov(inner, 0.9, 0.5),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_extra_arguments_reach_the_inner_optimizer(kind):
    def update(updates, state, params=None, *, value, **_):
        del params
        return jax.tree.map(lambda g: -value * g, updates), state

    inner = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    optimizer, params = WRAPPERS[kind](inner), start()
    compiled = jax.jit(
        lambda p, v: optimizer.update(p, optimizer.init(p), p, value=v, grad_norm=1.0)[0]["bias"]
    )
    moves = [compiled(params, value) for value in (0.0, 1.0)]
    assert not np.allclose(*moves)


SGD = optax.sgd(0.1)
INVALID = {
    "interpolation = 0": lambda: primal_averaging(SGD, 0, 0.1),
    "interpolation = nan": lambda: primal_averaging(SGD, float("nan"), 0.1),
    "newest_weight = -0.1": lambda: primal_averaging(SGD, 0.9, -0.1),
    "inner_params = 'x'": lambda: primal_averaging(SGD, 0.9, 0.1, "x"),
    "decay = 1": lambda: ema_nesterov(SGD, 1),
    "extrapolation = inf": lambda: ema_nesterov(SGD, 0.9, float("inf")),
    "b1 = 0": lambda: rising_interpolation(0, 10, 1.0),
    "start = 1": lambda: rising_interpolation(0.9, 1, 1.0),
    "rho = -1": lambda: rising_interpolation(0.9, 10, -1),
    "warmup_steps = -1": lambda: schedule_free_weight(-1),
    "warmup_init = 2": lambda: schedule_free_weight(10, 2),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_settings_raise(message):
    with pytest.raises(ValueError, match=message):
        INVALID[message]()
