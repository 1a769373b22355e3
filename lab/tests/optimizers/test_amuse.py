"""The coefficients of AMUSE against running sums, in float64."""

import jax
import numpy as np
import pytest

from anytime_jax import schedules
from anytime_lab.optimizers.amuse import rising_interpolation, schedule_free_weight


@pytest.mark.parametrize(("steps", "init"), [(0, 0.1), (1, 0.1), (50, 0.0), (50, 0.3)])
def test_schedule_free_weight_is_the_share_of_the_newest_squared_rate(steps, init):
    squares = schedules.constant(3e-3, steps, init).evaluate(np.arange(5000)) ** 2
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(squares / np.cumsum(squares), nan=1.0)  # 0 / 0 while rates are 0
    weight = jax.jit(schedule_free_weight(steps, init))
    np.testing.assert_allclose(weight(np.arange(1, 5001)), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("rho", [0.0, 0.8, 1.0])
def test_interpolation_of_the_authors_of_amuse(rho):
    """Their loop over updates, with a warmup to the full rate at update `warmup`."""
    warmup, b1, total, expected = 40, 0.6, 0.0, []
    for t in range(1, 3001):
        square = min(1.0, t / warmup) ** 2
        total += square
        c = square / total
        if t <= warmup:
            c_warmup = c
            expected.append(b1)
            continue
        ratio = c * (1 - c_warmup) / (c_warmup * (1 - c))
        expected.append(1 - ratio**rho * (1 - b1))
    weight = schedule_free_weight(warmup - 1, 1 / warmup)
    interpolation = jax.jit(rising_interpolation(b1, warmup, rho, weight))
    np.testing.assert_allclose(interpolation(np.arange(1, 3001)), expected, rtol=1e-5)
