"""Power law and multi-power law: sums over every update, a published error table, and fits."""

import dataclasses

import numpy as np
import pytest
from loss_laws import PEAK, SCHEDULES, STEPS

from anytime_jax import schedules
from anytime_lab.forecast import loss_csv
from anytime_lab.forecast.loss_history import RecordedRates
from lab.benchmarks import loss_curves, power_law_fit
from lab.benchmarks.rival_laws import MultiPowerLaw, PowerLaw

POWER = PowerLaw(3.2, 380.0, 0.8)
MULTI = MultiPowerLaw(2.65, 0.6, 0.45, 440.0, 2.1, 0.6, 0.65)

# Means over six predicted curves, as the authors report them: R2, MAE, RMSE, mean and worst
# relative error.
REPORTED = {
    "25M": (0.9988, 0.00376, 0.00465, 0.00110, 0.00409),
    "100M": (0.9983, 0.00435, 0.00592, 0.00142, 0.00583),
}


def multi_power_loss(law, rates):
    """The formula of the paper, term by term."""
    sums = np.cumsum(rates)
    loss = law.floor + law.scale * sums[-1] ** -law.exponent
    for k in np.flatnonzero(np.diff(rates, prepend=0.0)):
        since = sums[-1] - sums[k] + rates[k]
        before = rates[k - 1] if k else 0.0
        if since > 0:
            x = law.drop_scale * rates[k] ** -law.rate_exponent * since if rates[k] else np.inf
            loss -= law.drop * (before - rates[k]) * (1 - (1 + x) ** -law.drop_exponent)
    return loss


@pytest.mark.parametrize("name", SCHEDULES)
def test_multi_power_law_sums_every_reduction(name):
    rates = SCHEDULES[name].evaluate(np.arange(STEPS[-1]))
    expected = [multi_power_loss(MULTI, rates[:step]) for step in STEPS]
    np.testing.assert_allclose(MULTI.losses(SCHEDULES[name], STEPS), expected, atol=4e-4)


@pytest.mark.parametrize("law", [POWER, MULTI], ids=lambda law: type(law).__name__)
@pytest.mark.parametrize("name", ["constant", "wsd"])
def test_gradients_are_finite_differences(law, name):
    values = np.array(dataclasses.astuple(law))
    gradients = law.gradients(SCHEDULES[name], STEPS)
    assert gradients.shape == (len(STEPS), len(values))
    for i, value in enumerate(values):
        step = np.zeros(len(values))
        step[i] = 1e-5 * value
        above, below = (
            type(law)(*(values + sign * step)).losses(SCHEDULES[name], STEPS) for sign in (1, -1)
        )
        np.testing.assert_allclose(gradients[:, i], (above - below) / (2e-5 * value), rtol=1e-4)


def test_rate_of_zero_gains_nothing_until_the_rate_rises():
    ended = RecordedRates((0, 999, 1_000, 2_000), (1e-3, 1e-3, 0.0, 0.0))
    at_end, later = MULTI.losses(ended, [1_000, 2_000])
    assert at_end == pytest.approx(later, abs=1e-12)


@pytest.mark.parametrize("size", loss_curves.PUBLISHED)
def test_published_parameters_have_the_published_errors(size):
    rows = []
    for history in loss_curves.load(size, loss_curves.PREDICTED).values():
        error = loss_curves.PUBLISHED[size].losses(history.schedule, history.last) - history.losses
        relative = np.abs(error) / history.losses
        explained = 1 - np.mean(error**2) / np.var(history.losses)
        absolute = np.abs(error).mean(), np.sqrt(np.mean(error**2))
        rows.append([explained, *absolute, relative.mean(), relative.max()])
    errors, reported = np.mean(rows, axis=0), np.array(REPORTED[size])
    # The parameters are published with three digits, the errors too.
    assert errors[0] == pytest.approx(reported[0], abs=3e-4)
    np.testing.assert_allclose(errors[1:], reported[1:], rtol=0.1)


def curve(law, schedule, noise=0.0):
    steps = np.arange(1_000, 9_001, 100)
    losses = law.losses(schedule, steps)
    losses *= np.exp(noise * np.random.default_rng(0).normal(size=len(steps)))
    return loss_csv.from_columns(steps, losses, schedule=schedule, warmup_steps=1_000)


@pytest.mark.parametrize("law", [POWER, MULTI], ids=lambda law: type(law).__name__)
def test_fit_predicts_a_schedule_that_it_has_not_seen(law):
    seen = [
        schedules.constant(PEAK, 1_000, 0.0),
        schedules.cosine(PEAK, 16_000, 1_000, 0.0),
        schedules.wsd(PEAK, 9_000, 8_000, 1_000, 0.0),
    ]
    found = power_law_fit.fit(type(law), [curve(law, schedule, 1e-5) for schedule in seen])
    unseen = schedules.wsd(PEAK, 24_000, 20_000, 1_000, 0.0)
    expected = law.losses(unseen, [20_000, 24_000])
    np.testing.assert_allclose(found.losses(unseen, [20_000, 24_000]), expected, atol=2e-3)
