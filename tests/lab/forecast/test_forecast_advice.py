"""Advice on a run: each case of the gain and of the decay."""

import dataclasses

import pytest

from anytime_jax.lab.forecast.forecast_advice import Outlook, advise
from anytime_jax.lab.forecast.run_forecast import Estimate

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
    text = advise(dataclasses.replace(USUAL, **changes))
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("gain", "beginning"),
    [
        ((0.16, 0.14, 0.18), "Train on if 0.160 nats (0.140 to 0.180)"),
        ((0.02, 0.001, 0.04), "Train on if"),
        ((0.02, -0.01, 0.05), "It is not known whether training on helps"),
        ((0.004, -0.001, 0.009), "Little is left to gain"),
    ],
)
def test_gain_of_the_next_point(gain, beginning):
    text = advice(gain=Estimate(*gain))
    assert text.startswith(beginning)
    assert "3.93M more tokens to 4x" in text


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ((-0.02, -0.03, -0.01), "not needed: it would end higher than f25, by 0.020"),
        ((0.02, 0.01, 0.03), "branch at step 1,728"),
        ((0.001, -0.008, 0.009), "not needed: it would end level with f25"),
        ((0.001, -0.018, 0.02), "is not known"),
        ((-0.005, -0.012, 0.002), "is not known"),
    ],
)
def test_decay_to_the_next_point(over, said):
    text = advice(over_decay=Estimate(*over))
    assert said in text
    others = {"branch at", "end level", "end higher", "is not known"} - {said}
    assert sum(other in text for other in others if other not in said) == 0


def test_nothing_is_said_of_a_decay_that_is_not_known():
    assert "decay" not in advice(over_decay=None)


def test_no_advice_beyond_what_was_calibrated():
    assert advice(is_calibrated=False).startswith("No advice on 4x")
