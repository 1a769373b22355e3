"""Guard against bad updates: against the same rule in NumPy, and in every part of the state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimizer_kinds
import pytest
import small_run

from anytime_jax import averaging, schedules
from anytime_jax.models import decoder
from anytime_jax.train_state import TrainState
from anytime_jax.training.bad_updates import LOSS_WINDOW, get_guard_state
from anytime_jax.training.optimizer import make_optimizer

PARAMS = {"w": jnp.asarray(np.linspace(-1, 1, 12).reshape(3, 4), jnp.float32)}
MATRICES = {
    name: jnp.asarray(np.sin(np.arange(24) * (i + 1)).reshape(2, 3, 4), jnp.float32)
    for i, name in enumerate(decoder.MATRIX_AXES)
}
ONES = jax.tree.map(jnp.ones_like, PARAMS)
RULES = averaging.label_rules([6.25, 25.0])
DECAY = 0.1  # changes weights without any gradient


def optimizer(kind="adamw", skip="nothing", spike=6.0, clip_norm=1.0):
    """The optimizer of a run, so that all its state is checked here."""
    settings = {"b2": 0.95, "weight_decay": DECAY}
    if kind == "adamw":
        method = {f"optimizer__{name}": value for name, value in settings.items()}
    else:
        method = optimizer_kinds.optimizer(kind, **settings)
    guard = {"skip": skip, "spike": spike, "limit": 3}
    config = small_run.config(
        "run", "data", guard=guard, averages=tuple(RULES), clip_norm=clip_norm, **method
    )
    return make_optimizer(config, schedules.constant(1e-2))


def init(transform, params):
    return TrainState(jnp.zeros((), jnp.int32), params, transform.init(params))


def update(transform, state, loss, grads):
    updates, opt_state = transform.update(
        grads, state.opt_state, state.params, value=loss, grad_norm=optax.tree.norm(grads)
    )
    return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)


def train(losses, gradients=None, params=PARAMS, **settings):
    """The states before and after updates with such losses and gradients (by default ones)."""
    transform = optimizer(**settings)
    compiled = jax.jit(functools.partial(update, transform))
    states = [init(transform, params)]
    for i, loss in enumerate(losses):
        grads = ONES if gradients is None else gradients[i]
        states.append(compiled(states[-1], jnp.float32(loss), grads))
    return states


def guard_states(losses, **settings):
    return [get_guard_state(state.opt_state) for state in train(losses, **settings)]


def inner_state(state):
    """The state inside the guard."""
    return get_guard_state(state.opt_state).inner_state


@pytest.mark.parametrize(
    ("skip", "loss", "gradient"),
    [("nothing", np.nan, 1.0), ("nonfinite", 2.0, 1e30)],
)
def test_bad_update_changes_nothing_but_the_averages(skip, loss, gradient):
    """1e30: its square, and so the norm, is infinite in float32."""
    bad_gradient = {"w": jnp.ones((3, 4)).at[1, 2].set(gradient)}
    gradients = [ONES, bad_gradient, jax.tree.map(jnp.negative, ONES)]
    start, good, bad, after = train([2.0, loss, 2.0], gradients, skip=skip)
    assert not np.array_equal(start.params["w"], good.params["w"])
    np.testing.assert_array_equal(good.params["w"], bad.params["w"])
    assert small_run.same_bits(inner_state(good), inner_state(bad))
    # The averages take the same weights in once more, as the formula says.
    for label, rule in RULES.items():
        weights = [np.float64(s.params["w"]) for s in (start, good, bad, after)]
        expected = sum(k * w for k, w in zip(rule.kernel(3), weights, strict=True))
        average = averaging.averages(after.opt_state)[label]["w"]
        np.testing.assert_allclose(average, expected, rtol=0, atol=2e-7)
    guards = [get_guard_state(state.opt_state) for state in (bad, after)]
    assert [int(guard.consecutive_skips) for guard in guards] == [1, 0]
    assert int(guards[-1].skipped) == 1
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after))


@pytest.mark.parametrize("kind", ["adamw", *optimizer_kinds.kind_parameters()])
def test_every_kind_goes_on_as_without_the_bad_update(kind):
    """In all its state: moments, counts of bias corrections, and the weights that it evaluates."""
    params, at = {**PARAMS, **MATRICES}, 2
    good = [jax.tree.map(lambda x, i=i: jnp.cos(i + x), params) for i in range(4)]
    nan = {**good[0], "qkv": good[0]["qkv"].at[1, 2, 3].set(np.nan)}
    whole = train([2.0] * 4, good, params, kind=kind)
    skipped = train([2.0] * 5, [*good[:at], nan, *good[at:]], params, kind=kind)
    for one, other in zip(whole, [*skipped[: at + 1], *skipped[at + 2 :]], strict=True):
        assert small_run.same_bits(one.params, other.params)
        assert small_run.same_bits(inner_state(one), inner_state(other))
    assert small_run.same_bits(inner_state(skipped[at]), inner_state(skipped[at + 1]))
    assert int(averaging.find_state(skipped[-1].opt_state).count) == int(skipped[-1].step) == 5


@pytest.mark.parametrize(("clip_norm", "rtol"), [(10.0, 0.0), (3.0, 3e-7)])
def test_good_updates_are_those_of_adamw(clip_norm, rtol):
    """Bitwise, except where gradients are clipped: Optax's own clip rounds differently."""
    rng = np.random.RandomState(0)
    gradients = [{"w": jnp.asarray(rng.standard_normal((3, 4)), jnp.float32)} for _ in range(20)]
    adamw = optax.adamw(1e-2, 0.9, 0.95, weight_decay=DECAY)
    reference = optax.chain(optax.clip_by_global_norm(clip_norm), adamw)
    params, state = PARAMS, reference.init(PARAMS)
    for grads in gradients:
        updates, state = jax.jit(reference.update)(grads, state, params)
        params = optax.apply_updates(params, updates)
    actual = train(np.ones(20), gradients, clip_norm=clip_norm)[-1].params["w"]
    np.testing.assert_allclose(actual, params["w"], rtol=rtol, atol=0)
    norms = [float(optax.tree.norm(grads)) for grads in gradients]
    assert min(norms) < clip_norm
    assert (max(norms) > clip_norm) == (rtol > 0)


def reference_guard(losses, spike, skips_spikes):
    """Mean, standard deviation, spike and bad before every loss, in float64."""
    mean = variance = 0.0
    count, rows = 0, []
    for loss in losses:
        deviation = max(np.sqrt(variance), 1e-3 * abs(mean))
        threshold = mean + spike * deviation if count >= LOSS_WINDOW else np.inf
        is_spike = bool(np.isfinite(loss) and loss > threshold)
        is_bad = not np.isfinite(loss) or (skips_spikes and is_spike)
        rows.append((mean, np.sqrt(variance), is_spike, is_bad))
        if np.isfinite(loss):
            count += 1
            weight = 1 / min(count, LOSS_WINDOW)
            loss = min(loss, threshold)
            # Moments of the old distribution and one more number, weighted.
            second = (1 - weight) * (variance + mean**2) + weight * loss**2
            mean = (1 - weight) * mean + weight * loss
            variance = max(second - mean**2, 0.0)
    return rows


@pytest.mark.parametrize("skip", ["nonfinite", "spikes"])
def test_statistics_spikes_and_skips_match_reference(skip):
    rng = np.random.RandomState(1)
    losses = 3 + 2 * np.exp(-np.arange(400) / 80) + 0.05 * rng.standard_normal(400)
    losses[50] = 40.0  # too early to count as a spike
    losses[200], losses[201], losses[300], losses[350] = 20.0, np.nan, 25.0, np.inf
    states = guard_states(losses, skip=skip)
    rows = reference_guard(losses, 6.0, skip == "spikes")
    for (mean, deviation, is_spike, is_bad), old, new in zip(
        rows, states, states[1:], strict=False
    ):
        assert float(old.loss_mean) == pytest.approx(mean, rel=1e-5)
        assert float(old.loss_variance) ** 0.5 == pytest.approx(deviation, rel=1e-3, abs=1e-6)
        assert int(new.spikes - old.spikes) == is_spike
        assert int(new.skipped - old.skipped) == is_bad
    assert int(states[-1].spikes) == 2
    assert int(states[-1].skipped) == (4 if skip == "spikes" else 2)


def test_rounding_of_constant_loss_is_not_a_spike():
    losses = np.full(300, 3.0, np.float32)
    losses[200::7] = np.nextafter(np.float32(3), np.float32(4))
    losses[299] = 3.2
    assert [int(state.spikes) for state in guard_states(losses)[-2:]] == [0, 1]
