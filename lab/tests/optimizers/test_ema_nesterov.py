"""EMA-Nesterov against a float64 loop over the average displacement, as the paper writes it."""

import numpy as np
import optax
import pytest
from noisy_quadratic import START, Adam, assert_close, combine, gradient, rate, run

from anytime_jax.optimizers import readouts
from anytime_lab.optimizers.ema_nesterov import ema_nesterov


def window(count):
    """An extrapolation that is on from update 10 to 40 and follows the rate."""
    return 6 * rate(count) * ((count >= 10) & (count < 40))


@pytest.mark.parametrize(("decay", "beta"), [(0.99, 0.5), (0.9, 1.5), (0.9, 0.0), (0.9, window)])
def test_iterates_of_the_formula(decay, beta):
    theta, m = dict(START), dict.fromkeys(START, 0.0)
    ema, ahead = dict(START), dict(START)
    adams = {name: Adam(0.9, 0.95) for name in START}
    optimizer = ema_nesterov(optax.adamw(rate, 0.9, 0.95, weight_decay=0.1), decay, beta)
    for t, (params, state) in enumerate(run(optimizer), 1):
        g = gradient(ahead, t)
        for name, adam in adams.items():
            mean, scale = adam.moments(g[name])
            moved = ahead[name] - rate(t - 1) * (mean / scale + 0.1 * ahead[name])
            m[name] = decay * m[name] + (1 - decay) * (moved - theta[name])
            theta[name] = moved
            ema[name] = decay * ema[name] + (1 - decay) * moved
            now = np.float64(beta(t) if callable(beta) else beta)
            ahead[name] = theta[name] + now * m[name]
        assert_close(params, ahead)
        assert_close(state.ema, ema)
        assert_close(combine(readouts(state)["theta"], params, {"ema": state.ema}), theta)
