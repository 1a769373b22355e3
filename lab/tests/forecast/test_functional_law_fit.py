"""Fit of a functional law: a known law, the exact linear model, and real curves."""

import dataclasses

import numpy as np
import pytest
from loss_laws import LAW, history

from anytime_jax import averaging, schedules
from anytime_lab import theory
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.forecast.prior import Belief, general_prior
from lab.benchmarks import loss_curves

RULES = {f"f{f:g}": averaging.GrowingWindow(f) for f in (6.25, 12.5, 25.0, 50.0, 100.0)}
PEAK, WARMUP, NOW = 1e-2, 50, 1_000
CONSTANT = schedules.constant(PEAK, WARMUP)


def synthetic(until=NOW, seed=0, offset=0.02):
    """Losses of `LAW` as a run records them: means of noisy batches, and evaluations."""
    rng = np.random.default_rng(seed)
    live = LAW.losses(CONSTANT, np.arange(1, until + 1))
    rows = [
        (t - 9, t, live[t - 10 : t].mean() + offset + rng.normal(0, 0.01), "last", True)
        for t in range(10, until + 1, 10)
    ]
    evaluated = np.unique(np.geomspace(100, until, 9).astype(int))
    for label, rule in {"last": None, **RULES}.items():
        losses = LAW.losses(CONSTANT, evaluated, rule) + rng.normal(0, 5e-4, len(evaluated))
        rows += [(t, t, x, label, False) for t, x in zip(evaluated, losses, strict=True)]
    return history(CONSTANT, rows, RULES)


@pytest.fixture(name="fitted", scope="module")
def fitted_fixture():
    """The fit of 1,000 updates, with half as many likely laws as a forecast has."""
    run = synthetic()
    return FunctionalFit([run], general_prior(run), samples=12)


SCHEDULES = {
    "constant": CONSTANT,
    "wsd": schedules.wsd(PEAK, 2_000, 1_800, WARMUP),
    "cosine": schedules.cosine(PEAK, 4_000, WARMUP),
}


@pytest.mark.parametrize(
    ("name", "step", "limit"),
    [
        ("constant", 2_000, 0.006),
        ("constant", 4_000, 0.01),
        ("wsd", 2_000, 0.006),
        ("cosine", 4_000, 0.014),
    ],
)
def test_later_losses_of_a_known_law_are_predicted(fitted, name, step, limit):
    predicted = fitted.predict(SCHEDULES[name], [step], RULES)
    actual = [LAW.losses(SCHEDULES[name], [step], x)[0] for x in (None, *RULES.values())]
    np.testing.assert_allclose(predicted.losses[0], actual, atol=limit)
    assert (predicted.low[0] < actual).all()
    assert (actual < predicted.high[0]).all()


def test_losses_so_far_fit_and_training_losses_are_apart(fitted):
    assert fitted.misfit < 1
    assert fitted.training_offset == pytest.approx(0.02, abs=0.003)
    live = fitted.predict(CONSTANT, [NOW]).losses[0, 0]
    assert live == pytest.approx(LAW.losses(CONSTANT, [NOW])[0], abs=0.003)
    law = [fitted.law.losses(CONSTANT, [NOW], x)[0] for x in (None, *RULES.values())]
    expected = fitted.predict(CONSTANT, [NOW], RULES).losses[0]
    np.testing.assert_allclose(law, expected, atol=2e-4)


def test_intervals_grow_with_distance(fitted):
    predicted = fitted.predict(CONSTANT, [NOW, 2_000, 4_000, 16_000], RULES)
    assert (np.diff(predicted.samples.std(0), axis=0) > 0).all()
    assert (predicted.sd[-1] > predicted.sd[0]).all()
    np.testing.assert_allclose(predicted.losses - predicted.low, 1.2816 * predicted.sd)
    np.testing.assert_allclose(predicted.high - predicted.losses, 1.2816 * predicted.sd)


def test_few_losses_leave_the_prior_and_many_replace_it():
    """The prior believes in slower learning than there is."""
    run = synthetic(until=4_000)
    wrong = dataclasses.replace(general_prior(run), signal_exponent=Belief(np.log(0.3), 0.25))
    rows = [(t, t, LAW.losses(CONSTANT, [t])[0], "last", False) for t in (900, 950, 1_000)]
    few = history(CONSTANT, rows, RULES)
    exponents = [FunctionalFit([x], wrong, samples=2).law.signal_exponent for x in (few, run)]
    assert exponents[0] == pytest.approx(0.3, rel=0.15)
    assert exponents[1] > 0.42


def test_spike_of_the_loss_is_no_misfit(fitted):
    run = synthetic()
    losses = run.losses + 3.0 * (np.arange(len(run.losses)) == 60)
    spiked = FunctionalFit([dataclasses.replace(run, losses=losses)], general_prior(run), 2)
    assert spiked.misfit < 1.5
    expected = fitted.predict(CONSTANT, [2_000], RULES).losses
    np.testing.assert_allclose(spiked.predict(CONSTANT, [2_000], RULES).losses, expected, atol=5e-3)


@pytest.mark.slow
def test_unit_of_the_rates_changes_nothing_but_the_growth_of_weights(fitted):
    run = synthetic()
    unit = 1e-4
    rescaled = dataclasses.replace(run, schedule=schedules.constant(PEAK * unit, WARMUP))
    prior = general_prior(rescaled, 0.02**2 * unit**2)
    fit = FunctionalFit([rescaled], prior, samples=2)
    losses = fit.predict(rescaled.schedule, [4_000], RULES).losses
    np.testing.assert_allclose(losses, fitted.predict(CONSTANT, [4_000], RULES).losses, atol=1e-4)


def test_beliefs_of_a_fit_are_its_law_at_the_step_of_another_run(fitted):
    run = synthetic(until=500)
    beliefs = fitted.beliefs(run)
    assert beliefs["floor"] == pytest.approx(fitted.law.floor)
    assert np.exp(beliefs["drift"]) == pytest.approx(fitted.law.drift)
    terms = np.exp([beliefs["signal"], beliefs["noise"]]).sum()
    expected = fitted.law.losses(CONSTANT, [500])[0] - fitted.law.floor
    assert terms == pytest.approx(expected, rel=1e-3)


_BATCH = 8  # samples


def linear_model(a, b):
    """Exact losses in nats of the linear model: a constant rate, a decay and a cosine."""
    problem = theory.Problem(a=a, b=b)
    peak = 0.5 * problem.step_unit(_BATCH)
    runs = {
        "constant": schedules.constant(peak, WARMUP),
        "wsd": schedules.wsd(peak, 4_000, 3_200, WARMUP, floor=0.0),
        "cosine": schedules.cosine(peak, 4_000, WARMUP),
    }
    steps = sorted({*np.geomspace(60, NOW, 30).astype(int).tolist(), 4_000})
    factors = (6.25, 25.0, 100.0)
    in_samples = [
        schedules.constant(peak, _BATCH * WARMUP),
        schedules.wsd(peak, _BATCH * 4_000, _BATCH * 3_200, _BATCH * WARMUP, floor=0.0),
        schedules.cosine(peak, _BATCH * 4_000, _BATCH * WARMUP),
    ]
    samples = [_BATCH * step for step in steps]
    risks = theory.excess_risk(problem, in_samples, factors, samples, _BATCH)
    losses = dict(zip(runs, (2 + 8 * risks.excess(0.2)).swapaxes(0, 1), strict=True))
    rows = [
        (t, t, losses["constant"][i, j], label, False)
        for i, label in enumerate(risks.labels)
        for j, t in enumerate(steps[:-1])
    ]
    rules = {label: RULES[label] for label in risks.labels[1:]}
    return runs, history(runs["constant"], rows, rules), {k: x[:, -1] for k, x in losses.items()}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.5, 1.75),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1.5, 1.6), (2.0, 2.0), (1.5, 2.0))),
    ],
)
def test_exact_linear_model_is_predicted_at_four_times_the_run(a, b):
    """Weights that do not grow and a minimum that does not move, so that the prior is told so."""
    runs, run, actual = linear_model(a, b)
    prior = general_prior(run, initial_variance=1e4)
    prior = dataclasses.replace(prior, drift=Belief(np.log(1e-3), 3.0))
    fit = FunctionalFit([run], prior, samples=2)
    assert fit.misfit < 1
    now = run.losses[run.last == NOW]
    for name, schedule in runs.items():
        predicted = fit.predict(schedule, [4_000], run.rules)
        errors = predicted.losses[0] - actual[name]
        assert (np.abs(errors) < 0.2 * (now - actual[name])).all(), (name, errors)
        assert (np.abs(errors[1:]) < 0.11 * (now - actual[name])[1:]).all(), (name, errors)


# Means over the curves of the authors of arXiv 2503.12811, for their law: mean absolute, root mean
# square and largest relative error.
REPORTED = {"25M": (0.00376, 0.00465, 0.00409), "100M": (0.00435, 0.00592, 0.00583)}


@pytest.mark.parametrize("size", ["25M", pytest.param("100M", marks=pytest.mark.slow)])
def test_real_curves_are_predicted_as_well_as_by_the_published_law(size):
    curves = loss_curves.load(size)
    fitted = [curves[name] for name in loss_curves.FITTED]
    law = FunctionalFit(fitted, general_prior(fitted[0]), samples=2).law
    errors = []
    for name in loss_curves.PREDICTED:
        error = np.abs(law.losses(curves[name].schedule, curves[name].last) - curves[name].losses)
        relative = (error / curves[name].losses).max()
        errors.append((error.mean(), np.sqrt(np.mean(error**2)), relative))
    assert (np.mean(errors, axis=0) <= REPORTED[size]).all()
