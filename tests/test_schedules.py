"""Schedules against their formulas, written out here in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_jax import schedules
from anytime_jax.schedules import Cosine, Decay, Linear, Power, Schedule, Warmup

ETA = 3e-3
LONGEST = 400_000  # steps of the paper's longest runs, 32x Chinchilla
LARGEST_ULPS = 5  # of float32: the rounding of five or six operations, 4.6 on a cosine at 8x


def rise(t, top, warmup):
    return top * (0.1 + 0.9 * t / warmup)


def flat_formula(t, warmup):
    return np.where(t < warmup, rise(t, ETA, warmup), ETA)


def power_formula(t, gamma, alpha, warmup):
    after = np.maximum(t - warmup, 0)
    return np.where(t < warmup, rise(t, ETA, warmup), ETA * (alpha / (after + alpha)) ** gamma)


def cosine_formula(t, horizon, warmup):
    u = np.clip((t - warmup) / (horizon - warmup), 0, 1)
    fall = 0.1 * ETA + 0.9 * ETA * (1 + np.cos(np.pi * u)) / 2
    return np.where(t < warmup, rise(t, ETA, warmup), fall)


def linear_formula(t, horizon, warmup):
    u = np.clip((t - warmup) / (horizon - warmup), 0, 1)
    return np.where(t < warmup, rise(t, ETA, warmup), ETA * (1 - 0.9 * u))


def wsd_formula(t, start, horizon, warmup, shape="linear"):
    u = np.clip((t - start) / (horizon - start), 0, 1)
    left = {"linear": 1 - u, "1-sqrt": 1 - np.sqrt(u), "cosine": (1 + np.cos(np.pi * u)) / 2}
    fall = 0.1 * ETA + 0.9 * ETA * left[shape]
    return np.where(t <= start, flat_formula(t, warmup), fall)


MULTIPLES = [2**i for i in range(6)]
PAPER = {
    "constant": (
        schedules.constant(ETA, warmup_steps=5000),
        lambda t: flat_formula(t, 5000),
    ),
    **{
        f"inverse sqrt, alpha {alpha}": (
            schedules.inverse_sqrt(ETA, alpha, warmup_steps=5000),
            lambda t, alpha=alpha: power_formula(t, 0.5, alpha, 5000),
        )
        for alpha in (12_800, 25_600, 51_200)
    },
    **{
        f"inverse sqrt, batch 4096, alpha {alpha}": (
            schedules.inverse_sqrt(ETA, alpha, warmup_steps=500),
            lambda t, alpha=alpha: power_formula(t, 0.5, alpha, 500),
        )
        for alpha in (800, 6400)
    },
    "power 0.7": (
        schedules.power(ETA, 0.7, 1000.0, warmup_steps=5000),
        lambda t: power_formula(t, 0.7, 1000.0, 5000),
    ),
    "1/n": (schedules.power(ETA, 1.0), lambda t: ETA / (t + 1)),
    **{
        f"cosine {m}x": (
            schedules.cosine(ETA, 12_500 * m, warmup_steps=5000),
            lambda t, m=m: cosine_formula(t, 12_500 * m, 5000),
        )
        for m in MULTIPLES
    },
    "cosine 1x, batch 4096": (
        schedules.cosine(ETA, 782, warmup_steps=500),
        lambda t: cosine_formula(t, 782, 500),
    ),
    "linear 32x": (
        schedules.linear(ETA, LONGEST, warmup_steps=5000),
        lambda t: linear_formula(t, LONGEST, 5000),
    ),
    **{
        f"wsd {m}x": (
            schedules.wsd(ETA, 11_250 * m, 12_500 * m, warmup_steps=5000),
            lambda t, m=m: wsd_formula(t, 11_250 * m, 12_500 * m, 5000),
        )
        for m in MULTIPLES
    },
    **{
        f"wsd 32x, {shape}": (
            schedules.wsd(ETA, 360_000, LONGEST, warmup_steps=5000, shape=shape),
            lambda t, shape=shape: wsd_formula(t, 360_000, LONGEST, 5000, shape),
        )
        for shape in ("1-sqrt", "cosine")
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_every_step_of_the_papers_runs(name):
    schedule, formula = PAPER[name]
    counts = np.arange((schedule.horizon_steps or LONGEST) + 1)
    exact = formula(counts.astype(np.float64))
    single = np.asarray(jax.jit(schedule)(counts.astype(np.int32)))
    assert single.dtype == np.float32
    ulps = np.abs(single - exact) / np.spacing(exact.astype(np.float32))
    assert ulps.max() <= LARGEST_ULPS
    double = schedule.evaluate(counts)
    assert double.dtype == np.float64
    np.testing.assert_allclose(double, exact, rtol=1e-14, atol=1e-15 * ETA)


def test_values_that_can_be_checked_by_hand():
    inverse_sqrt = schedules.inverse_sqrt(1.0, alpha=100.0, warmup_steps=10)
    values = [0.1, 0.55, 0.91, 1.0, math.sqrt(100 / 101), 0.5]
    assert inverse_sqrt.evaluate([0, 5, 9, 10, 11, 310]) == pytest.approx(values, abs=1e-15)
    cosine = schedules.cosine(1.0, horizon=110, warmup_steps=10)
    assert cosine.evaluate([0, 10, 60, 110]) == pytest.approx([0.1, 1.0, 0.55, 0.1], abs=1e-15)
    wsd = schedules.wsd(1.0, start=90, horizon=100, warmup_steps=10)
    assert wsd.evaluate([10, 90, 95, 100]) == pytest.approx([1.0, 1.0, 0.55, 0.1], abs=1e-15)
    linear = schedules.linear(1.0, horizon=100, floor=0.0)
    assert linear.evaluate([0, 25, 100]) == pytest.approx([1.0, 0.75, 0.0], abs=1e-15)


def test_alpha_one_counts_updates_from_one():
    n = np.arange(1, 1001)
    for gamma in (0.25, 0.5, 1.0):
        rates = schedules.power(2.0, gamma, alpha=1.0).evaluate(n - 1)
        np.testing.assert_allclose(rates, 2.0 / n**gamma, rtol=1e-14)


def test_constructors_are_the_nested_dataclasses():
    warm = {"warmup_steps": 7, "warmup_init": 0.3}
    flat = Warmup(Power(ETA, 0.0, 1.0, 7), 7, 0.3)
    assert schedules.constant(ETA, **warm) == flat
    assert schedules.inverse_sqrt(ETA, 9.0, **warm) == Warmup(Power(ETA, 0.5, 9.0, 7), 7, 0.3)
    assert schedules.power(ETA, 0.2, 9.0, **warm) == Warmup(Power(ETA, 0.2, 9.0, 7), 7, 0.3)
    assert schedules.cosine(ETA, 99, **warm) == Warmup(Cosine(ETA, 99, 7, 0.1), 7, 0.3)
    assert schedules.linear(ETA, 99, **warm) == Warmup(Linear(ETA, 99, 7, 0.1), 7, 0.3)
    assert schedules.wsd(ETA, 90, 99, **warm) == Decay(flat, 90, 99, 0.1, "linear")
    assert {s.peak for s in (flat, schedules.wsd(ETA, 90, 99))} == {ETA}


def test_nested_parts_share_one_clock():
    """A decay inside a warmup, and a warmup inside a decay, are the same schedule."""
    power = Power(ETA, 0.5, 50.0, start=20)
    counts = np.arange(101)
    inside = Decay(Warmup(power, 20), 80, 100)
    outside = Warmup(Decay(power, 80, 100), 20)
    np.testing.assert_array_equal(inside.evaluate(counts), outside.evaluate(counts))
    np.testing.assert_allclose(jax.jit(inside)(counts), jax.jit(outside)(counts), rtol=5e-7)
    twice = Decay(Decay(power, 40, 100), 60, 80, floor=0.0)
    assert twice.evaluate(60) == Decay(power, 40, 100).evaluate(60)
    assert twice.evaluate(80) == 0


@st.composite
def decays(draw) -> Decay:
    """Any decay on a trunk without a horizon."""
    warmup = draw(st.integers(0, 1000))
    start = draw(st.integers(warmup, 100_000))
    horizon = start + draw(st.integers(1, 100_000))
    trunk = schedules.power(
        peak=draw(st.floats(1e-6, 10.0)),
        gamma=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        alpha=draw(st.floats(1.0, 1e6)),
        warmup_steps=warmup,
        warmup_init=draw(st.floats(0.0, 1.0)),
    )
    highest = trunk.evaluate(start) / trunk.peak
    floor = draw(st.floats(0.0, 1.0)) * min(1.0, float(highest))
    shape = draw(st.sampled_from(["linear", "1-sqrt", "cosine"]))
    return Decay(trunk, start, horizon, floor, shape)


@given(decays())
def test_a_decay_joins_its_trunk_and_ends_at_its_floor(decay):
    end = decay.floor * decay.peak
    top = decay.trunk.evaluate(decay.start)
    assert decay.evaluate(decay.horizon) == pytest.approx(end, rel=1e-14, abs=0)
    assert decay.evaluate(decay.start) == top
    middle = np.linspace(decay.start, decay.horizon, 64).astype(np.int64)
    fall = decay.evaluate(middle)
    assert (np.diff(fall) <= 1e-14 * decay.peak).all()
    if decay.start > 0:
        before = np.arange(max(0, decay.start - 20), decay.start + 1)
        np.testing.assert_array_equal(decay.evaluate(before), decay.trunk.evaluate(before))
    # The first step of the decay is continuous: no larger than the shape's own first step.
    u = 1 / (decay.horizon - decay.start)
    first = {"linear": u, "1-sqrt": math.sqrt(u), "cosine": (1 - math.cos(math.pi * u)) / 2}
    drop = (top - decay.evaluate(decay.start + 1)) / (top - end) if top > end else 0.0
    assert drop == pytest.approx(first[decay.shape] if top > end else 0.0, abs=1e-6)
    # And in float32, for Optax.
    assert float(decay(decay.horizon)) == pytest.approx(end, rel=5e-7, abs=1e-30)


@given(st.integers(1, 10_000), st.floats(0.0, 1.0), st.floats(1e-6, 10.0))
def test_warmup_rises_in_a_line_to_its_schedule(steps, init, peak):
    schedule = schedules.inverse_sqrt(peak, 100.0, warmup_steps=steps, warmup_init=init)
    assert schedule.evaluate(0) == pytest.approx(init * peak, rel=1e-14)
    assert schedule.evaluate(steps) == pytest.approx(peak, rel=1e-14)
    last = schedule.evaluate(steps - 1)
    assert peak - last == pytest.approx((1 - init) * peak / steps, rel=1e-9, abs=1e-14 * peak)
    assert schedule.evaluate(steps + 300) == pytest.approx(peak / 2, rel=1e-14)


@given(st.integers(1, 2000), st.floats(0, 1))
def test_every_decay_ends_exactly_at_its_horizon(horizon, floor):
    for schedule in (Cosine(ETA, horizon, 0, floor), Linear(ETA, horizon, 0, floor)):
        assert schedule.evaluate(0) == pytest.approx(ETA, rel=1e-15)
        assert schedule.evaluate(horizon) == pytest.approx(floor * ETA, rel=1e-15, abs=0)


HORIZONS = {
    "cosine": schedules.cosine(ETA, 100, warmup_steps=10),
    "linear": schedules.linear(ETA, 100),
    "wsd": schedules.wsd(ETA, 90, 100),
    "warmup on a decay": Warmup(Decay(Power(ETA, 0.0), 90, 100), 10),
}


@pytest.mark.parametrize("name", HORIZONS)
def test_past_the_horizon_there_is_no_rate(name):
    schedule = HORIZONS[name]
    assert schedule.horizon_steps == 100
    assert float(schedule(100)) > 0
    assert schedule.evaluate(100) > 0
    for refuse in (schedule, schedule.evaluate):
        with pytest.raises(ValueError, match=r"ends at update count 100; got 101\. Stop there"):
            refuse(101)
        with pytest.raises(ValueError, match="ends at update count 100; got 101"):
            refuse(np.array([3, 101]))
    traced = np.asarray(jax.jit(schedule)(np.array([-1, 0, 100, 101, 10**6])))
    np.testing.assert_array_equal(np.isnan(traced), [True, False, False, True, True])


def test_before_the_first_update_there_is_no_rate():
    schedule = schedules.constant(ETA, warmup_steps=10)
    assert schedule.horizon_steps is None
    for refuse in (schedule, schedule.evaluate):
        with pytest.raises(ValueError, match="starts at update count 0; got -1"):
            refuse(-1)
    traced = np.asarray(jax.jit(schedule)(np.array([-5, -1, 0, 10**9])))
    np.testing.assert_array_equal(np.isnan(traced), [True, True, False, False])
    assert schedule(np.zeros((0,), np.int32)).shape == (0,)


def test_optax_gives_the_first_update_count_zero():
    """SGD with a schedule moves by minus the rate, so the weights are the sum of the rates."""
    schedule = schedules.inverse_sqrt(0.5, alpha=3.0, warmup_steps=4, warmup_init=0.25)
    optimizer = optax.sgd(schedule)
    step = jax.jit(optimizer.update)
    params = jnp.zeros(())
    state = optimizer.init(params)
    moved = []
    for _ in range(12):
        updates, state = step(jnp.ones(()), state)
        moved.append(-float(updates))
    expected = [0.125, 0.21875, 0.3125, 0.40625]
    expected += [0.5 * math.sqrt(3 / (n + 3)) for n in range(8)]
    assert moved == pytest.approx(expected, rel=3e-7)


def test_adam_takes_a_schedule():
    optimizer = optax.adam(schedules.cosine(1.0, horizon=2, floor=0.0), eps=0.0)
    params = jnp.zeros(())
    state = optimizer.init(params)
    moved = []
    for _ in range(3):  # the sign of a constant gradient, times the rate
        updates, state = jax.jit(optimizer.update)(jnp.ones(()), state)
        moved.append(-float(updates))
    # Optax's own correction of the moments' bias is good to 1e-5 only: 1 - 0.999 in float32.
    assert moved == pytest.approx([1.0, 0.5, 0.0], abs=2e-5)


def test_schedules_are_values(compilations):
    """Equal schedules are one static argument: they hash alike and compile once."""

    def make() -> Schedule:
        return schedules.wsd(1e-2, 90, 100, warmup_steps=5)

    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != schedules.wsd(1e-2, 91, 100, warmup_steps=5)
    assert len({make(), make(), schedules.constant(1e-2), schedules.constant(1e-2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().start = 3  # type: ignore[misc]
    rate = jax.jit(lambda schedule, t: schedule(t), static_argnums=0)
    t = jnp.int32(3)
    first = rate(make(), t)
    with compilations() as count:
        second = rate(make(), t)
    assert count() == 0
    assert first == second


def test_any_shape():
    schedule = schedules.cosine(ETA, 300, warmup_steps=20)
    counts = np.arange(240).reshape(2, 3, 40)
    flat = schedule.evaluate(np.arange(240))
    np.testing.assert_array_equal(schedule.evaluate(counts), flat.reshape(counts.shape))
    rates = schedule(counts)
    assert (rates.shape, rates.dtype) == (counts.shape, jnp.float32)
    np.testing.assert_allclose(rates, flat.reshape(counts.shape), rtol=5e-7)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32])
def test_any_integer_type(dtype):
    counts = np.arange(100)
    for schedule in (Power(ETA, 0.5, 50.0, start=20), Cosine(ETA, 300, start=20)):
        expected = schedule.evaluate(counts)
        np.testing.assert_allclose(schedule(counts.astype(dtype)), expected, rtol=5e-7)


@pytest.mark.parametrize("call", [lambda s: s(1.5), lambda s: s.evaluate(1.5)])
def test_a_count_is_a_whole_number(call):
    with pytest.raises(ValueError, match="whole"):
        call(schedules.inverse_sqrt(ETA, 10.0))


def test_positions_fit_in_a_count():
    with pytest.raises(ValueError, match="horizon = 1000000000000"):
        Linear(ETA, 10**12)


INVALID = [
    (lambda: Power(0.0, 0.5), r"peak = 0\.0 is not allowed: it must be a number above 0"),
    (lambda: Power(-1.0, 0.5), r"peak = -1\.0"),
    (lambda: Power(math.nan, 0.5), "peak = nan"),
    (lambda: Power(math.inf, 0.5), "peak = inf"),
    (lambda: Power("1e-3", 0.5), "peak = '1e-3'"),
    (lambda: Power(True, 0.5), "peak = True"),
    (lambda: Power(1.0, -0.5), r"gamma = -0\.5 is not allowed: it must be 0 or more"),
    (lambda: Power(1.0, math.nan), "gamma = nan"),
    (lambda: Power(1.0, 0.5, alpha=0.0), r"alpha = 0\.0"),
    (lambda: Power(1.0, 0.5, start=-1), "start = -1 is not allowed: it must be a whole number"),
    (lambda: Power(1.0, 0.5, start=1.5), r"start = 1\.5"),
    (lambda: Cosine(0.0, 10), r"peak = 0\.0"),
    (lambda: Cosine(1.0, 10.0), r"horizon = 10\.0 is not allowed: it must be a whole number"),
    (lambda: Cosine(1.0, 10, floor=1.5), r"floor = 1\.5 is not allowed: .* from 0 to 1"),
    (lambda: Cosine(1.0, 10, floor=-0.1), r"floor = -0\.1"),
    (lambda: Linear(1.0, 10, start=10), "starts at update 10 and ends at 10: the horizon must"),
    (lambda: Linear(1.0, 0), "starts at update 0 and ends at 0"),
    (lambda: Decay(0.5, 5, 10), r"trunk = 0\.5 is not allowed: it must be a schedule"),
    (lambda: Decay(Power(1.0, 0.0), 5, 10, shape="sqrt"), "shape = 'sqrt' .* linear, 1-sqrt, cos"),
    (lambda: Decay(Power(1.0, 0.0), 10, 5), "starts at update 10 and ends at 5"),
    (lambda: Decay(Cosine(1.0, 10), 11, 20), "starts at 11, after its trunk's end at 10"),
    (lambda: Decay(Power(1.0, 1.0), 99, 200), r"would rise: its trunk is at 0\.01 at update 99"),
    (lambda: Warmup(None, 5), "schedule = None is not allowed: it must be a schedule"),
    (lambda: Warmup(Power(1.0, 0.0), -1), "steps = -1"),
    (lambda: Warmup(Power(1.0, 0.0), 5, init=1.1), r"init = 1\.1"),
    (lambda: Warmup(Cosine(1.0, 10), 11), "warmup of 11 updates is longer than the schedule's 10"),
]


@pytest.mark.parametrize(("make", "message"), INVALID, ids=[m for _, m in INVALID])
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
