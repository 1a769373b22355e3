"""Learning-rate schedules against their formulas, written out here in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_jax import schedules
from anytime_jax.schedules import WSD, Constant, Cosine, Decay, Linear, Power

ETA = 3e-3
LONGEST = 400_000  # updates of the paper's longest runs, 32x Chinchilla
LARGEST_ULPS = 5  # of float32: the rounding of five or six operations, 4.6 on a cosine at 8x


def power_formula(gamma=0.0, alpha=1.0, warmup=5000):
    def rate(t):
        after = ETA * (alpha / (np.maximum(t - warmup, 0) + alpha)) ** gamma
        return np.where(t < warmup, ETA * (0.1 + 0.9 * t / max(warmup, 1)), after)

    return rate


def decay_formula(start, horizon, shape, warmup=5000):
    def rate(t):
        u = np.clip((t - start) / (horizon - start), 0, 1)
        left = {"linear": 1 - u, "1-sqrt": 1 - np.sqrt(u), "cosine": (1 + np.cos(np.pi * u)) / 2}
        after = ETA * (0.1 + 0.9 * left[shape])
        return np.where(t <= start, power_formula(warmup=warmup)(t), after)

    return rate


PAPER = [
    (schedules.constant(ETA, 5000), power_formula()),
    (schedules.inverse_sqrt(ETA, 51_200, 5000), power_formula(0.5, 51_200)),
    (schedules.inverse_sqrt(ETA, 800, 500), power_formula(0.5, 800, 500)),
    (Power(ETA, 0.7, 1000.0, 5000), power_formula(0.7, 1000.0)),
    (Power(ETA, 1.0), power_formula(1.0, warmup=0)),
    (schedules.cosine(ETA, 782, 500), decay_formula(500, 782, "cosine", 500)),
    (schedules.cosine(ETA, 100_000, 5000), decay_formula(5000, 100_000, "cosine")),
    (schedules.linear(ETA, LONGEST, 5000), decay_formula(5000, LONGEST, "linear")),
]
for shape in ("linear", "1-sqrt", "cosine"):
    wsd = schedules.wsd(ETA, LONGEST, 360_000, 5000, shape=shape)
    PAPER.append((wsd, decay_formula(360_000, LONGEST, shape)))


@pytest.mark.parametrize(("schedule", "formula"), PAPER)
def test_rates_of_the_papers_runs_at_every_step(schedule, formula):
    counts = np.arange((schedule.end or LONGEST) + 1)
    exact = formula(counts.astype(np.float64))
    single = np.asarray(jax.jit(schedule)(counts.astype(np.int32)))
    assert single.dtype == np.float32
    ulps = np.abs(single - exact) / np.spacing(exact.astype(np.float32))
    assert ulps.max() <= LARGEST_ULPS
    double = schedule.evaluate(counts)
    assert double.dtype == np.float64
    np.testing.assert_allclose(double, exact, rtol=1e-14, atol=1e-15 * ETA)


def test_wsd_is_the_decay_of_a_constant_rate():
    decay = Decay(Constant(ETA, 7, 0.3), 90, 99, 0.2, "1-sqrt")
    wsd = WSD(ETA, 99, 90, 7, 0.3, 0.2, "1-sqrt")
    np.testing.assert_array_equal(wsd.evaluate(np.arange(100)), decay.evaluate(np.arange(100)))
    np.testing.assert_array_equal(  # by default, over the last tenth
        WSD(ETA, 101).evaluate(np.arange(102)), WSD(ETA, 101, 91).evaluate(np.arange(102))
    )


def test_schedule_of_ones_own_has_its_warmup_and_its_end():
    @dataclasses.dataclass(frozen=True)
    class Square(schedules.Schedule):
        peak: float
        horizon: schedules.Time
        warmup: schedules.Time = 0
        warmup_init: float = 0.0

        def formula(self, t, xp):
            return self.peak * (1 - t / self.horizon) ** 2

    rate = Square(1.0, horizon=10, warmup=5)
    np.testing.assert_allclose(rate.evaluate([0, 2, 5, 8]), [0, 0.1, 0.25, 0.04])
    np.testing.assert_allclose(jax.jit(rate)(np.array([2, 8])), [0.1, 0.04], rtol=1e-6)
    with pytest.raises(ValueError, match="11"):
        rate.evaluate(11)


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
        warmup=warmup,
        warmup_init=draw(st.floats(0.0, 1.0)),
    )
    highest = trunk.evaluate(start) / trunk.peak
    floor = draw(st.floats(0.0, 1.0)) * min(1.0, float(highest))
    shape = draw(st.sampled_from(["linear", "1-sqrt", "cosine"]))
    return Decay(trunk, start, horizon, floor, shape)


@given(decays())
def test_decay_joins_its_trunk_and_ends_at_its_floor(decay):
    end = decay.floor * decay.peak
    top = decay.trunk.evaluate(decay.start)
    assert decay.evaluate(decay.horizon) == pytest.approx(end, rel=1e-14, abs=0)
    assert decay.evaluate(decay.start) == top
    middle = np.linspace(decay.start, decay.horizon, 64).astype(np.int64)
    assert (np.diff(decay.evaluate(middle)) <= 1e-14 * decay.peak).all()
    before = np.arange(max(0, decay.start - 20), decay.start + 1)
    np.testing.assert_array_equal(decay.evaluate(before), decay.trunk.evaluate(before))
    # The decay is continuous: its first step is no larger than the shape's own first step.
    u = 1 / (decay.horizon - decay.start)
    first = {"linear": u, "1-sqrt": math.sqrt(u), "cosine": (1 - math.cos(math.pi * u)) / 2}
    drop = (top - decay.evaluate(decay.start + 1)) / (top - end) if top > end else 0.0
    assert drop == pytest.approx(first[decay.shape] if top > end else 0.0, abs=1e-6)
    assert float(decay(decay.horizon)) == pytest.approx(end, rel=5e-7, abs=1e-30)  # in float32


@given(st.integers(1, 2000), st.floats(0, 1), st.sampled_from([Cosine, Linear]))
def test_decay_over_a_whole_run_ends_exactly_at_its_floor(horizon, floor, kind):
    schedule = kind(ETA, horizon, floor=floor)
    assert schedule.evaluate(0) == pytest.approx(ETA, rel=1e-15)
    assert schedule.evaluate(horizon) == pytest.approx(floor * ETA, rel=1e-15, abs=0)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.cosine(ETA, 100, warmup=10),
        Decay(Power(ETA, 0.0, warmup=10), 90, 100),
        schedules.constant(ETA, warmup=10),
    ],
    ids=["cosine", "decay", "constant"],
)
def test_counts_outside_the_domain_raise_or_give_nan(schedule):
    ends = schedule.end == 100
    assert ends or schedule.end is None
    assert float(schedule(100)) > 0
    assert schedule(np.zeros((0,), np.int32)).shape == (0,)
    for call in (schedule, schedule.evaluate):
        with pytest.raises(ValueError, match="time = -1"):
            call(-1)
        for counts in (101, np.array([3, 101])) if ends else ():
            with pytest.raises(ValueError, match="101"):
                call(counts)
    traced = np.asarray(jax.jit(schedule)(np.array([-1, 0, 100, 101, 10**6])))
    np.testing.assert_array_equal(np.isnan(traced), [True, False, False, ends, ends])


def test_equal_schedules_compile_once(compilations):
    def make(start=90):
        return schedules.wsd(1e-2, 100, start, warmup=5)

    rate = jax.jit(lambda schedule, t: schedule(t), static_argnums=0)
    t = jnp.int32(3)
    first = rate(make(), t)
    with compilations() as count:
        second = rate(make(), t)
    assert count() == 0
    assert first == second


@pytest.mark.parametrize("time", [1.5, True, "3", -1, 2**31])
def test_times_that_are_no_counts_raise(time):
    schedule = schedules.inverse_sqrt(ETA, 10.0)
    for call in (schedule, schedule.evaluate):
        with pytest.raises(ValueError, match="time = "):
            call(time)


def test_traced_times_that_are_no_counts():
    for schedule in (schedules.constant(ETA), schedules.linear(ETA, 100)):
        assert np.isnan(jax.jit(schedule)(np.uint32(2**32 - 1)))
        with jax.enable_x64(True):
            assert np.isnan(jax.jit(schedule)(np.int64(2**40)))
            assert jax.jit(schedule)(np.int64(0)) == pytest.approx(ETA)
        with pytest.raises(ValueError, match="time = "):
            jax.jit(schedule)(1.5)


@pytest.mark.parametrize("number", [3_000_000_000, np.int64(51_200)])
def test_numbers_of_any_type_are_floats(number):
    """As integers, they would overflow in JAX's int32."""
    for make in (
        lambda x: schedules.inverse_sqrt(peak=x, alpha=x),
        lambda x: schedules.power(peak=1, gamma=1, alpha=x),
        lambda x: Decay(schedules.constant(x), np.int64(5), np.int32(10), floor=np.float64(0)),
    ):
        one, other = make(number), make(float(number))
        assert repr(one) == repr(other)
        times = np.arange(0, 10, 3)
        np.testing.assert_array_equal(one(times), other(times))
        assert np.isfinite(one(times)).all()


INVALID = [
    (lambda: Power(0.0, 0.5), "peak = 0"),
    (lambda: Power(math.nan, 0.5), "peak = nan"),
    (lambda: Power(True, 0.5), "peak = True"),
    (lambda: Power(1.0, -0.5), "gamma = -0.5"),
    (lambda: Power(1.0, 0.5, alpha=0.0), "alpha = 0"),
    (lambda: Power(1.0, 0.5, warmup=-1), "warmup = -1"),
    (lambda: Power(1.0, 0.5, warmup_init=1.1), "warmup_init = 1.1"),
    (lambda: Cosine(1.0, "2x"), "horizon = '2x'"),
    (lambda: Cosine(1.0, 10**12), "horizon = 1000000000000"),
    (lambda: Linear(1.0, 10, floor=1.5), "floor = 1.5"),
    (lambda: Cosine(1.0, 10, warmup=10), "horizon = 10"),
    (lambda: WSD(1.0, 100, warmup=91), "warmup = 91"),
    (lambda: Decay(0.5, 5, 10), "trunk = 0.5"),
    (lambda: Decay(Power(1.0, 0.0), 5, 10, shape="sqrt"), "shape = 'sqrt'"),
    (lambda: Decay(Power(1.0, 0.0), 10, 5), "horizon = 5"),
    (lambda: Decay(Cosine(1.0, 10), 11, 20), "11"),
    (lambda: Decay(Power(1.0, 1.0), 99, 200), "floor"),  # its trunk is below the floor
]


@pytest.mark.parametrize(("make", "message"), INVALID, ids=[m for _, m in INVALID])
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_decay_leaves_of_the_rate():
    times = [0, 10, 50, 90, 95, 100]
    wsd = schedules.wsd(2.0, horizon=100, warmup=10, floor=0.0)
    trunk = schedules.inverse_sqrt(2.0, alpha=7, warmup=10)
    branch = schedules.Decay(trunk, start=90, horizon=100, floor=0.0)
    for decay in (wsd, branch):
        np.testing.assert_allclose(decay.remaining_fraction(times), [1, 1, 1, 1, 0.5, 0])
    cosine = schedules.cosine(2.0, horizon=90, warmup=10, floor=0.1)
    np.testing.assert_allclose(cosine.remaining_fraction([0, 10, 50, 90]), [1, 1, 0.55, 0.1])
    np.testing.assert_array_equal(trunk.remaining_fraction(times), 1)
    twice = schedules.Decay(cosine, start=50, horizon=60, floor=0.0)
    np.testing.assert_allclose(twice.remaining_fraction([50, 55, 60]), [0.55, 0.275, 0], atol=1e-12)
