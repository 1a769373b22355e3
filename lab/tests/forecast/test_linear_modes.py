"""Modes of the linear model, against closed forms and sums over every update."""

import numpy as np
import pytest

from anytime_jax import averaging, schedules
from anytime_lab.forecast import linear_modes
from anytime_lab.forecast.loss_history import RecordedRates
from anytime_lab.forecast.update_blocks import group

PEAK, STEPS = 1e-3, 20_000
NO_GROWTH = np.zeros(1)
RULES = (
    averaging.GrowingWindow(6.25),
    averaging.GrowingWindow(100.0),
    averaging.Late(averaging.GrowingWindow(6.25), 9_000),
    averaging.FixedDecay(0.0),
    averaging.FixedDecay(0.99),
    averaging.Uniform(),
    averaging.Uniform(start=9_000),
)
SCHEDULES = {
    "constant": schedules.constant(PEAK, 500),
    "wsd": schedules.wsd(PEAK, STEPS, 15_000, 500, 0.0, 0.0),
    "zeros": RecordedRates((0, 99, 100, 12_000, 12_001), (0.0, 0.0, PEAK, PEAK, 0.0)),
}


def modes_of(steps):
    """The decay rates of a run of so many updates of rate 1, and times from 1 to its end."""
    blocks = group(schedules.constant(1.0), [steps])
    rates = linear_modes.respond(blocks, np.array([steps]), (), NO_GROWTH).decay_rates
    return rates, np.geomspace(1, steps, 60)


@pytest.mark.parametrize(("exponent", "time"), [(0.2, 1.0), (0.5, 3e4), (2.0, 30.0)])
def test_power_weights_sum_to_a_power_law_over_six_decades(exponent, time):
    rates, times = modes_of(10**6)
    losses = np.exp(-2 * times[:, None] * rates) @ linear_modes.power_weights(rates, exponent, time)
    np.testing.assert_allclose(losses, (times + time) ** -exponent, rtol=2e-3)


@pytest.mark.parametrize(("exponent", "rate"), [(0.6, 300.0), (1.1, 0.05), (2.0, 1e-4)])
def test_kernel_weights_sum_to_the_kernel_over_six_decades(exponent, rate):
    rates, times = modes_of(10**6)
    times = np.concatenate([[0.0], times])
    kernel = np.exp(-2 * times[:, None] * rates) @ linear_modes.kernel_weights(
        rates, exponent, rate
    )
    np.testing.assert_allclose(kernel, (1 + rate * times) ** -exponent, rtol=2e-3, atol=1e-6)


def direct_noise(schedule, decay_rates, weight_growth):
    """The variance in the live weights and each average, a sum over updates: [1 + a, m]."""
    rates = schedule.evaluate(np.arange(STEPS))
    squares = np.cumsum(rates**2) - rates**2 / 2
    flat = 1 / (1 + 10.0 * decay_rates * rates.max())
    last = np.eye(1, STEPS + 1, STEPS)[0]
    kernels = np.stack([last, *(rule.kernel(STEPS) for rule in RULES)])
    reach, variance = np.zeros((2, len(kernels), len(decay_rates)))
    for t in reversed(range(STEPS)):
        relative = (1 + weight_growth * squares[t]) ** (-flat / 2)
        fading = np.maximum(decay_rates * rates[t] * relative, 1e-99)
        reach += kernels[:, t + 1, None]  # of the noise of this update, spread evenly over it
        variance += (rates[t] * relative * reach) ** 2 * -np.expm1(-2 * fading) / (2 * fading)
        reach *= np.exp(-fading)
    return variance


@pytest.mark.parametrize("name", SCHEDULES)
def test_noise_of_each_mode_is_the_sum_over_every_update(name):
    schedule = SCHEDULES[name]
    found = linear_modes.respond(
        group(schedule, [STEPS]), np.array([STEPS]), RULES, np.array([0.0, 200.0])
    )
    for growth, noise in zip((0.0, 200.0), found.noise, strict=True):
        expected = direct_noise(schedule, found.decay_rates, growth)
        np.testing.assert_allclose(noise[0], expected, rtol=0.01, atol=1e-4 * expected.max())
