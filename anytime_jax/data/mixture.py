"""Mixtures of sources: which source a sample comes from, as a pure function of its number.

A batch is a range of sample numbers. `Mixture` finds the source of each sample and the sample's
number within this source; `windows.Windows` finds and reads the window. A run with two stages:

1. The weights of the first stage become whole numbers. Their sum, 5, is the period of its order.

    >>> weights = whole_weights({"web": 0.6, "code": 0.4})
    >>> weights
    {'web': 3, 'code': 2}

2. Sources take turns, so that every prefix of the order has each source in its proportion.

    >>> interleave(list(weights.values()))  # 0 is web, 1 is code
    array([0, 1, 0, 1, 0], dtype=int16)

3. The first batch, samples 0 to 7: five windows of web, numbered 0 to 4, and three of code. The
   order is periodic, so sample 10^10 is found as fast as sample 7.

    >>> mixture = Mixture([DataStage(0, 128, weights), DataStage(8, 128, {"web": 1, "code": 1})])
    >>> stage, sources, indices = mixture.locate(np.arange(8))
    >>> sources.tolist(), indices.tolist()
    ([0, 1, 0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 2, 3, 2, 4])

4. The second stage, from sample 8, has equal weights. Each source goes on with its own number.

    >>> mixture.counts(8)
    {'web': 5, 'code': 3}
    >>> stage, sources, indices = mixture.locate(np.arange(8, 12))
    >>> sources.tolist(), indices.tolist()
    ([0, 1, 0, 1], [5, 3, 6, 4])

5. A source of 10 windows is read in a permutation that depends on the seed; another pass has
   another permutation. With this one, sample 8 is window 9 of web, of tokens 9 * 128 to 10 * 128.

    >>> import grain
    >>> order = grain.MapDataset.range(10).shuffle(seed=7).repeat()
    >>> [int(order[i]) for i in range(12)]
    [4, 0, 3, 7, 2, 9, 6, 8, 1, 5, 5, 3]
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from anytime_jax.checks import is_number, reject
from anytime_jax.errors import InputError

DENOMINATOR = 10_000  # weights are multiples of one over this
_SUM_TOLERANCE = 1e-6


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Returns weights as the smallest whole numbers in their proportion, of sum 10,000 at most.

    Weights are first rounded to multiples of 1/10,000, up or down, so that their sum stays 1. A
    weight of 0 stays 0.

    Raises an InputError if a weight is negative, or too small for a multiple, or if they do not sum
    to 1.

    Examples:
      >>> whole_weights({"web": 0.7, "code": 0.3})
      {'web': 7, 'code': 3}
    """
    for source, weight in weights.items():
        if not (is_number(weight) and 0 <= weight <= 1):
            reject(source, weight, "a weight from 0 to 1")
    total = math.fsum(weights.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise InputError(f"its weights sum to {total:g}: give weights that sum to 1")
    exact = {x: Fraction(w) * DENOMINATOR / Fraction(total) for x, w in weights.items()}
    whole = {x: math.floor(w) for x, w in exact.items()}
    missing = DENOMINATOR - sum(whole.values())
    for source in sorted(exact, key=lambda x: whole[x] - exact[x])[:missing]:
        whole[source] += 1
    for source, weight in weights.items():
        if weight > 0 and whole[source] == 0:
            reject(source, weight, f"a weight of at least {1 / DENOMINATOR:g}, or 0")
    divisor = math.gcd(*whole.values())
    return {source: weight // divisor for source, weight in whole.items()}


def interleave(weights: Sequence[int]) -> np.ndarray:
    """Returns an order of sources in which each has its share of every prefix: int16[sum].

    The share of source i in the first n samples is `n * weights[i] / sum`. With k sources of weight
    above 0, the number of its samples differs from the share by at most `1 - 1 / (2k - 2)`, less
    than one. After the whole order all numbers are exact, so the order can be repeated.

    Source: Tijdeman 1980, "The chairman assignment problem", Discrete Mathematics 32.
    """
    total, sources = sum(weights), [i for i, weight in enumerate(weights) if weight]
    if len(sources) == 1:
        return np.full(total, sources[0], np.int16)
    slack = 2 * len(sources) - 2
    drawn = dict.fromkeys(sources, 0)
    order = np.empty(total, np.int16)
    for n in range(total):
        # `slack * total` times what each source lacks, once there are n + 1 samples.
        lacks = {i: slack * ((n + 1) * weights[i] - total * drawn[i]) for i in sources}
        allowed = [i for i in sources if lacks[i] >= total]
        # Of those that may be next, the one that has to be next soonest.
        chosen = min(allowed, key=lambda i: Fraction((slack - 1) * total - lacks[i], weights[i]))
        drawn[chosen] += 1
        order[n] = chosen
    return order


def sample_numbers(read: np.ndarray, skip: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the numbers of the samples that are read after `read` others.

    `skip` has the first and the last number of ranges that are left out, in order.

    Examples:
      >>> sample_numbers(np.arange(5), [(1, 2), (5, 5)])
      array([0, 3, 4, 6, 7])
    """
    for first, last in skip:
        read = read + (read >= first) * (last - first + 1)
    return read


@dataclasses.dataclass(frozen=True)
class DataStage:
    """Part of a run with one mixture and one length of windows.

    Attributes:
      first: number of the first sample of the stage.
      length: L, in tokens.
      weights: whole weight of each source, as `whole_weights` returns them; a source that is not
        named is not read.
    """

    first: int
    length: int
    weights: Mapping[str, int]

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The source of each sample of a period, an index into `weights`."""
        return interleave(list(self.weights.values()))

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Samples of each source before each sample of a period, int32[period, sources]."""
        one_hot = self.order[:, None] == np.arange(len(self.weights))
        return np.cumsum(one_hot, axis=0, dtype=np.int32) - one_hot

    def count(self, samples: int) -> dict[str, int]:
        """Returns how many of the first samples of the stage come from each source."""
        periods, rest = divmod(samples, len(self.order))
        weights = self.weights.items()
        return {
            x: periods * w + int(n) for (x, w), n in zip(weights, self.counts[rest], strict=True)
        }


class Mixture:
    """Order of the samples of a run: sample number → stage, source, and index within the source.

    The index counts the samples of a source from 0, through all changes of weights. After a change
    of the length, which makes other windows of the same tokens, it starts at 0 again.

    Args:
      stages: the parts of the run in order; the first one has `first = 0`.
      skip: ranges of samples that are not read, as `sample_numbers` takes them.
    """

    def __init__(self, stages: Sequence[DataStage], skip: Sequence[tuple[int, int]] = ()):
        self.stages, self.skip = tuple(stages), tuple(skip)
        self._before: list[dict[str, int]] = [{}]  # samples of each source before each stage
        for stage, after in itertools.pairwise(self.stages):
            counts = self._add(stage, self._before[-1], after.first - stage.first)
            self._before.append(counts if after.length == stage.length else {})

    def stage_of(self, sample: int) -> int:
        """Returns the number of the stage of a sample."""
        return next(i for i, x in reversed([*enumerate(self.stages)]) if x.first <= sample)

    def locate(self, samples: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the stage of samples, and for each sample its source and its index.

        All samples are of one stage. A source is given by its position in the stage's `weights`.
        """
        number = self.stage_of(int(samples[0]))
        stage = self.stages[number]
        periods, rest = np.divmod(samples - stage.first, len(stage.order))
        sources = stage.order[rest]
        before = np.array([self._before[number].get(x, 0) for x in stage.weights])
        weights = np.array(list(stage.weights.values()))
        indices = before[sources] + periods * weights[sources] + stage.counts[rest, sources]
        return number, sources, indices

    def counts(self, sample: int, number: int | None = None) -> dict[str, int]:
        """Returns the number of windows of each source before a sample, since the last new length.

        A sample at which a stage begins counts as a sample of this stage. `number` names another
        stage, such as the one that ends there.
        """
        number = self.stage_of(sample) if number is None else number
        stage = self.stages[number]
        return self._add(stage, self._before[number], sample - stage.first)

    @staticmethod
    def _add(stage: DataStage, before: Mapping[str, int], samples: int) -> dict[str, int]:
        counts = dict(before)
        for source, count in stage.count(samples).items():
            counts[source] = counts.get(source, 0) + count
        return counts
