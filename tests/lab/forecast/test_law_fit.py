"""Fit of laws: known parameters from synthetic curves, outliers, real curves, and bad input."""

import dataclasses

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.errors import InputError
from anytime_jax.lab.forecast import law_coordinates, law_fit, loss_csv
from anytime_jax.lab.forecast.laws import MultiPowerLaw, PowerLaw
from anytime_jax.lab.forecast.loss_history import LossHistory
from anytime_jax.lab.forecast.rate_sums import sum_rates
from benchmarks import loss_curves

POWER = PowerLaw(3.2, 380.0, 0.8)
MULTI = MultiPowerLaw(2.7, 0.6, 0.47, 420.0, 2.0, 0.5, 0.5)
PEAK, WARMUP = 3e-4, 1_000
CONSTANT = schedules.constant(PEAK, WARMUP, 0.0)
SCHEDULES = (
    CONSTANT,
    schedules.cosine(PEAK, 16_000, WARMUP, 0.0),
    schedules.wsd(PEAK, 8_000, 9_000, WARMUP, 0.0),
)
STEPS = np.arange(1_000, 9_001, 100)


def curve(law, schedule, noise=0.0, seed=0, steps=STEPS):
    """Losses of a law with noise that an autoregression correlates over about five steps."""
    white = np.random.default_rng(seed).normal(size=len(steps))
    colored = [white[0]]
    for value in white[1:]:
        colored.append(0.8 * colored[-1] + 0.6 * value)
    losses = law.losses(schedule, steps) * np.exp(noise * np.array(colored))
    return loss_csv.from_columns(steps, losses, schedule=schedule, warmup_steps=WARMUP)


def scaled(history, factor):
    """The same losses where rates have another unit."""
    rates = history.schedule
    constant = schedules.constant(rates.peak * factor, WARMUP, 0.0)
    return dataclasses.replace(history, schedule=constant)


def test_parameters_of_a_power_law_are_recovered():
    fit = law_fit.fit(PowerLaw, [curve(POWER, CONSTANT)])
    np.testing.assert_allclose(dataclasses.astuple(fit.law), dataclasses.astuple(POWER), rtol=1e-3)
    assert fit.agreeing == fit.starts
    assert fit.cost < 1e-12


def test_parameters_of_a_multi_power_law_are_recovered():
    fit = law_fit.fit(MultiPowerLaw, [curve(MULTI, x, 1e-5) for x in SCHEDULES])
    for name, value in dataclasses.asdict(MULTI).items():
        tolerance = 0.2 if name == "drop_scale" else 0.05
        assert getattr(fit.law, name) == pytest.approx(value, rel=tolerance), name
    unseen = schedules.wsd(PEAK, 20_000, 24_000, WARMUP, 0.0)
    expected = MULTI.losses(unseen, [20_000, 24_000])
    np.testing.assert_allclose(fit.law.losses(unseen, [20_000, 24_000]), expected, atol=2e-3)


def test_standard_errors_cover_the_parameters():
    fit = law_fit.fit(PowerLaw, [curve(POWER, CONSTANT, 1e-3, seed=3)], samples=40)
    assert len(fit.samples) == 40
    for name, error in fit.standard_errors.items():
        assert 0 < error < 0.5 * getattr(POWER, name)
        assert abs(getattr(fit.law, name) - getattr(POWER, name)) < 4 * error


def test_resampled_blocks_keep_correlated_residuals_together():
    """The floor of a correlated curve is known less well than white noise would have it."""
    errors = []
    for correlated in (True, False):
        history = curve(POWER, CONSTANT, 1e-3, seed=4)
        if not correlated:
            clean = POWER.losses(CONSTANT, STEPS)
            order = np.random.default_rng(5).permutation(len(STEPS))
            noise = (history.losses / clean)[order]
            history = dataclasses.replace(history, losses=clean * noise)
        errors.append(law_fit.fit(PowerLaw, [history], samples=60).standard_errors["floor"])
    assert errors[0] > 1.3 * errors[1]


def test_outliers_do_not_matter():
    history = curve(POWER, CONSTANT, 1e-4)
    losses = history.losses.copy()
    losses[[10, 40, 41, 70]] += [3.0, 1.0, 2.0, -1.0]
    fit = law_fit.fit(PowerLaw, [dataclasses.replace(history, losses=losses)])
    late = fit.law.losses(CONSTANT, [9_000, 90_000])
    np.testing.assert_allclose(late, POWER.losses(CONSTANT, [9_000, 90_000]), atol=0.01)


def test_unit_of_the_rates_changes_nothing():
    history = curve(MULTI, CONSTANT, 1e-4)
    fits = [law_fit.fit(MultiPowerLaw, [scaled(history, factor)]) for factor in (1.0, 1e4)]
    ahead = [
        fit.law.losses(schedules.constant(PEAK * factor, WARMUP, 0.0), [20_000])
        for fit, factor in zip(fits, (1.0, 1e4), strict=True)
    ]
    assert ahead[0] == pytest.approx(ahead[1], abs=1e-4)


@pytest.mark.parametrize(("law_type", "law"), [(PowerLaw, POWER), (MultiPowerLaw, MULTI)])
def test_derivatives_of_coordinates_are_finite_differences(law_type, law):
    sums = [sum_rates(schedule, STEPS) for schedule in SCHEDULES]
    losses = np.concatenate([law.evaluate(x)[0] for x in sums])
    coordinates = law_coordinates.coordinates_of(law_type, sums, losses)
    for start in coordinates.starts():
        derivatives = coordinates.derivatives(start)
        for i in range(len(start)):
            step = np.zeros(len(start))
            step[i] = 1e-6
            above, below = (
                np.array(dataclasses.astuple(coordinates.law(start + sign * step)))
                for sign in (1, -1)
            )
            expected = (above - below) / 2e-6
            np.testing.assert_allclose(derivatives[:, i], expected, rtol=1e-4, atol=1e-6)


def test_mean_over_an_interval_is_taken_at_its_middle():
    history = curve(POWER, CONSTANT)
    interval = dataclasses.replace(
        history,
        first=history.first,
        last=history.first + 100,
        losses=POWER.losses(CONSTANT, history.first + 50),
    )
    assert law_fit.fit(PowerLaw, [interval]).law.exponent == pytest.approx(0.8, rel=1e-3)


def test_held_out_losses_come_before_those_of_training_batches():
    held_out = curve(POWER, CONSTANT)
    batches = held_out.losses + 0.3

    def both(count):
        kept = STEPS[:count]
        return LossHistory(
            CONSTANT,
            WARMUP,
            np.concatenate([kept, STEPS]),
            np.concatenate([kept, STEPS]),
            np.concatenate([held_out.losses[:count], batches]),
            ("last",) * (count + len(STEPS)),
            np.arange(count + len(STEPS)) >= count,
        )

    assert law_fit.fit(PowerLaw, [both(80)]).law.floor == pytest.approx(3.2, abs=0.01)
    assert law_fit.fit(PowerLaw, [both(2)]).law.floor == pytest.approx(3.5, abs=0.01)


def test_averages_and_the_warmup_are_left_out():
    history = curve(POWER, CONSTANT)
    labels = tuple("f25" if i % 2 else "last" for i in range(len(STEPS)))
    losses = np.where(np.arange(len(STEPS)) % 2, 1.0, history.losses)
    first, last = history.first.copy(), history.last.copy()
    first[0] = last[0] = 10
    losses[0] = 9.0
    mixed = dataclasses.replace(history, labels=labels, losses=losses, first=first, last=last)
    fit = law_fit.fit(PowerLaw, [mixed])
    assert fit.law.floor == pytest.approx(3.2, abs=0.01)
    assert len(fit.residuals) == 40


def test_real_curves_are_predicted_by_the_multi_power_law_and_not_by_a_power_of_the_steps():
    curves = loss_curves.load("100M")
    histories = [curves[name] for name in loss_curves.FITTED]
    multi, power = (law_fit.fit(law_type, histories) for law_type in (MultiPowerLaw, PowerLaw))
    assert multi.agreeing == multi.starts
    assert _error(multi.law, curves) < 0.0048  # that of the published parameters
    assert _error(power.law, curves) > 0.02


def _error(law, curves):
    return np.mean(
        [
            np.abs(law.losses(x.schedule, x.last) - x.losses).mean()
            for x in (curves[name] for name in loss_curves.PREDICTED)
        ]
    )


@pytest.mark.parametrize(("size", "limit"), [("25M", 0.0042), ("100M", 0.0048)])
def test_constant_run_and_one_branch_predict_the_other_curves(size, limit):
    curves = loss_curves.load(size)
    histories = [curves[name] for name in ("constant_24000", "wsdcon_9")]
    assert _error(law_fit.fit(MultiPowerLaw, histories).law, curves) < limit


def test_fewer_losses_than_parameters_are_refused():
    short = curve(MULTI, CONSTANT, steps=STEPS[:5])
    assert law_fit.fit(PowerLaw, [short]).law.floor > 0
    with pytest.raises(InputError, match="MultiPowerLaw takes 7 losses"):
        law_fit.fit(MultiPowerLaw, [short])
    with pytest.raises(InputError, match="PowerLaw"):
        law_fit.fit(PowerLaw, [])


def test_loss_without_a_logarithm_is_refused():
    history = curve(POWER, CONSTANT)
    losses = history.losses - history.losses.min() - 0.1
    below = dataclasses.replace(history, losses=losses)
    with pytest.raises(InputError, match=r"loss of -0\.1"):
        law_fit.fit(PowerLaw, [below])


def test_fit_without_a_converged_start_is_refused(monkeypatch):
    monkeypatch.setattr(law_fit, "_EVALUATIONS", 1)
    with pytest.raises(InputError, match="converges"):
        law_fit.fit(PowerLaw, [curve(POWER, CONSTANT)])
