"""PACE against a float64 loop over the formula."""

import optax
import pytest
from noisy_quadratic import START, Adam, assert_close, gradient, rate, run

from anytime_jax.optimizers import RunInfo
from anytime_lab.optimizers import Pace

DECAY, EPSILON = 0.1, 1e-3


@pytest.mark.parametrize(("pullback", "kappa"), [(0.15, 0.2), (30.0, 0.5), (0.0, 1.0), (1.0, 4.0)])
def test_parameters_and_average_of_the_formula(pullback, kappa):
    """30: some pulls are clipped at 1; 4: the newest iterate has the least weight."""
    clipped = 0
    theta, ema = dict(START), dict(START)
    adams = {name: Adam(0.9, 0.95, EPSILON) for name in START}
    optimizer = Pace(0.9, 0.95, EPSILON, DECAY, pullback=pullback, ema_power=kappa).transform(
        RunInfo(rate)
    )
    for t, (params, state) in enumerate(run(optimizer), 1):
        newest = max((1 + t) ** -kappa, 1e-4)
        g = gradient(theta, t)
        for name, adam in adams.items():
            before = theta[name]
            mean, scale = adam.moments(g[name])
            pull = (rate(t - 1) * pullback * newest / scale).clip(max=1)
            clipped += (pull == 1).sum()
            stepped = before - rate(t - 1) * (mean / scale + DECAY * before)
            theta[name] = stepped + pull * (ema[name] - before)
            ema[name] = (1 - newest) * ema[name] + newest * theta[name]
        assert_close(params, theta)
        assert_close(state.ema, ema)
    assert (clipped > 0) == (pullback == 30.0)


def test_without_a_pull_it_is_adamw():
    ours = run(Pace(0.9, 0.95, EPSILON, DECAY, pullback=0.0).transform(RunInfo(rate)))
    theirs = run(optax.adamw(rate, 0.9, 0.95, EPSILON, weight_decay=DECAY))
    for (params, _), (expected, _) in zip(ours, theirs, strict=True):
        assert_close(params, expected, 1e-6)
