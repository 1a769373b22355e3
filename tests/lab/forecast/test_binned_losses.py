"""Observed losses in bins, and the terms of a law between the values that are computed."""

import numpy as np
import pytest

from anytime_jax import averaging, schedules
from anytime_jax.lab.forecast.binned_losses import BinnedLosses, Terms
from anytime_jax.lab.forecast.functional_law import FunctionalLaw
from anytime_jax.lab.forecast.loss_history import LossHistory

PEAK = 1e-2
SCHEDULE = schedules.wsd(PEAK, 900, 700, 50)
RULES = {x.label: x for x in (averaging.GrowingWindow(25.0), averaging.FixedDecay(0.99))}
LOG_GROWTHS = np.log(600.0) + np.log(2.0) * np.arange(-6, 7)
LAW = FunctionalLaw(2.2, 1.2, 0.6, 0.1, 40.0, 60.0, 1.1, 600.0, 0.3)


def vector(law, offset=0.0):
    """The parameters as a fit has them."""
    values = [getattr(law, name) for name in FunctionalLaw.__dataclass_fields__]
    return np.array([values[0], *np.log(values[1:]), offset])


def with_growth(growth):
    """The law with another growth of the weights."""
    return FunctionalLaw(2.2, 1.2, 0.6, 0.1, 40.0, 60.0, 1.1, growth, 0.3)


def history(rows, rules=RULES):
    """A history of rows (first, last, loss, label, training)."""
    first, last, losses, labels, training = zip(*rows, strict=True)
    arrays = np.array(first), np.array(last), np.array(losses, float)
    return LossHistory(SCHEDULE, 50, *arrays, labels, np.array(training), rules)


@pytest.mark.parametrize("growth", [40.0, 300.0, 600.0, 777.0, 5_000.0])
def test_interpolated_terms_are_those_of_the_law(growth):
    steps = np.array([60, 500, 700, 800, 900])
    terms = Terms(SCHEDULE, steps, RULES, LOG_GROWTHS)
    law = with_growth(growth)
    losses = terms.losses(vector(law))
    for i, rule in enumerate((None, *RULES.values())):
        np.testing.assert_allclose(losses[:, i], law.losses(SCHEDULE, steps, rule), atol=2e-4)
    parts = terms.evaluate(vector(law))
    np.testing.assert_allclose(law.floor + parts.signal + parts.noise + parts.drift, losses)


def test_losses_within_one_percent_are_one_row():
    rows = [(t, t, 3.0 + 0.001 * (t % 2), "last", False) for t in (100, 101, 102, 500, 502, 505)]
    seen = BinnedLosses(history(rows), LOG_GROWTHS)
    np.testing.assert_allclose(seen.losses_seen, [3.0005, 3.0, np.mean([3, 3, 3.001])])


def test_labels_and_sources_are_apart_whatever_their_order():
    rows = [
        (500, 500, 2.8, "f25", False),
        (491, 500, 3.1, "last", True),
        (500, 500, 3.0, "last", False),
        (100, 100, 4.0, "last", False),
    ]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        seen = BinnedLosses(history([rows[i] for i in order]), LOG_GROWTHS)
        assert sorted(seen.losses_seen) == [2.8, 3.0, 3.1, 4.0]


def test_residuals_are_those_of_the_law_and_the_offset():
    steps = (100, 200, 400, 600, 800)
    live = LAW.losses(SCHEDULE, np.arange(1, 901))
    rows = [(t, t, live[t - 1], "last", False) for t in steps]
    rows += [(t, t, LAW.losses(SCHEDULE, [t], RULES["f25"])[0], "f25", False) for t in steps]
    rows += [(t - 39, t, live[t - 40 : t].mean() + 0.05, "last", True) for t in steps]
    seen = BinnedLosses(history(rows), LOG_GROWTHS)
    assert np.abs(seen.residuals(vector(LAW, offset=0.05))).max() < 0.2
    apart = seen.residuals(vector(LAW, offset=0.0))
    assert (np.abs(apart) > 1).sum() == 5


def test_noise_of_the_losses_widens_their_errors():
    steps = np.arange(60, 900, 20)
    rng = np.random.default_rng(0)

    def largest(noise):
        losses = LAW.losses(SCHEDULE, steps) + noise * rng.normal(size=len(steps))
        rows = [(t, t, x, "last", False) for t, x in zip(steps, losses, strict=True)]
        return np.sqrt(
            np.mean(BinnedLosses(history(rows), LOG_GROWTHS).residuals(vector(LAW)) ** 2)
        )

    assert largest(0.0) < 0.1
    assert largest(0.05) == pytest.approx(1.0, abs=0.35)
    assert largest(0.5) == pytest.approx(1.0, abs=0.35)
