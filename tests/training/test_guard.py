"""The guard, against the same written in NumPy; and no bad update in weights, moments, averages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anytime_jax import averaging, schedules
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.schema import GuardConfig, OptimizerConfig
from anytime_jax.training.guard import LOSS_WINDOW, get_guard_state
from anytime_jax.training.optimizer import make_optimizer

PARAMS = {"w": jnp.asarray(np.linspace(-1, 1, 12).reshape(3, 4), jnp.float32)}


RULES = averaging.label_rules([6.25, 25.0])
DECAY = 0.1  # it moves weights without any gradient


def optimizer(skip="nothing", spike=6.0, clip_norm=1.0):
    """What a run is trained with, so that whatever it keeps is seen here."""
    config = OptimizerConfig(0.9, 0.95, 1e-8, DECAY, clip_norm)
    guard = GuardConfig(skip, spike, 3)
    return make_optimizer(config, schedules.constant(1e-2), RULES, guard)


def run(losses, gradients=None, **keywords):
    """The states before and after updates with such losses; gradients of ones if none are given."""
    transform = optimizer(**keywords)
    update = jax.jit(functools.partial(updated, transform))
    states = [begun(transform)]
    for i, loss in enumerate(losses):
        grads = jax.tree.map(jnp.ones_like, PARAMS) if gradients is None else gradients[i]
        states.append(update(states[-1], jnp.float32(loss), grads))
    return states


def begun(transform):
    return TrainState(jnp.zeros((), jnp.int32), PARAMS, transform.init(PARAMS))


def updated(transform, state, loss, grads):
    made, opt_state = transform.update(
        grads, state.opt_state, state.params, value=loss, grad_norm=optax.tree.norm(grads)
    )
    return TrainState(state.step + 1, optax.apply_updates(state.params, made), opt_state)


def guards(losses, **keywords):
    return [get_guard_state(state.opt_state) for state in run(losses, **keywords)]


@pytest.mark.parametrize(
    ("loss", "gradient"),
    [(np.nan, 1.0), (np.inf, 1.0), (2.0, np.nan), (2.0, np.inf), (2.0, -np.inf), (2.0, 1e30)],
)
@pytest.mark.parametrize("skip", ["nothing", "nonfinite", "spikes"])
def test_a_bad_update_reaches_nothing_but_the_counts(loss, gradient, skip):
    """1e30: its square, and so the norm, is infinite in float32."""
    one_bad = jnp.ones((3, 4)).at[1, 2].set(gradient)
    gradients = [{"w": jnp.ones((3, 4))}, {"w": one_bad}, {"w": -jnp.ones((3, 4))}]
    start, good, bad, after = run([2.0, loss, 2.0], gradients, skip=skip)
    assert not np.array_equal(start.params["w"], good.params["w"])
    np.testing.assert_array_equal(good.params["w"], bad.params["w"])
    assert_only_counts_moved(good, bad)
    # The averages take the same weights in once more, as the formula says.
    for label, rule in RULES.items():
        thetas = [np.float64(s.params["w"]) for s in (start, good, bad, after)]
        wanted = sum(w * x for w, x in zip(rule.kernel(3), thetas, strict=True))
        found = averaging.averages(after.opt_state)[label]["w"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-7)
    guard = get_guard_state(after.opt_state)
    assert (int(guard.skipped), int(guard.consecutive_skips)) == (1, 0)
    assert int(get_guard_state(bad.opt_state).consecutive_skips) == 1
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after))


def assert_only_counts_moved(before, after):
    """In what the guard watches over."""
    before, after = (get_guard_state(state.opt_state).inner for state in (before, after))
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        count = "count" in jax.tree_util.keystr(path)
        np.testing.assert_array_equal(x + 1 if count else x, y)


def test_a_bad_update_of_one_run_of_several_reaches_no_other():
    transform = optimizer()
    update = functools.partial(updated, transform)
    both = jax.jit(jax.vmap(update, in_axes=(None, 0, None)))
    good, grads = begun(transform), jax.tree.map(jnp.ones_like, PARAMS)
    good = update(good, jnp.float32(2.0), grads)
    made = both(good, jnp.float32([np.nan, 2.0]), grads)
    bad, alone = (jax.tree.map(lambda x, i=i: x[i], made) for i in range(2))
    np.testing.assert_array_equal(bad.params["w"], good.params["w"])
    assert_only_counts_moved(good, bad)
    wanted = jax.jit(update)(good, jnp.float32(2.0), grads)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), alone, wanted)


@pytest.mark.parametrize(("clip_norm", "rtol"), [(10.0, 0.0), (3.0, 3e-7)])
def test_without_anything_bad_it_is_adamw(clip_norm, rtol):
    """To the bit, but where some gradients are clipped: Optax's own clip rounds otherwise."""
    rng = np.random.RandomState(0)
    gradients = [{"w": jnp.asarray(rng.standard_normal((3, 4)), jnp.float32)} for _ in range(20)]
    adamw = optax.adamw(1e-2, 0.9, 0.95, weight_decay=DECAY)
    plain = optax.chain(optax.clip_by_global_norm(clip_norm), adamw)
    params, state = PARAMS, plain.init(PARAMS)
    for grads in gradients:
        updates, state = jax.jit(plain.update)(grads, state, params)
        params = optax.apply_updates(params, updates)
    found = run(np.ones(20), gradients, clip_norm=clip_norm)[-1].params["w"]
    np.testing.assert_allclose(found, params["w"], rtol=rtol, atol=0)
    norms = [float(optax.tree.norm(grads)) for grads in gradients]
    assert min(norms) < clip_norm
    assert (max(norms) > clip_norm) == (rtol > 0)


def reference(losses, spike, skips):
    """Mean, standard deviation and flags before every loss, in float64."""
    mean = variance = 0.0
    taken, rows = 0, []
    for loss in losses:
        spread = max(np.sqrt(variance), 1e-3 * abs(mean))
        top = mean + spike * spread if taken >= LOSS_WINDOW else np.inf
        spiked = bool(np.isfinite(loss) and loss > top)
        bad = not np.isfinite(loss) or (skips and spiked)
        rows.append((mean, np.sqrt(variance), spiked, bad))
        if np.isfinite(loss):
            taken += 1
            weight = 1 / min(taken, LOSS_WINDOW)
            x = min(loss, top)
            # Of a distribution and one more number, each with its weight.
            new_mean = (1 - weight) * mean + weight * x
            second = (1 - weight) * (variance + mean**2) + weight * x**2
            mean, variance = new_mean, max(second - new_mean**2, 0.0)
    return rows


@pytest.mark.parametrize("skip", ["nonfinite", "spikes"])
def test_mean_spread_spikes_and_skips_are_those_of_the_reference(skip):
    rng = np.random.RandomState(1)
    losses = 3 + 2 * np.exp(-np.arange(400) / 80) + 0.05 * rng.standard_normal(400)
    losses[50] = 40.0  # too early to be known as a spike
    losses[200], losses[201], losses[300], losses[350] = 20.0, np.nan, 25.0, np.inf
    found = guards(losses, skip=skip)
    wanted = reference(losses, 6.0, skip == "spikes")
    for i, (mean, spread, spiked, bad) in enumerate(wanted):
        assert float(found[i].mean) == pytest.approx(mean, rel=1e-5)
        assert float(jnp.sqrt(found[i].variance)) == pytest.approx(spread, rel=1e-3, abs=1e-6)
        assert int(found[i + 1].spikes - found[i].spikes) == spiked
        assert int(found[i + 1].skipped - found[i].skipped) == bad
    assert int(found[-1].spikes) == 2
    assert int(found[-1].skipped) == (4 if skip == "spikes" else 2)


def test_noise_is_no_spike():
    losses = 3 + 0.05 * np.random.RandomState(2).standard_normal(3000)
    assert int(guards(losses)[-1].spikes) == 0


def test_a_loss_that_hardly_moves_spikes_by_no_rounding():
    losses = np.full(300, 3.0, np.float32)
    losses[200::7] = np.nextafter(np.float32(3), np.float32(4))
    losses[299] = 3.2
    assert [int(g.spikes) for g in guards(losses)[-2:]] == [0, 1]


def test_updates_passed_over_in_a_row_are_counted():
    found = guards([1.0, np.nan, np.nan, 1.0, np.nan])
    assert [int(guard.consecutive_skips) for guard in found] == [0, 0, 1, 2, 0, 1]
    assert [int(guard.skipped) for guard in found] == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "given", [("all", 6.0, 10), ("nothing", 0.0, 10), ("nothing", np.nan, 10), ("nothing", 6.0, 0)]
)
def test_bad_settings_are_refused(given):
    with pytest.raises(ValueError, match="is not allowed"):
        GuardConfig(*given)
