"""Observed losses in bins, and the terms of a law between the values that are computed."""

import dataclasses

import numpy as np
import pytest
from loss_laws import LAW, history

from anytime_jax import averaging, schedules
from anytime_lab.forecast.fit_residuals import BinnedLosses, Terms
from anytime_lab.forecast.functional_law import FunctionalLaw

PEAK = 1e-2
SCHEDULE = schedules.wsd(PEAK, 900, 700, 50)
RULES = {x.label: x for x in (averaging.GrowingWindow(25.0), averaging.FixedDecay(0.99))}
LOG_GROWTHS = np.log(600.0) + np.log(2.0) * np.arange(-6, 7)


def vector(law, offset=0.0):
    """The parameters as a fit has them."""
    values = [getattr(law, name) for name in FunctionalLaw.__dataclass_fields__]
    return np.array([values[0], *np.log(values[1:]), offset])


def test_interpolated_terms_are_those_of_the_law():
    steps = np.array([60, 500, 700, 800, 900])
    terms = Terms(SCHEDULE, steps, RULES, LOG_GROWTHS)
    law = dataclasses.replace(LAW, weight_growth=777.0)  # between two of them
    losses = terms.losses(vector(law))
    for i, rule in enumerate((None, *RULES.values())):
        np.testing.assert_allclose(losses[:, i], law.losses(SCHEDULE, steps, rule), atol=2e-4)
    parts = terms.evaluate(vector(law))
    np.testing.assert_allclose(law.floor + parts.signal + parts.noise + parts.drift, losses)


def test_noise_of_the_losses_widens_their_errors():
    steps = np.arange(60, 900, 20)
    rng = np.random.default_rng(0)

    def deviation(noise):
        losses = LAW.losses(SCHEDULE, steps) + noise * rng.normal(size=len(steps))
        rows = [(t, t, x, "last", False) for t, x in zip(steps, losses, strict=True)]
        seen = history(SCHEDULE, rows, RULES)
        return np.sqrt(np.mean(BinnedLosses(seen, LOG_GROWTHS).residuals(vector(LAW)) ** 2))

    assert deviation(0.0) < 0.1
    assert deviation(0.05) == pytest.approx(1.0, abs=0.35)
    assert deviation(0.5) == pytest.approx(1.0, abs=0.35)
