"""Primal averaging against float64 loops over x, y and z, the authors' update, and Optax's."""

import jax
import numpy as np
import optax
import pytest
from noisy_quadratic import START, UPDATES, Adam, assert_close, combine, gradient, rate, run, start

from anytime_jax.averaging import GrowingWindow
from anytime_jax.optimizers import readouts
from anytime_lab.optimizers.amuse import rising_interpolation, schedule_free_weight
from anytime_lab.optimizers.primal_averaging import primal_averaging

DECAY = 0.1


def loop(b, c, decay_at):
    """Y and x after each update: momentum 0.9, then decay, then the rate; written as in papers."""
    x, z, momentum = dict(START), dict(START), dict.fromkeys(START, 0.0)
    y = dict(START)
    for t in range(1, UPDATES + 1):
        g = gradient(y, t)
        for name in START:
            momentum[name] = g[name] + 0.9 * momentum[name]
            decayed = {"y": y, "z": z}[decay_at][name]
            z[name] = z[name] - rate(t - 1) * (momentum[name] + DECAY * decayed)
            x[name] = (1 - c(t)) * x[name] + c(t) * z[name]
            y[name] = b(t) * x[name] + (1 - b(t)) * z[name]
        yield dict(y), dict(x), dict(z)


COEFFICIENTS = {
    "constant": ((0.7, lambda t: 0.7), (0.05, lambda t: 0.05)),
    "mean": ((0.9, lambda t: 0.9), (schedule_free_weight(), lambda t: 1 / t)),
    "rising": (
        (rising_interpolation(0.4, 10, 0.8), lambda t: 1 - 0.6 * (9 / (max(t, 10) - 1)) ** 0.8),
        (schedule_free_weight(), lambda t: 1 / t),
    ),
}


@pytest.mark.parametrize(("kind", "decay_at"), [("constant", "y"), ("mean", "z"), ("rising", "z")])
def test_x_y_and_z_of_the_formula(kind, decay_at):
    (b, exact_b), (c, exact_c) = COEFFICIENTS[kind]
    inner = optax.chain(
        optax.trace(0.9), optax.add_decayed_weights(DECAY), optax.scale_by_learning_rate(rate)
    )
    expected = loop(exact_b, exact_c, decay_at)
    for params, state in run(primal_averaging(inner, b, c, decay_at)):
        y, x, z = next(expected)
        assert_close(params, y)
        assert_close(state.z, z)
        assert_close(combine(readouts(state)["x"], params, {"z": state.z}), x, 5e-6)


def test_update_order_of_the_authors_of_gpa():
    """Y and z move in place, with the gradient at y; x is y extrapolated away from z."""
    mu_y, mu_x = 0.7, 0.98
    inner = optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=DECAY)
    y, z = dict(START), dict(START)
    adams = {name: Adam(0.9, 0.95) for name in START}
    optimizer = primal_averaging(inner, interpolation=mu_y, newest_weight=1 - mu_x)
    for t, (params, state) in enumerate(run(optimizer), 1):
        g = gradient(y, t)
        for name, adam in adams.items():
            mean, scale = adam.moments(g[name])
            direction = mean / scale + DECAY * y[name]
            y[name] = y[name] + (1 - mu_x) * (z[name] - y[name])
            y[name] = y[name] + rate(t - 1) * (mu_y * mu_x - 1) * direction
            z[name] = z[name] - rate(t - 1) * direction
        assert_close(params, y)
        x = {name: y[name] + (1 - 1 / mu_y) * (z[name] - y[name]) for name in y}
        assert_close(combine(readouts(state)["x"], params, {"z": state.z}), x)


@pytest.mark.parametrize(("steps", "power"), [(0, 0.0), (20, 2.0)])
def test_schedule_free_is_a_special_case(steps, power):
    schedule = optax.schedules.linear_schedule(0.02, 0.1, steps) if steps else lambda count: 0.1
    adam = optax.chain(
        optax.scale_by_rms(0.99, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_learning_rate(schedule),
    )
    # Optax weighs update t = 1, 2, ... by its schedule at t, but updates with that at t - 1.
    theirs = optax.contrib.schedule_free(
        adam, lambda count: schedule(count - 1), b1=0.9, weight_lr_power=power
    )
    ours = primal_averaging(adam, 0.9, schedule_free_weight(steps, warmup_init=0.2))
    for (params, state), (their_params, their_state) in zip(run(ours), run(theirs), strict=True):
        assert_close(params, their_params)
        assert_close(state.z, their_state.z)
        x = optax.contrib.schedule_free_eval_params(their_state, their_params)
        assert_close(combine(readouts(state)["x"], params, {"z": state.z}), x, 5e-6)


def test_a_rule_weighs_by_the_time_that_an_update_is_told():
    rule = GrowingWindow(6.25)
    optimizer, params = primal_averaging(optax.sgd(0.1), 0.9, rule), start()

    def c_of(**extra):
        """C follows from where z and y went, as x = (1 - c) x + c z starts with x = y."""
        moves, state = optimizer.update(params, optimizer.init(params), params, **extra)
        step = state.z["bias"] - params["bias"]
        return float(((moves["bias"] / step - 0.1) / 0.9).mean())

    assert c_of() == c_of(time=np.int32(1)) == pytest.approx(float(rule.evaluate(1)), rel=1e-5)
    found = c_of(time=np.int32(600), span=3)
    assert found == pytest.approx(float(rule.evaluate(600, 3)), rel=1e-4)


def test_small_moves_of_y_do_not_cancel():
    """Where the mean of many iterates moves by far less than the spacing of numbers at z."""
    b, c = 0.9, 1e-6
    optimizer = primal_averaging(optax.sgd(1.0), b, c)
    params = {"w": np.float32(1000.0)}
    state = optimizer.init(params)._replace(interpolation=np.float32(b))
    state = state._replace(z={"w": np.float32(1000.5)})
    moves, _ = optimizer.update({"w": np.float32(0.0)}, state, params)
    np.testing.assert_allclose(moves["w"], c * 0.5, rtol=1e-5)


def test_bfloat16_parameters_have_float32_iterates():
    params = jax.tree.map(lambda p: p.astype("bfloat16"), start())
    optimizer = primal_averaging(optax.sgd(0.1), 0.9, 0.1, inner_params="z")
    moves, state = optimizer.update(params, optimizer.init(params), params)
    assert {x.dtype.name for x in jax.tree.leaves(moves)} == {"bfloat16"}
    assert {x.dtype.name for x in jax.tree.leaves(state.z)} == {"float32"}


def test_invalid_coefficient_is_named():
    with pytest.raises(ValueError, match="interpolation"):
        primal_averaging(optax.sgd(0.1), float("nan"), 0.1)
