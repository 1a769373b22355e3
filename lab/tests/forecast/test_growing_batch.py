"""Rates and averages by update, where the batch grows."""

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import GrowingWindow, Late
from anytime_jax.config.clock import Clock
from anytime_lab.forecast.growing_batch import RateByUpdate, RuleByUpdate
from anytime_lab.forecast.run_forecast import DEFAULT_PLAN

CLOCK = Clock(32, 128, 480 * 32 * 128).grown(100, 64).grown(200, 128)
STEPS = np.arange(400)
ROOT = schedules.inverse_sqrt(1.0, alpha=100, warmup=10)


def test_rate_is_that_of_the_time():
    times = [CLOCK.time(int(step)) for step in STEPS]
    np.testing.assert_array_equal(RateByUpdate(ROOT, CLOCK).evaluate(STEPS), ROOT.evaluate(times))


def test_horizon_is_an_update():
    rate = RateByUpdate(schedules.cosine(1.0, horizon=1000, warmup=150), CLOCK)
    assert (rate.warmup_end, rate.end) == (125, 375)  # 100 + 50 / 2; 200 + 700 / 4
    assert rate.evaluate(375) == pytest.approx(0.1)


def test_decay_starts_from_it():
    decay = DEFAULT_PLAN.schedule(RateByUpdate(ROOT, CLOCK), 300, 400)
    assert decay.evaluate(300) == ROOT.evaluate(CLOCK.time(300))
    assert decay.evaluate(400) == pytest.approx(0.1)


def test_average_is_that_of_the_time():
    rule = GrowingWindow(25.0)
    kernel = RuleByUpdate(rule, CLOCK).kernel(300)
    np.testing.assert_allclose(kernel, rule.kernel(CLOCK.times(300)), rtol=1e-12)


def test_error_of_an_average_that_began_late_is_that_of_the_time():
    late = Late(GrowingWindow(2.0), CLOCK.time(250))
    expected = late.kernel_error(CLOCK.times(300))
    assert expected > 0.1
    assert RuleByUpdate(late, CLOCK).kernel_error(300) == expected
