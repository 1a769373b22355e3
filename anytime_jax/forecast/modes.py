"""Modes of the linear model: how signal and noise fade in the live weights and in averages.

A mode is a direction in which the distance to the minimum fades at one rate. What a run does to a
mode depends on its learning rates alone, so it is computed once, and a fit weighs the modes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from anytime_jax.averaging import Rule
from anytime_jax.forecast.update_blocks import UpdateBlocks

_SPACING = 0.75 * np.log(2)  # of the logarithms of the decay rates
_FASTEST = 32.0  # e-folds in an update of the peak rate
_SHARP = 10.0  # updates of the peak rate in which sharp directions forget
_SLOWEST = 1e-3  # e-folds in the whole run


class Responses(NamedTuple):
    """What the updates of a run did to each mode, at some steps.

    The second axis is the live weights, then the averages.

    Attributes:
      decay_rates: float64[m], the rate at which a distance fades, in intrinsic time.
      signal: float64[s, 1 + a, m], square of what is left of the initial distance.
      noise: float64[s, 1 + a, m], variance of the accumulated noise.
      drift: float64[s, 1 + a], variance of the log of the intrinsic time over the average.
    """

    decay_rates: np.ndarray
    signal: np.ndarray
    noise: np.ndarray
    drift: np.ndarray


def respond(
    blocks: UpdateBlocks, steps: np.ndarray, rules: Sequence[Rule], weight_growth: float
) -> Responses:
    """Returns the responses at `steps`, int[s], which must be among the marks of the blocks."""
    shrink = blocks.shrinkage(weight_growth)
    raw = blocks.lengths * blocks.rates
    times, ends = raw * shrink, np.cumsum(raw * shrink)
    middles = ends - times / 2
    # Before the first rate above 0 the log of the time would be that of 0.
    logs = np.log(np.maximum(middles, middles[middles > 0].min(initial=ends[-1])))
    rates = _decay_rates(blocks)
    # Noise shrinks only in flat directions: along sharp ones the curvature grows as the weights do.
    flat = 1 / (1 + _SHARP * rates * blocks.rates.max())
    shrinks = shrink[:, None] ** flat  # [n, m]
    x = rates * raw[:, None] * shrinks / 2
    half = np.exp(-x)  # over half a block
    with np.errstate(invalid="ignore"):
        share = np.where(x > 0, -np.expm1(-2 * x) / (2 * x), 1.0)
    injected = share * (blocks.lengths * blocks.square_rates)[:, None] * shrinks**2 / 2
    middle = np.exp(-rates * middles[:, None])
    keep = _kept(blocks, rules)  # [n, a]
    live = np.zeros(len(rates))
    distance = np.ones((len(rules), len(rates)))
    covariance, variance = np.zeros((2, len(rules), len(rates)))
    mean, square = np.full(len(rules), logs[0]), np.full(len(rules), logs[0] ** 2)
    wanted = blocks.index(steps)
    saved: dict[int, tuple[np.ndarray, ...]] = dict.fromkeys(wanted.tolist(), ())
    for i in range(len(times)):
        decay, fresh = half[i], injected[i]
        live = decay**2 * live + fresh
        if rules:  # they average the iterate in the middle of the block
            old, new = keep[i, :, None], 1 - keep[i, :, None]
            covariance = decay * covariance
            variance = old**2 * variance + 2 * old * new * covariance + new**2 * live
            covariance = decay * (old * covariance + new * live)
            distance = old * distance + new * middle[i]
            mean = keep[i] * mean + (1 - keep[i]) * logs[i]
            square = keep[i] * square + (1 - keep[i]) * logs[i] ** 2
        live = decay**2 * live + fresh
        if i in saved:
            last = np.exp(-rates * ends[i])
            saved[i] = (
                np.vstack([last, distance]) ** 2,
                np.vstack([live, variance]),
                np.concatenate([[0.0], np.maximum(square - mean**2, 0.0)]),
            )
    signal, noise, drift = (
        np.stack([saved[i][part] for i in wanted.tolist()]) for part in range(3)
    )
    return Responses(rates, signal, noise, drift)


def power_weights(decay_rates: np.ndarray, exponent: float, time: float) -> np.ndarray:
    """Returns weights of the squares of the modes that sum to `(T + time)^-exponent`: [m]."""
    rate = 2 * decay_rates
    with np.errstate(under="ignore"):
        weights = np.exp(exponent * np.log(rate) - rate * time) * _SPACING
    weights[0] += (rate[0] * np.exp(-_SPACING / 2)) ** exponent / exponent  # of slower ones
    return weights / special.gamma(exponent)


def kernel_weights(decay_rates: np.ndarray, exponent: float, rate: float) -> np.ndarray:
    """Returns weights of the squares of the modes that sum to `(1 + rate * T)^-exponent`: [m]."""
    z = 2 * decay_rates / rate
    weights = np.exp(exponent * np.log(z) - z - special.gammaln(exponent)) * _SPACING
    weights[0] += special.gammainc(exponent, z[0] * np.exp(-_SPACING / 2))
    weights[-1] += special.gammaincc(exponent, z[-1] * np.exp(_SPACING / 2))
    return weights


def _decay_rates(blocks: UpdateBlocks) -> np.ndarray:
    peak = blocks.rates.max()
    span = np.log(_FASTEST / _SLOWEST * blocks.lengths.sum())
    return _FASTEST / peak * np.exp(-_SPACING * np.arange(int(span / _SPACING) + 1)[::-1])


def _kept(blocks: UpdateBlocks, rules: Sequence[Rule]) -> np.ndarray:
    """The share of the old average that is left after each block: [n, a]."""
    fractions = (np.arange(8) + 0.5) / 8
    starts = blocks.ends - blocks.lengths
    counts = starts[:, None] + np.floor(blocks.lengths[:, None] * fractions) + 1
    kept = np.empty((len(counts), len(rules)))
    with np.errstate(divide="ignore"):
        for i, rule in enumerate(rules):
            logs = np.log1p(-np.minimum(rule.evaluate(counts), 1.0)).mean(1)
            kept[:, i] = np.exp(blocks.lengths * logs)
    return kept
