"""Selection of settings: the cosine envelope, the closest curve, the best curve at each budget.

The paper selects with the weights that it reports: an average for horizon-free runs, the live
weights for runs that decay. Only the study's first seed selects; the other seeds of the selected
settings estimate the noise.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from anytime_lab.study import paper_losses
from anytime_lab.study.results import COSINE, LOSS, LossCurve, Results

Selection = Mapping[float, LossCurve]  # the curve selected at each multiple
MARGIN = 0.01  # nats: a smaller difference does not matter
EDGE = "‡"  # marks the least or largest value that was tried
GAP_TEXT = (  # what the text of a gap means
    "± half the 95% interval by Student's t over the seeds, or over the sets, whichever is wider. "
    f"*Better* and *worse*: the whole interval is beyond {MARGIN:g}; *equal*: it is within."
)


class Gap(NamedTuple):
    """Difference to the cosine envelope at one multiple, in nats.

    Attributes:
      mean: over seeds, and over the reported sets.
      stderr: standard error of `mean` over seeds; 0 with one seed.
      others: mean over the seeds that did not select, whose bias is low; NaN without any.
      seeds: number of seeds.
      stderr_of_sets: standard error of `mean` over the reported sets, by the bootstrap; 0 with one.
      sets: number of reported sets, 1 if there are none.
    """

    mean: float
    stderr: float
    others: float
    seeds: int
    stderr_of_sets: float = 0.0
    sets: int = 1

    @property
    def reported_seeds(self) -> int:
        """The number of seeds; with reported sets, of those that did not select."""
        return 0 if self.sets > 1 and math.isnan(self.others) else self.seeds

    @property
    def power(self) -> float:
        """The probability that a two-sided t test at 5% finds a true difference of `MARGIN`.

        By the standard error of which `half_width` is made; NaN without one.
        """
        half_width, freedom = self._interval
        if not half_width > 0:
            return math.nan
        edge = special.stdtrit(freedom, 0.975)
        shift = MARGIN / half_width * edge
        # The square of a noncentral t is a noncentral F, whose distribution is exact at all shifts.
        return float(1 - special.ncfdtr(1, freedom, shift**2, edge**2))

    @property
    def decision(self) -> str:
        """What the 95% interval says of `MARGIN`: "better", "worse", "equal" or "open".

        All of it is below -`MARGIN`, above `MARGIN`, or between the two; or none of these.
        """
        low, high = self.mean - self.half_width, self.mean + self.half_width
        if low > -MARGIN and high < MARGIN:
            return "equal"
        return "better" if high < -MARGIN else "worse" if low > MARGIN else "open"

    def __str__(self) -> str:
        """The mean, with the interval and the decision if there are several seeds."""
        if math.isnan(self.mean):
            return "diverged"
        if self.seeds < 2:
            return f"{self.mean:+.4f}"
        decision = "" if self.decision == "open" else f", {self.decision}"
        return f"{self.mean:+.4f} ± {self.half_width:.4f}{decision}"

    @property
    def half_width(self) -> float:
        """Half the width of the 95% interval over seeds or over sets, whichever is larger.

        By Student's t; NaN with one seed.
        """
        return self._interval[0]

    @property
    def _interval(self) -> tuple[float, int]:
        """`half_width`, and the degrees of freedom of its Student's t."""
        if self.seeds < 2:
            return math.nan, 0
        widths = [(float(special.stdtrit(self.seeds - 1, 0.975) * self.stderr), self.seeds - 1)]
        if self.sets > 1:
            over_sets = special.stdtrit(self.sets - 1, 0.975) * self.stderr_of_sets
            widths.append((float(over_sets), self.sets - 1))
        return max(widths)


class Selections(NamedTuple):
    """Selected curves of a study; kinds without curves are left out.

    Attributes:
      cosines: the envelope: the best cosine of each horizon.
      best: for every kind, the best curve at each multiple of the envelope.
      single: the main comparison (Section 4 of the paper, "Training and evaluation details"): the
        one curve closest to the envelope of a horizon-free kind, otherwise as `best`.
    """

    cosines: Selection
    best: Mapping[str, Selection]
    single: Mapping[str, Selection]


def select(results: Results) -> Selections:
    """Selects the curves that a report shows."""
    cosines = best_at_each(results.comparable_curves(COSINE), results.multiples)
    best: dict[str, Selection] = {}
    single: dict[str, Selection] = {}
    for kind in dict.fromkeys([*paper_losses.KINDS, *(curve.kind for curve in results.all_curves)]):
        curves = results.comparable_curves(kind)
        best[kind] = single[kind] = best_at_each(curves, cosines)
        if curves and not curves[0].has_horizon:
            curve = closest(curves, cosines)
            single[kind] = dict.fromkeys(differences(curve, cosines), curve) if curve else {}
    best = {kind: selection for kind, selection in best.items() if selection}
    single = {kind: selection for kind, selection in single.items() if selection}
    return Selections(cosines, best, single)


def best_at_each(curves: Sequence[LossCurve], multiples: Iterable[float]) -> dict[float, LossCurve]:
    """Returns the curve with the lowest loss at each multiple at which any was evaluated."""
    best = {m: best_at(curves, m) for m in multiples}
    return {m: curve for m, curve in best.items() if curve is not None}


def best_at(curves: Sequence[LossCurve], multiple: float) -> LossCurve | None:
    """Returns the curve with the lowest loss at a multiple; None if none was evaluated there."""
    evaluated = [curve for curve in curves if multiple in curve.losses]
    # A run that diverged has no number for a loss.
    return min(
        evaluated, key=lambda x: (math.isnan(x.losses[multiple]), x.losses[multiple]), default=None
    )


def losses_of(selection: Selection) -> dict[float, float]:
    """Returns the loss of the selected curve at each multiple, in nats."""
    return {m: curve.losses[m] for m, curve in selection.items()}


def differences(curve: LossCurve, cosines: Selection) -> dict[float, float]:
    """Returns the losses of a curve minus the envelope's, in nats, by multiple."""
    return {m: x - cosines[m].losses[m] for m, x in curve.losses.items() if m in cosines}


def closest(
    curves: Sequence[LossCurve],
    cosines: Selection,
    summarize: Callable[[Iterable[float]], float] = statistics.fmean,
) -> LossCurve | None:
    """Returns the curve with the least mean difference to the envelope.

    Only curves that are to reach the end of the envelope take part, at the multiples that all of
    them have (`common_multiples`). With `summarize=max`, the largest difference is the least.

    Source: Section 4 and Table 2 of the paper.
    """
    common = common_multiples(curves, cosines)
    if not common:
        return None
    gaps = {curve: differences(curve, cosines) for curve in _long_curves(curves, cosines)}
    worth = {curve: summarize(gaps[curve][m] for m in common) for curve in gaps}
    return min(worth, key=lambda curve: (math.isnan(worth[curve]), worth[curve]))


def common_multiples(curves: Sequence[LossCurve], cosines: Selection) -> list[float]:
    """Returns the multiples of the envelope at which all curves that take part have a loss."""
    each = [set(differences(curve, cosines)) for curve in _long_curves(curves, cosines)]
    return sorted(set.intersection(*each)) if each else []


def _long_curves(curves: Sequence[LossCurve], cosines: Selection) -> list[LossCurve]:
    """The curves that are to reach the end of the envelope; all of them if none is."""
    return [x for x in curves if cosines and x.stop >= max(cosines)] or list(curves)


def gap_at(
    results: Results, curve: LossCurve, multiple: float, cosines: Selection, metric: str = LOSS
) -> Gap:
    """Returns the difference of a curve to the envelope at a multiple, with its noise.

    The envelope of another seed has the settings that the first seed selected. The `metric` is that
    of `LossCurve.reported_losses`.
    """
    ours, theirs = (
        losses_by_seed(results, x, multiple, metric) for x in (curve, cosines[multiple])
    )
    reported = reported_seeds(results, curve, [seed for seed in ours if seed in theirs])
    each = np.array([ours[seed] - theirs[seed] for seed in reported])
    return gap_of(
        each, None if results.every_seed_is_fresh else [seed != curve.seed for seed in reported]
    )


def gap_of(differences: np.ndarray, is_fresh: Sequence[bool] | None = None) -> Gap:
    """Returns the gap of differences, float64[seeds, sets].

    `is_fresh` says of each seed whether it did not select; by default none did.
    """
    seeds, sets = differences.shape
    of_seed = differences.mean(axis=1)
    fresh = of_seed if is_fresh is None else of_seed[np.array(is_fresh)]
    return Gap(
        float(of_seed.mean()),
        float(of_seed.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0,
        float(fresh.mean()) if fresh.size else math.nan,
        seeds,
        _bootstrap_error(differences.mean(axis=0)),
        sets,
    )


def reported_seeds(
    results: Results, curve: LossCurve, seeds: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, int]]:
    """Returns the seeds that are reported: if other sets select, not the one that selected.

    It is left in if there is no other.
    """
    fresh = [x for x in seeds if x != curve.seed]
    return fresh if results.selects_elsewhere and fresh else seeds


def losses_by_seed(
    results: Results, curve: LossCurve, multiple: float, metric: str = LOSS
) -> dict[tuple[int, int], np.ndarray]:
    """Returns the losses of a choice of settings on each reported set, by seed."""
    replicates = [x for x in results.replicates(curve) if multiple in x.losses]
    return {x.seed: x.reported_losses(multiple, metric) for x in replicates}


def _bootstrap_error(values: np.ndarray) -> float:
    """The standard error of the mean of values that are drawn again, with replacement."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0 if len(values) < 2 else math.nan
    result = stats.bootstrap((values,), np.mean, n_resamples=2_000, method="percentile", rng=0)
    # Drawn from the values themselves, means vary too little by this factor.
    return float(result.standard_error) * math.sqrt(len(values) / (len(values) - 1))


def at_grid_edge(results: Results, curve: LossCurve, multiples: Sequence[float]) -> list[str]:
    """Returns the settings of a curve that are the least or largest value tried.

    It compares the curves that differ in that setting alone and have a loss at all `multiples`; a
    setting with one value is at no edge.
    """
    curves = [x for x in results.alternatives(curve) if x.losses.keys() >= set(multiples)]
    edges = []
    for name, value in curve.settings.items():
        tried = {x.settings[name] for x in curves if x.differs_in(curve) <= {name}}
        if isinstance(value, float) and len(tried) > 1 and value in (min(tried), max(tried)):
            edges.append(name)
    return edges
