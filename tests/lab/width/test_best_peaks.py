"""Best peaks: parabolas are recovered, intervals cover, and what is given away is at the base."""

import itertools
import math

import numpy as np
import pytest

from anytime_jax.errors import InputError
from anytime_jax.lab.width import best_peaks
from anytime_jax.lab.width.best_peaks import Curve

CURVATURE = 0.04


def make_curves(best, noise=0.0, seeds=(0, 1), rng=None, steps=range(-2, 3)):
    """Returns curves of parabolas with least values at `best`, by (parametrization, width)."""
    rng = rng or np.random.default_rng(0)
    curves = []
    for (parametrization, width), at in best.items():
        middle = round(2 * at) / 2 + 0.5  # peaks are half octaves apart, and not centred
        losses = {}
        for step, seed in itertools.product(steps, seeds):
            x = middle + step / 2
            loss = 3 - 0.1 * math.log2(width) + 0.02 * seed + CURVATURE * (x - at) ** 2
            losses[x, seed] = loss + noise * rng.standard_normal()
        curves.append(Curve("adamw", parametrization, width, losses))
    return curves


BEST = {
    ("standard", 64): -7.1,
    ("standard", 128): -7.6,
    ("standard", 256): -8.1,
    ("mup", 256): -7.3,
}


def test_parabolas_are_recovered():
    fit = best_peaks.fit(make_curves(BEST))
    assert fit.curvature == pytest.approx(CURVATURE)
    assert fit.residual < 1e-6
    for best in fit.best:
        expected = BEST[best.curve.parametrization, best.curve.width]
        assert best.log_peak == pytest.approx(expected)
        assert fit.at_base_width(best).curve.width == 64
        given_away = CURVATURE * (expected - BEST["standard", 64]) ** 2
        assert fit.excess_at_base_peak(best) == pytest.approx(given_away, abs=1e-9)


def test_powers_of_the_width():
    powers = best_peaks.powers(best_peaks.fit(make_curves(BEST)))
    assert powers["standard"][0] == pytest.approx(-0.5)
    assert powers["mup"][0] == pytest.approx(-0.1)  # from the base at 64, of both


def test_intervals_cover_the_best_peak():
    """In 95% of 300 draws, up to three standard deviations of that share."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        fit = best_peaks.fit(make_curves(BEST, noise=0.002, rng=rng))
        best, t = fit.best[1], 2.03
        expected = BEST[best.curve.parametrization, best.curve.width]
        covered += abs(best.log_peak - expected) < t * best.error
    assert 0.91 < covered / 300 < 0.99


def test_peaks_beyond_an_octave_are_left_out_and_edges_are_told():
    (curve,) = make_curves({("standard", 64): -7.0}, steps=range(-6, 1))
    losses = {x: y + 0.5 * (abs(x[0] + 7) > 1.1) for x, y in curve.losses.items()}
    fit = best_peaks.fit([Curve("adamw", "standard", 64, losses)])
    assert fit.best[0].log_peak == pytest.approx(-7.0)
    assert fit.best[0].is_inside
    (curve,) = make_curves({("standard", 64): -7.0}, steps=range(1, 4))
    assert not best_peaks.fit([curve]).best[0].is_inside


def test_losses_without_a_least_value_are_refused():
    losses = {(x / 2, 0): y for x, y in zip(range(-2, 3), (0, 0.05, -0.01, 0.05, 0), strict=True)}
    with pytest.raises(InputError, match="no least value"):
        best_peaks.fit([Curve("adamw", "standard", 64, losses)])
    few = dict(list(losses.items())[:3])
    with pytest.raises(InputError, match="too few"):
        best_peaks.fit([Curve("adamw", "standard", 64, few)])
