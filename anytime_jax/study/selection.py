"""Selection of settings: the cosine envelope, the curve closest to it, the best at each budget.

The paper selects with the weights that it reports: an average for horizon-free runs, the live
weights for runs that decay. Only the study's first seed selects; the other seeds of the selected
settings estimate the noise.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from anytime_jax.averaging import LIVE
from anytime_jax.study.results import COSINE, HORIZON_FREE, LossCurve, Results

Selection = Mapping[float, LossCurve]  # the curve selected at each multiple


@dataclasses.dataclass(frozen=True)
class Gap:
    """Difference to the cosine envelope at one multiple, in nats.

    Attributes:
      first: with the seed that selected; biased low by the selection.
      others: mean over the other seeds; NaN without any.
      mean: over all seeds.
      stderr: standard error of `mean`; NaN with one seed.
      seeds: number of seeds.
    """

    first: float
    others: float
    mean: float
    stderr: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class Selections:
    """Selected curves of a study; a kind without any is left out.

    Attributes:
      cosines: the envelope.
      best: for every other kind, the best curve at each multiple of the envelope.
      single: the main comparison (Section 4 of the paper, "Training and evaluation details"): the
        one curve closest to the envelope of a horizon-free kind, otherwise as `best`.
    """

    cosines: Selection
    best: Mapping[str, Selection]
    single: Mapping[str, Selection]


def select(results: Results) -> Selections:
    """Selects the curves that a report shows."""
    cosines = envelope(results)
    best, single = {}, {}
    for kind in [kind for kind in results.kinds if kind != COSINE]:
        curves, label = results.curves(kind), results.label(kind)
        best[kind] = single[kind] = _best_at_each(curves, cosines, label)
        if kind in HORIZON_FREE:
            curve = closest(curves, label, cosines)
            single[kind] = dict.fromkeys(differences(curve, label, cosines), curve) if curve else {}
    return Selections(
        cosines,
        {kind: selection for kind, selection in best.items() if selection},
        {kind: selection for kind, selection in single.items() if selection},
    )


def envelope(results: Results) -> dict[float, LossCurve]:
    """Returns the best cosine of each horizon, by its live weights."""
    return _best_at_each(results.curves(COSINE), results.multiples, LIVE)


def _best_at_each(
    curves: Sequence[LossCurve], multiples: Iterable[float], label: str
) -> dict[float, LossCurve]:
    best = {m: best_at(curves, m, label) for m in multiples}
    return {m: curve for m, curve in best.items() if curve is not None}


def best_at(curves: Sequence[LossCurve], multiple: float, label: str) -> LossCurve | None:
    """Returns the curve with the lowest loss at a multiple; None if none was evaluated there."""
    evaluated = [curve for curve in curves if multiple in curve.of(label)]
    return min(evaluated, key=lambda curve: curve.of(label)[multiple], default=None)


def losses_of(selection: Selection, label: str) -> dict[float, float]:
    """Returns the loss of the selected curve at each multiple, in nats."""
    return {m: curve.of(label)[m] for m, curve in selection.items()}


def differences(curve: LossCurve, label: str, cosines: Selection) -> dict[float, float]:
    """Returns the losses of a curve minus those of the envelope, in nats, by multiple."""
    return {m: x - cosines[m].of(LIVE)[m] for m, x in curve.of(label).items() if m in cosines}


def closest(curves: Sequence[LossCurve], label: str, cosines: Selection) -> LossCurve | None:
    """Returns the curve with the least mean difference to the envelope.

    Only curves that are to reach the end of the envelope take part, at the multiples that all of
    them have (`common_multiples`).

    Source: Section 4 and Table 2 of the paper.
    """
    common = common_multiples(curves, label, cosines)
    if not common:
        return None

    def mean_difference(curve: LossCurve) -> float:
        gaps = differences(curve, label, cosines)
        return statistics.fmean(gaps[m] for m in common)

    return min(_long_curves(curves, cosines), key=mean_difference)


def common_multiples(curves: Sequence[LossCurve], label: str, cosines: Selection) -> list[float]:
    """Returns the multiples of the envelope at which all curves that take part have a loss."""
    each = [set(differences(curve, label, cosines)) for curve in _long_curves(curves, cosines)]
    return sorted(set.intersection(*each)) if each else []


def _long_curves(curves: Sequence[LossCurve], cosines: Selection) -> list[LossCurve]:
    """The curves that are to reach the end of the envelope; all of them if none is."""
    return [x for x in curves if cosines and x.stop >= max(cosines)] or list(curves)


def gaps(results: Results, curve: LossCurve, label: str, cosines: Selection) -> dict[float, Gap]:
    """Returns the differences of a curve to the envelope, with their noise over seeds.

    The envelope of another seed has the settings that the first seed selected.
    """
    by_multiple: dict[float, Gap] = {}
    for m, first in differences(curve, label, cosines).items():
        envelope_of = {x.seed: x.of(LIVE) for x in results.replicates(cosines[m])}
        each = [
            x.of(label)[m] - envelope_of[x.seed][m]
            for x in results.replicates(curve)
            if m in x.of(label) and m in envelope_of.get(x.seed, {})
        ]
        several = len(each) > 1
        others = statistics.fmean(each[1:]) if several else math.nan
        stderr = statistics.stdev(each) / math.sqrt(len(each)) if several else math.nan
        by_multiple[m] = Gap(first, others, statistics.fmean(each), stderr, len(each))
    return by_multiple


def at_grid_edge(
    results: Results, curve: LossCurve, label: str, multiples: Sequence[float]
) -> list[str]:
    """Returns the settings of a curve that are the least or largest value tried.

    Compared are the curves that differ in that setting alone and have a loss at all `multiples`; a
    setting with one value is at no edge.
    """
    curves = [x for x in results.curves(curve.kind) if set(multiples) <= x.of(label).keys()]
    edges = []
    for name, value in curve.settings.items():
        tried = {x.settings[name] for x in curves if x.differs_in(curve) <= {name}}
        if isinstance(value, float) and len(tried) > 1 and value in (min(tried), max(tried)):
            edges.append(name)
    return edges
