"""Tests of averages that count tokens, against runs of the first batch size throughout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anytime_jax import averaging
from anytime_jax.config import schema
from anytime_jax.config.clock import Clock
from anytime_jax.config.token_averaging import TokenRule, count_tokens
from anytime_jax.errors import InputError
from configs import quickstart

CLOCK = Clock(8, 4, 8 * 4, (("10 steps", 16), ("15 steps", 48)))  # 10 of 8, 5 of 16, then 48
RULES = [
    *(averaging.GrowingWindow(f) for f in (0.5, 6.25, 100.0)),
    *(averaging.Uniform(start) for start in (0, 3, 12)),
    averaging.FixedDecay(0.9),
]
labels = pytest.mark.parametrize("rule", RULES, ids=[rule.label for rule in RULES])


@labels
@pytest.mark.parametrize("t", [7, 10, 11, 15, 18])
def test_kernel_is_that_of_a_run_in_which_iterates_repeat(rule, t):
    """One update of k first batches weighs like k updates that leave its iterate in place."""
    ends = [*range(11), 12, 14, 16, 18, 20, 26, 32, 38][: t + 1]
    flat = rule.kernel(ends[-1])
    expected = np.diff([0.0, *np.cumsum(flat)[ends]])
    np.testing.assert_allclose(count_tokens(rule, CLOCK).kernel(t), expected, atol=1e-14)


@labels
def test_weight_inside_a_program(rule):
    tokens = count_tokens(rule, CLOCK)
    counts = np.arange(2, 40)
    for every in (1, 2):
        found = jax.jit(lambda t, every=every: tokens.newest_weight(t, every))(counts)
        np.testing.assert_allclose(found, tokens.evaluate(counts, every), rtol=2e-6)


def test_running_average_has_the_kernel():
    rule = count_tokens(averaging.GrowingWindow(6.25), CLOCK)
    optimizer = optax.chain(optax.sgd(1.0), averaging.average_params([rule]))

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params, iterates = jnp.float32(0.0), [0.0]
    state = optimizer.init(params)
    for gradient in np.random.default_rng(0).normal(size=20):
        params, state = step(params, state, jnp.float32(gradient))
        iterates.append(float(params))
    assert float(averaging.averages(state)["f6.25"]) == pytest.approx(
        rule.kernel(20) @ iterates, rel=1e-5
    )


def config(**changes):
    settings = quickstart.get_config()
    settings.update(changes)
    return schema.build(settings.to_dict())


def test_setting():
    growth = {"batch_growth": (("2x", 64),)}
    assert config(average_clock="tokens").averaging_rules == config().averaging_rules
    assert config(**growth).averaging_rules == config().averaging_rules
    built = config(average_clock="tokens", **growth)
    stages = built.clock.stages
    assert built.averaging_rules == {
        label: TokenRule(rule, stages) for label, rule in config().averaging_rules.items()
    }
    for changes in ({"average_clock": "samples"}, {"batch_growth": (("2x", 48),)}):
        with pytest.raises(InputError, match=r"^config\.average_clock = "):
            config(**{"average_clock": "tokens", **changes})
