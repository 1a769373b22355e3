"""Modes of the linear model: how signal and noise fade in the live weights and in averages.

A mode is a direction in which the distance to the minimum fades at one rate. The effect of a run on
a mode depends on its learning rates alone, so it is computed once; a fit only weighs the modes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from anytime_jax.averaging import Rule
from anytime_lab.forecast.update_blocks import UpdateBlocks, sample_counts

_SPACING = 0.75 * np.log(2)  # spacing of the logarithms of the decay rates
_FASTEST = 32.0  # e-folds in an update of the peak rate
_SHARP = 10.0  # updates of the peak rate in which sharp directions forget
_SLOWEST = 1e-3  # e-folds in the whole run
_CHUNK = 64  # blocks whose noise is computed at once
_LEAST = 1e-100  # e-folds in an update
_ALIKE = 1e-4  # relative difference of two fading rates that a closed form tells apart


class Responses(NamedTuple):
    """What the updates of a run did to each mode, at some steps.

    The first axis is the growth of the weights; the third is the live weights, then the averages.

    Attributes:
      decay_rates: float64[m], the rate at which a distance fades, in intrinsic time.
      signal: float64[g, s, 1 + a, m], square of what is left of the initial distance.
      noise: float64[g, s, 1 + a, m], variance of the accumulated noise.
      drift: float64[g, s, 1 + a], variance of the log of the intrinsic time over the average.
    """

    decay_rates: np.ndarray
    signal: np.ndarray
    noise: np.ndarray
    drift: np.ndarray


def respond(
    blocks: UpdateBlocks, steps: np.ndarray, rules: Sequence[Rule], weight_growths: np.ndarray
) -> Responses:
    """Returns the responses at `steps`, int[s], which must be among the marks of the blocks.

    There is one for each of the `weight_growths`, float64[g].
    """
    shrink = blocks.shrinkage(weight_growths[:, None]).T  # [n, g]
    times = (blocks.lengths * blocks.rates)[:, None] * shrink
    ends = np.cumsum(times, axis=0)
    middles = ends - times / 2
    # Before the first rate above 0, the time is 0 and has no logarithm.
    logs = np.log(np.maximum(middles, middles[np.argmax(blocks.rates > 0)]))
    rates = _decay_rates(blocks)
    forgetting = _forgetting(blocks, rules)
    kept = np.exp(-blocks.lengths[:, None] * forgetting)  # [n, a]
    live = np.zeros((len(weight_growths), len(rates)))
    distance = np.ones((len(weight_growths), len(rules), len(rates)))
    covariance, variance = np.zeros((2, *distance.shape))
    mean = np.repeat(logs[0][:, None], len(rules), axis=1)
    square = mean**2
    wanted = blocks.index(steps)
    saved: dict[int, tuple[np.ndarray, ...]] = dict.fromkeys(wanted.tolist(), ())
    noises = _block_noises(blocks, rates, shrink, forgetting)
    for i, (decay, fresh, (passed, with_live, alone)) in enumerate(noises):
        if rules:
            old = kept[i, :, None]
            before, middle = live[:, None], np.exp(-rates * middles[i, :, None])[:, None]
            variance = old**2 * variance + passed * (2 * old * covariance + passed * before) + alone
            covariance = decay[:, None] * (old * covariance + passed * before) + with_live
            distance = old * distance + (1 - old) * middle
            mean = kept[i] * mean + (1 - kept[i]) * logs[i][:, None]
            square = kept[i] * square + (1 - kept[i]) * logs[i][:, None] ** 2
        live = decay**2 * live + fresh
        if i in saved:
            last = np.exp(-rates * ends[i, :, None])
            drift = np.maximum(square - mean**2, 0.0)
            saved[i] = (
                np.concatenate([last[:, None], distance], 1) ** 2,
                np.concatenate([live[:, None], variance], 1),
                np.concatenate([np.zeros((len(drift), 1)), drift], 1),
            )
    parts = (np.stack([saved[i][part] for i in wanted.tolist()], 1) for part in range(3))
    return Responses(rates, *parts)


def power_weights(decay_rates: np.ndarray, exponent: float, time: float) -> np.ndarray:
    """Returns w with `sum_m w_m exp(-2 rate_m T) = (T + time)^-exponent`: float64[m]."""
    rate = 2 * decay_rates
    with np.errstate(under="ignore"):
        weights = np.exp(exponent * np.log(rate) - rate * time) * _SPACING
    # The slowest mode stands for all slower ones.
    weights[0] += (rate[0] * np.exp(-_SPACING / 2)) ** exponent / exponent
    return weights / special.gamma(exponent)


def kernel_weights(decay_rates: np.ndarray, exponent: float, rate: float) -> np.ndarray:
    """Returns w with `sum_m w_m exp(-2 rate_m T) = (1 + rate * T)^-exponent`: float64[m]."""
    z = 2 * decay_rates / rate
    weights = np.exp(exponent * np.log(z) - z - special.gammaln(exponent)) * _SPACING
    weights[0] += special.gammainc(exponent, z[0] * np.exp(-_SPACING / 2))
    weights[-1] += special.gammaincc(exponent, z[-1] * np.exp(_SPACING / 2))
    return weights


def _decay_rates(blocks: UpdateBlocks) -> np.ndarray:
    peak = blocks.rates.max()
    span = np.log(_FASTEST / _SLOWEST * blocks.lengths.sum())
    return _FASTEST / peak * np.exp(-_SPACING * np.arange(int(span / _SPACING) + 1)[::-1])


def _block_noises(
    blocks: UpdateBlocks, rates: np.ndarray, shrink: np.ndarray, forgetting: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields `_block_noise` of one block after another: [g, m], [g, m], [3, g, a, m]."""
    for begin in range(0, len(blocks.ends), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        left, new, averaged = _block_noise(blocks, chunk, rates, shrink, forgetting)
        yield from zip(left, new, averaged.swapaxes(0, 1), strict=True)


def _block_noise(
    blocks: UpdateBlocks,
    chunk: slice,
    rates: np.ndarray,
    shrink: np.ndarray,
    forgetting: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the effect of c blocks on the noise in each mode, summed in closed form.

    With d, r the shares of a deviation and of an average that an update leaves, an average gets
    (1 - r) sum_{j<=m} r^(m-j) d^j of the noise of an update m updates ago.

    Returns the share of a deviation that is left, [c, g, m]; the new variance, [c, g, m]; and of
    the averages, [3, c, g, a, m], the share of a deviation before the block that enters, and the
    new noise in their covariance with the live weights and in their variance.
    """
    # Noise shrinks only in flat directions: in sharp ones the curvature grows with the weights.
    flat = 1 / (1 + _SHARP * rates * blocks.rates.max())
    shrinks = shrink[chunk, :, None] ** flat
    lengths, of_update, squares = (
        x[chunk, None, None] for x in (blocks.lengths, blocks.rates, blocks.square_rates)
    )
    fading = np.maximum(rates * of_update * shrinks, _LEAST)  # e-folds in an update
    new = squares * shrinks**2 * -np.expm1(-2 * fading) / (2 * fading)
    averaged = np.empty((3, *fading.shape[:2], forgetting.shape[1], len(rates)))
    for i, forget in enumerate(forgetting[chunk].T):
        of_average = forget[:, None, None]
        # The closed form divides by d - r: if they are nearly equal, the mode is made to fade
        # faster.
        alike = np.abs(fading - of_average) < _ALIKE * of_average
        of_mode = np.where(alike, (1 + _ALIKE) * of_average, fading)
        d, r = np.exp(-of_mode), np.exp(-of_average)
        share = -np.expm1(-of_average) / (d - r)
        own, both = _sum_powers(2 * of_mode, lengths), _sum_powers(of_mode + of_average, lengths)
        left = np.exp(-lengths * of_mode) - np.exp(-lengths * of_average)
        averaged[0, :, :, i] = share * d * left
        averaged[1, :, :, i] = new * share * (d * own - r * both)
        sums = d**2 * own - 2 * d * r * both + r**2 * _sum_powers(2 * of_average, lengths)
        averaged[2, :, :, i] = new * share**2 * sums
    return np.exp(-lengths * fading), new * _sum_powers(2 * fading, lengths), averaged


def _sum_powers(fading: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The sum of `exp(-fading * i)` over i from 0 to below the length."""
    return np.expm1(-lengths * fading) / np.expm1(-fading)


def _forgetting(blocks: UpdateBlocks, rules: Sequence[Rule]) -> np.ndarray:
    """The mean e-folds by which an update shrinks the old average, in each block: [n, a]."""
    counts = sample_counts(blocks.ends) + 1
    forgetting = np.empty((len(counts), len(rules)))
    with np.errstate(divide="ignore"):
        for i, rule in enumerate(rules):
            forgetting[:, i] = -np.log1p(-np.minimum(rule.evaluate(counts), 1.0)).mean(1)
    return forgetting
