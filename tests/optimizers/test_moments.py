"""Moments in bfloat16 against float64, and what their storage keeps to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimizer_contract
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from optimizer_contract import RUN

from anytime_jax import optimizers
from anytime_jax.optimizers import AdamW, Muon, ScheduleFreeAdamW

KINDS = (AdamW, Muon, ScheduleFreeAdamW)
ROUNDING = 2.0**-7  # the largest relative error of a number: the distance of its two neighbors
B1, B2 = 0.9, 0.98


def matrices(seed, shape=(8, 32)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def adam():
    return optimizers.store_moments(optax.scale_by_adam(B1, B2), "bfloat16")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "check", [optimizer_contract.check_donation, optimizer_contract.check_start_and_learning]
)
def test_contracts(kind, check):
    check(kind(moments="bfloat16"))


def test_float32_is_the_transform_itself():
    direction = optax.scale_by_adam()
    assert optimizers.store_moments(direction, "float32") is direction


def test_adam_is_that_of_float64_within_the_rounding():
    """An update computes from the stored moments, whose errors add up, each decayed."""
    transform = adam()
    state = transform.init(jnp.zeros((8, 32)))
    update = jax.jit(transform.update)
    decays = np.array([B1, B2])[:, None, None]
    exact, errors = np.zeros((2, 8, 32)), np.zeros((2, 8, 32))
    for t in range(1, 31):
        gradient = matrices(t)
        powers = (1 - decays) * np.stack([gradient, np.float64(gradient) ** 2])
        used = decays * np.float64(state.inner_state[1:]) + powers
        direction, state = update(gradient, state)
        expected = used[0] / (1 - B1**t) / np.sqrt(used[1] / (1 - B2**t))
        np.testing.assert_allclose(direction, expected, rtol=1e-4, atol=1e-6)
        stored = np.float64(state.inner_state[1:])
        assert (np.abs(stored - used) <= ROUNDING * np.abs(used)).all()
        exact = decays * exact + powers
        errors = decays * errors + ROUNDING * np.abs(used)
        assert (np.abs(stored - exact) <= errors).all()
    assert (stored != used).mean() > 0.9
    assert {x.dtype for x in state.inner_state[1:]} == {jnp.dtype(jnp.bfloat16)}


def test_moments_are_right_in_the_mean():
    """Also where the nearest number is always the old one: a gradient that grew a little."""
    transform = optimizers.store_moments(optax.scale_by_rms(0.999), "bfloat16")
    size, updates = 4096, 500
    state = transform.init(jnp.zeros(size))
    state = state._replace(inner_state=state.inner_state._replace(nu=jnp.ones(size, jnp.bfloat16)))
    update = jax.jit(transform.update)
    gradient = jnp.full(size, 1.3, jnp.float32)
    for _ in range(updates):
        _, state = update(gradient, state)
    exact = 1.3**2 + 0.999**updates * (1 - 1.3**2)
    nu = np.float64(state.inner_state.nu)
    assert nu.mean() == pytest.approx(exact, abs=4 * nu.std() / np.sqrt(size))
    assert nu.std() < 0.06 * exact


def test_errors_of_the_two_moments_are_independent():
    transform, size = optimizers.store_moments(optax.scale_by_adam(B1, B1), "bfloat16"), 2**14
    _, state = transform.update(jnp.full(size, 1.01), transform.init(jnp.zeros(size)))
    mu, nu = (np.float64(x) for x in state.inner_state[1:])
    assert mu.std() > 0
    assert nu.std() > 0
    assert abs(np.corrcoef(mu, nu)[0, 1]) < 4 / np.sqrt(size)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_the_state_is_in_float32(kind):
    params = {"matrix": jnp.ones((3, 2)), "bias": jnp.ones(4), "scalar": jnp.ones(())}
    stored = kind(moments="bfloat16").transform(RUN).init(params)
    plain = kind().transform(RUN).init(params)
    sizes = [sum(x.nbytes for x in jax.tree.leaves(state) if x.ndim) for state in (stored, plain)]
    iterates = sum(x.nbytes for x in jax.tree.leaves(optimizers.iterates(plain)) if x.ndim)
    assert sizes[0] - iterates == (sizes[1] - iterates) // 2
    for x in jax.tree.leaves(optimizers.iterates(stored)):
        assert x.dtype == jnp.float32
    assert jnp.dtype(jnp.bfloat16) not in {x.dtype for x in jax.tree.leaves(stored) if not x.ndim}


def test_bits_do_not_depend_on_the_sharding():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    transform = adam()
    update = jax.jit(transform.update)
    found = []
    for spec in (PartitionSpec(), PartitionSpec("x", "y"), PartitionSpec(None, ("y", "x"))):
        sharding = NamedSharding(mesh, spec)
        state = transform.init(jax.device_put(jnp.zeros((8, 32)), sharding))
        for t in range(5):
            _, state = update(jax.device_put(matrices(t), sharding), state)
        found.append([np.asarray(x).tobytes() for x in jax.tree.leaves(state)])
    assert found[0] == found[1] == found[2]


def test_a_class_of_ones_own_has_its_float32_arrays_stored():
    """Optax's Adafactor has sums over rows and columns, and integers."""
    direction = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    transform = optimizers.store_moments(direction, "bfloat16")
    params = {"matrix": jnp.ones((4, 8))}
    state = transform.init(params)
    dtypes = jax.tree.map(lambda x: x.dtype, state)
    gradient = {"matrix": matrices(0, (4, 8))}
    updates, state = transform.update(gradient, state, params)
    expected, _ = direction.update(gradient, direction.init(params), params)
    np.testing.assert_allclose(updates["matrix"], expected["matrix"], rtol=1e-6)
    assert jax.tree.map(lambda x: x.dtype, state) == dtypes
    assert state.inner_state.v_row["matrix"].dtype == jnp.bfloat16
    assert state.inner_state.count.dtype == jnp.int32
