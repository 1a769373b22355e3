"""Functional law, against float64 sums over every update."""

import dataclasses

import numpy as np
import pytest
from loss_laws import PEAK, SCHEDULES, STEPS

from anytime_jax import averaging, schedules
from anytime_lab.forecast import update_blocks
from anytime_lab.forecast.functional_law import FunctionalLaw

LAW = FunctionalLaw(3.0, 0.53, 0.5, 0.05, 7.6e4, 545.0, 1.3)


def mean_kernel(law, since, rate):
    """`(1 + noise_rate * u)^-noise_exponent`, mean over u from `since` to `since + rate`."""
    if rate == 0:
        return np.zeros_like(since)
    power = 1 - law.noise_exponent
    near, far = 1 + law.noise_rate * since, 1 + law.noise_rate * (since + rate)
    return (far**power - near**power) / (power * law.noise_rate * rate)


def functional_loss(law, rates, kernel):
    """Double sums over the iterates that a kernel averages, for every update's noise."""
    times = np.concatenate([[0.0], np.cumsum(rates)])
    both = (times[:, None] + times) / 2
    signal = kernel @ (both + law.signal_time) ** -law.signal_exponent @ kernel
    noise = 0.0
    for k, rate in enumerate(rates, start=1):
        weights = kernel[k:]
        seen = weights > 0
        since = both[k:, k:][np.ix_(seen, seen)] - times[k]
        noise += rate**2 * (weights[seen] @ mean_kernel(law, since, rate) @ weights[seen])
    seen = (kernel > 0) & (times > 0)
    logs = np.log(times[seen])
    drift = kernel[seen] @ logs**2 - (kernel[seen] @ logs) ** 2
    return law.floor + law.signal * signal + law.noise * noise + law.drift * drift


@pytest.mark.parametrize("name", SCHEDULES)
def test_functional_law_sums_the_noise_of_every_update(name):
    rates = SCHEDULES[name].evaluate(np.arange(STEPS[-1]))
    expected = []
    for step in STEPS:
        last = np.zeros(step + 1)
        last[-1] = 1.0
        times = np.concatenate([[0.0], np.cumsum(rates[:step])])
        since = times[-1] - times[1:]
        noise = sum(
            rate**2 * mean_kernel(LAW, x, rate) for rate, x in zip(rates[:step], since, strict=True)
        )
        signal = (times[-1] + LAW.signal_time) ** -LAW.signal_exponent
        expected.append(LAW.floor + LAW.signal * signal + LAW.noise * noise)
    np.testing.assert_allclose(LAW.losses(SCHEDULES[name], STEPS), expected, atol=3e-4)


@pytest.mark.parametrize(
    "rule",
    [
        averaging.GrowingWindow(6.25),
        averaging.GrowingWindow(25.0),
        averaging.GrowingWindow(100.0),
        averaging.FixedDecay(0.9),
        averaging.Uniform(start=50),
    ],
    ids=lambda rule: rule.label,
)
def test_functional_law_of_an_average_is_the_double_sum_over_its_kernel(rule):
    law = FunctionalLaw(0.0, 0.5, 0.5, 0.05, 5e4, 545.0, 1.3, drift=0.1)
    schedule = schedules.wsd(5e-3, 300, 150, 30, 0.1, 0.1)
    for steps in (100, 300):
        expected = functional_loss(law, schedule.evaluate(np.arange(steps)), rule.kernel(steps))
        assert law.losses(schedule, [steps], rule)[0] == pytest.approx(expected, rel=0.01)


def test_drift_of_a_plain_mean_is_finite_after_a_first_rate_of_zero():
    law = FunctionalLaw(0.0, 0.0, 0.5, 0.05, 0.0, 545.0, 1.3, drift=1.0)
    schedule = schedules.constant(5e-3, 30, 0.0)
    rule = averaging.Uniform()
    expected = functional_loss(law, schedule.evaluate(np.arange(300)), rule.kernel(300))
    assert law.losses(schedule, [300], rule)[0] == pytest.approx(expected, rel=0.2)


def test_weight_growth_shrinks_later_rates():
    law = dataclasses.replace(LAW, weight_growth=2e4, noise=0.0)
    schedule = SCHEDULES["wsd"]
    rates = schedule.evaluate(np.arange(12_000))
    before = np.cumsum(rates**2) - rates**2
    time = np.sum(rates / np.sqrt(1 + law.weight_growth * before))
    expected = law.floor + law.signal * (time + law.signal_time) ** -law.signal_exponent
    assert time < 0.9 * rates.sum()
    assert law.losses(schedule, [12_000])[0] == pytest.approx(expected, abs=1e-4)


def test_losses_keep_the_shape_and_order_of_the_steps():
    schedule = SCHEDULES["cosine"]
    together = LAW.losses(schedule, [[9_000, 3_000], [12_000, 9_000]])
    alone = [
        [LAW.losses(schedule, step) for step in row] for row in [[9_000, 3_000], [12_000, 9_000]]
    ]
    np.testing.assert_allclose(together, np.array(alone), atol=1e-4)
    assert together[0, 0] == together[1, 1]


def test_blocks_are_short_where_the_rate_turns_and_few_in_a_million_updates():
    blocks = update_blocks.group(SCHEDULES["drop"], [7_990, 8_010])
    jump = (blocks.first_rates != blocks.last_rates) & (blocks.ends > 2_100)
    assert not jump.any()
    assert blocks.lengths.sum() == blocks.ends[-1] == 8_010
    long = update_blocks.group(schedules.cosine(PEAK, 1_000_000, 2_000), [1_000_000])
    assert len(long.ends) < 3_000
