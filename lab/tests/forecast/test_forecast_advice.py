"""Advice on a run: each case of the gain and of the decay."""

import dataclasses

import pytest

from anytime_lab.forecast.forecast_advice import Outlook, advise
from anytime_lab.forecast.run_forecast import Estimate

USUAL = Outlook(
    point="4x",
    distance="3.93M more tokens",
    weights="f25",
    gain=Estimate(0.16, 0.14, 0.18),
    over_decay=Estimate(-0.02, -0.03, -0.01),
    decay="a decay over the last 10%",
    branch_step=1728,
)


def advice(**changes):
    return advise(dataclasses.replace(USUAL, **changes))


@pytest.mark.parametrize(
    ("gain", "case"),
    [
        ((0.02, 0.001, 0.04), "Train on"),
        ((0.02, -0.01, 0.05), "not known"),
        ((0.004, -0.001, 0.009), "Little"),
    ],
)
def test_gain_of_the_next_point(gain, case):
    text = advice(gain=Estimate(*gain), over_decay=None)
    assert [x for x in ("Train on", "not known", "Little") if x in text] == [case]


@pytest.mark.parametrize(
    ("over", "case"),
    [
        ((-0.02, -0.03, -0.001), "higher"),
        ((0.02, 0.001, 0.03), "branch at step 1,728"),
        ((0.001, -0.008, 0.009), "level"),
        ((0.001, -0.018, 0.02), "not known"),
        ((-0.005, -0.012, 0.002), "not known"),
    ],
)
def test_decay_to_the_next_point(over, case):
    text = advice(over_decay=Estimate(*over))
    cases = ("not known", "branch at step 1,728", "level", "higher")
    assert next(x for x in cases if x in text) == case


def test_no_advice_beyond_what_was_calibrated():
    assert advice(is_calibrated=False).startswith("No advice on 4x")
