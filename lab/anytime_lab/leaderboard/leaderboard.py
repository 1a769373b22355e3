"""Leaderboard of a study: every optimizer, schedule and read-out against the tuned cosine.

An entry is an optimizer, a schedule and the weights that are read out. Everything else that varies
(peak, alpha, warmup, ...) is tuned with the first seed: an entry without a horizon is one
trajectory, the one whose largest gap to the reference is least; an entry with a horizon has the
best settings at each multiple. Where no seed selects, no warmup is tuned: each is an entry.
The reference is the study's first kind of cosine, tuned at each multiple and read out through the
live weights.
"""

import dataclasses
import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.run_config import Config
from anytime_jax.config.run_settings import OPTIMIZERS, all_settings
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training import state_memory, step
from anytime_lab.schedule_styles import schedule_name
from anytime_lab.study.results import COSINE, NOTE, LossCurve, Results, describe
from anytime_lab.study.selection import (
    EDGE,
    Gap,
    Selection,
    at_grid_edge,
    best_at_each,
    closest,
    gap_at,
    losses_by_seed,
    reported_seeds,
)

ADAMW = "adamw"


class Entry(NamedTuple):
    """Names of an optimizer, a schedule and the weights that are read out."""

    optimizer: str
    schedule: str
    read_out: str

    @property
    def method(self) -> tuple[str, str]:
        """The entry without its read-out."""
        return self.optimizer, self.schedule


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
    """An entry at the settings that were selected, or at others that were tried.

    Attributes:
      settings: the tuned settings, for each multiple if they differ; with `EDGE` if selected from
        the edge of those tried.
      selected: whether these are the entry's settings; False if none was trained to the end.
      tried: settings tried for the entry.
      multiples: multiples of the reference.
      gaps: differences to the reference at multiples with a loss.
      average_gaps: differences to the tuned cosine read out through its average.
      own_gaps: differences to the tuned cosine of the same optimizer, read out alike: through its
        live weights, or through its average.
      position_gaps: those of `gaps` at the last multiple by range of positions, if selected.
      is_primary: whether the entry is read out as its method is meant to be: through the study's
        average, live at a horizon, or through what the optimizer itself evaluates.
      fraction: tokens to the reference's last loss, over the reference's tokens; infinite if the
        entry was trained as long and did not reach it, NaN if it was not trained as long.
      copies: copies of the weights, without the parameters and the gradient.
      time: time of an update relative to AdamW; None if it was not measured.
    """

    entry: Entry
    settings: str
    selected: bool
    tried: int
    multiples: Sequence[float]
    gaps: Mapping[float, Gap]
    average_gaps: Mapping[float, Gap]
    own_gaps: Mapping[float, Gap]
    position_gaps: Mapping[str, Gap]
    is_primary: bool
    fraction: float
    copies: float
    time: float | None

    @property
    def seeds(self) -> int:
        """Seeds of the gap with the fewest: 0 if the seed that selected is the only one."""
        return min(gap.reported_seeds for gap in self.gaps.values())

    @property
    def worst(self) -> float:
        """The largest mean gap; NaN unless there is one at every multiple."""
        return self._summarize(max, self.gaps)

    @property
    def mean(self) -> float:
        """The mean of the gaps; NaN unless there is one at every multiple."""
        return self._summarize(statistics.fmean, self.gaps)

    @property
    def worst_to_average(self) -> float:
        """`worst` relative to the tuned cosine read out through its average."""
        return self._summarize(max, self.average_gaps)

    @property
    def worst_to_own(self) -> float:
        """`worst` relative to the same optimizer's tuned cosine read out alike; NaN without one."""
        return self._summarize(max, self.own_gaps)

    def _summarize(
        self, summarize: Callable[[list[float]], float], gaps: Mapping[float, Gap]
    ) -> float:
        complete = gaps.keys() >= {*self.multiples}
        return summarize([gaps[m].mean for m in self.multiples]) if complete else math.nan


class Leaderboard(NamedTuple):
    """Standings of a study, sorted by their largest gap.

    Attributes:
      reference: the tuned cosine, and `average_reference` the one read out through its average.
      primary: entries that are read out as their method is meant to be. Those without a seed that
        did not select come last, here and in the others.
      rest: other read-outs, and entries without settings that were trained to the end.
      not_selected: other settings that were tried.
    """

    reference: Entry
    average_reference: Entry
    multiples: Sequence[float]
    primary: Sequence[Standing]
    rest: Sequence[Standing]
    not_selected: Sequence[Standing]


def make(results: Results, update_times: Mapping[str, float] | None = None) -> Leaderboard:
    """Ranks the entries of a study.

    Args:
      results: results of the study; their `average` is the second reference's read-out.
      update_times: time of an update relative to AdamW, by optimizer (`optimizer_name`).

    Raises:
      InputError: for a study without cosines.
    """
    reference = _Reference(results, update_times or {})
    standings = [x for family in _families(results) for x in reference.standings(family)]
    standings.sort(key=lambda x: (math.isnan(x.worst), x.seeds == 0, x.worst, x.mean))
    selected = [x for x in standings if x.selected]
    reached = {x.entry for x in selected}
    rest = [x for x in selected if not x.is_primary]
    others = [x for x in standings if not x.selected]
    for entry in dict.fromkeys(x.entry for x in others if x.entry not in reached):
        rest.append(_furthest([x for x in others if x.entry == entry]))
    return Leaderboard(
        reference.entry,
        reference.entry._replace(read_out=results.average),
        reference.multiples,
        [x for x in selected if x.is_primary],
        rest,
        [x for x in others if x not in rest],
    )


def optimizer_name(optimizer: Any, common: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns the kind of an optimizer, with its switches that are on and the words it changes.

    Settings in `common`, which all optimizers of a study have, are left out.

    The class `package.module:EMANesterov` is called `ema_nesterov`, or `ema_nesterov_muon` if its
    method of the matrices is Muon.
    """
    settings = OPTIMIZERS.to_dict(optimizer)
    name = settings.pop("kind").rpartition(":")[2]
    name = re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", name).lower()
    name += "_muon" * (settings.pop("matrices", "") == "muon")
    settings = {k: x for k, x in settings.items() if common.get(k) != x}
    switches = [k for k, x in settings.items() if x is True]
    defaults = {field.name: field.default for field in dataclasses.fields(optimizer)}
    words = {k: x for k, x in settings.items() if isinstance(x, str) and x != defaults[k]}
    return ", ".join([name, *switches, *([describe(words)] if words else [])])


def crossing(losses: Mapping[float, float], target: float) -> float:
    """Returns the first multiple at which losses reach a target; infinite if they do not.

    Between evaluations, the loss is linear in the log of the tokens.
    """
    points = sorted(losses.items())
    if points[0][1] <= target:
        return points[0][0]
    for (before, above), (after, below) in itertools.pairwise(points):
        if below <= target:
            return before * (after / before) ** ((above - target) / (above - below))
    return math.inf


def _families(results: Results, *kinds: str) -> list[list[LossCurve]]:
    """The first seed's curves of some kinds, or of all, grouped by variant.

    Where no seed selects, each warmup has a group of its own.
    """
    families: dict[Any, list[LossCurve]] = {}
    for family in results.families(*kinds or dict.fromkeys(run.kind for run in results.runs)):
        for curve in family:
            key = curve.kind, *curve.variant.items(), _warmup(results, curve)
            families.setdefault(key, []).append(curve)
    return list(families.values())


def _warmup(results: Results, curve: LossCurve) -> Any:
    """The warmup of a curve if it varies and no seed selects."""
    return curve.settings.get("warmup") if results.every_seed_is_fresh else None


def _furthest(standings: Sequence[Standing]) -> Standing:
    """The standing with the least gap at the largest multiple that any of them has."""
    return min(standings, key=lambda x: (-max(x.gaps), x.gaps[max(x.gaps)].mean))


class _Reference:
    """The tuned cosine, and the standings of entries relative to it."""

    def __init__(self, results: Results, update_times: Mapping[str, float]):
        self._results, self._update_times = results, update_times
        self._copies: dict[Any, float] = {}  # by optimizer
        cosines = next(iter(_families(results, COSINE)), [])
        averaged = [x.read_through(results.average) for x in cosines]
        self._cosines = best_at_each(cosines, results.multiples)
        self._averaged = best_at_each(averaged, results.multiples)
        if not self._cosines:
            raise InputError(
                f"study {results.study.name}: no cosine was evaluated at its horizon yet, and gaps "
                "of a leaderboard are differences to the tuned cosine: train them first"
            )
        self.multiples = list(self._cosines)
        self.entry = _entry(results, cosines, LIVE)
        # The cosines of an optimizer with its first floor, by its name and whether averaged.
        self._own: dict[tuple[str, bool], Selection] = {}
        for family in _families(results, COSINE):
            optimizer = _entry(results, family, LIVE).optimizer
            averaged = [x.read_through(results.average) for x in family]
            for is_average, curves in ((False, family), (True, averaged)):
                best = best_at_each(curves, self.multiples)
                self._own.setdefault((optimizer, is_average), best)

    def standings(self, family: Sequence[LossCurve]) -> list[Standing]:
        """Returns the standings of every read-out of comparable curves."""
        standings = []
        for label in self._results.labels:
            curves = [x.read_through(label) for x in family]
            curves = [x for x in curves if x.losses.keys() & {*self.multiples}]
            if curves:
                entry = _entry(self._results, family, label)
                standings += self._standings_of(entry, curves, len(family))
        return standings

    def _standings_of(
        self, entry: Entry, curves: Sequence[LossCurve], tried: int
    ) -> list[Standing]:
        names = [*dict.fromkeys(name for x in curves for name in x.settings)]
        varying = [k for k in names if k == "peak" or len({x.settings.get(k) for x in curves}) > 1]
        stand = functools.partial(self._stand, entry, varying, tried)
        whole = [x for x in curves if x.losses.keys() >= {*self.multiples}]
        if not curves[0].has_horizon:
            best = closest(whole, self._cosines, summarize=max)
            selection = dict.fromkeys(best.losses, best) if best else {}
        else:
            selection = best_at_each(curves, self._results.multiples)
            selection = selection if selection.keys() >= {*self.multiples} else {}
        selected = [stand(selection, selected=True)] if selection else []
        others = [
            dict.fromkeys(x.losses, x)
            for x in curves
            if any(selection.get(m) is not x for m in x.losses if m in self.multiples)
        ]
        return [*selected, *(stand(x, selected=False) for x in others)]

    def _stand(
        self,
        entry: Entry,
        varying: Sequence[str],
        tried: int,
        selection: Selection,
        *,
        selected: bool,
    ) -> Standing:
        curve, last = next(iter(selection.values())), self.multiples[-1]
        config = self._results.config_of(curve)
        if config.optimizer not in self._copies:
            self._copies[config.optimizer] = _moments(config)
        label, metrics = entry.read_out, self._results.position_metrics if selected else []
        is_own = label not in config.averaging_rules and label != LIVE
        return Standing(
            entry=entry,
            settings=self._settings(selection, varying, selected),
            selected=selected,
            tried=tried,
            multiples=self.multiples,
            gaps=self._gaps(selection, self._cosines),
            average_gaps=self._gaps(selection, self._averaged),
            own_gaps=self._gaps(
                selection, self._own.get((entry.optimizer, entry.read_out != LIVE), {})
            ),
            position_gaps={
                x: gap_at(self._results, selection[last], last, self._cosines, x) for x in metrics
            },
            is_primary=label == self._results.average
            or is_own
            or (label == LIVE and curve.has_horizon),
            fraction=self._fraction(selection) if last in selection else math.nan,
            copies=self._copies[config.optimizer] + (entry.read_out in config.averaging_rules),
            time=1.0 if entry.optimizer == ADAMW else self._update_times.get(entry.optimizer),
        )

    def _settings(self, selection: Selection, names: Sequence[str], mark_edges: bool) -> str:
        """The tuned settings of a selection, once for multiples that share them."""
        at: dict[str, list[float]] = {}
        first = min(selection)
        # Without a horizon, one curve has all multiples, so the first stands for all.
        is_one_curve = not selection[first].has_horizon
        for m, curve in {first: selection[first]}.items() if is_one_curve else selection.items():
            settings = {k: curve.settings[k] for k in names if k in curve.settings}
            edges = at_grid_edge(self._results, curve, [m]) if mark_edges else []
            settings |= {k: f"{x:g}{EDGE}" for k, x in settings.items() if k in edges}
            at.setdefault(describe(settings), []).append(m)
        if len(at) == 1:
            return next(iter(at))
        return "; ".join(f"{', '.join(f'{m:g}x' for m in ms)}: {text}" for text, ms in at.items())

    def _gaps(self, selection: Selection, cosines: Selection) -> dict[float, Gap]:
        return {
            m: gap_at(self._results, curve, m, cosines)
            for m, curve in selection.items()
            if m in cosines
        }

    def _fraction(self, selection: Selection) -> float:
        """Tokens to the reference's last loss, from losses averaged over the seeds."""
        last = self.multiples[-1]
        losses = {
            m: losses_by_seed(self._results, curve, m)
            for m, curve in selection.items()
            if m <= last
        }
        target = losses_by_seed(self._results, self._cosines[last], last)
        common = sorted({*target}.intersection(*losses.values()))
        seeds = reported_seeds(self._results, selection[last], common)
        means = {m: _mean(each[x] for x in seeds) for m, each in losses.items()}
        return crossing(means, _mean(target[x] for x in seeds)) / last


def _mean(losses: Iterable[np.ndarray]) -> float:
    return float(np.mean([*losses]))


def _entry(results: Results, family: Sequence[LossCurve], label: str) -> Entry:
    curve, optimizer = family[0], results.config_of(family[0]).optimizer
    schedule = schedule_name(curve.kind, math=False)
    named = {"optimizer", *OPTIMIZERS.to_dict(optimizer)}
    defaults = {name: x.default for name, x in all_settings().items()}
    words = {k: x for k, x in curve.variant.items() if k not in named and x != defaults.get(k)}
    usual = results.configs[results.runs[0].name].schedule.settings.get("warmup")
    if (warmup := _warmup(results, curve)) not in (None, usual):
        words["warmup"] = warmup
    note = words.pop(NOTE, "")
    if "floor" in words:
        schedule += f" to {words.pop('floor'):g}"
    if words.get("shape") == "linear":
        del words["shape"]
    schedule = ", ".join([schedule, *([describe(words)] if words else [])])
    name = optimizer_name(optimizer, common_settings(results))
    return Entry(name, f"{schedule} ({note})" if note else schedule, label)


@functools.cache
def common_settings(results: Results) -> Mapping[str, Any]:
    """The settings that the optimizers of all runs share, other than their kind."""
    first, *others = (OPTIMIZERS.to_dict(x.optimizer) for x in results.configs.values())
    return {
        name: value
        for name, value in first.items()
        if name != "kind" and all(x.get(name) == value for x in others)
    }


def _moments(config: Config) -> float:
    """Size of the optimizer's state relative to the parameters, without the averages."""
    mesh = sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    program = step.make_program(config, mesh)
    size = state_memory.measure_state(program.abstract_state)
    return size.moments / size.parameters
