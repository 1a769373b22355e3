"""Compare branches with larger batches with their trunks, at equal tokens and at equal updates.

A branch whose batch grows is read out through the average at its stop, and so is its trunk after as
many tokens, and after as many updates: there between two evaluations, linearly in the log of the
tokens. Differences are paired by seed. Where branches of one point take several multiples of the
batch from their first update on, the largest one that costs nothing is the one up to which no mean
difference at equal tokens is above the margin; relative to the trunk, and to the best of it and of
branches with its batch at other rates. With two such points, the power of the tokens that the
largest ones follow is computed for each seed. The tables go between <!-- larger batches --> and
<!-- end --> of the page.
"""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_lab import study_page
from anytime_lab.study.results import LOSS, Results, RunResult, compared_settings
from anytime_lab.study.selection import GAP_TEXT, MARGIN, gap_of
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--study=batches --page=lab/evidence/batches.md",)

_NAMED = {"batch_growth", "schedule.peak"}  # settings that have columns of their own
Seed = tuple[int, int]
Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, order=True)
class Rule:
    """What branches of one point have in common beside their batches.

    Attributes:
      start: multiple at which they leave their trunk, and `stop`, at which they end.
      peak: the trunk's peak.
      rate: what the branch's peak is: "kept", "times the root" of the first multiple of the batch,
        or "times 0.707".
      others: names of the other settings that differ.
    """

    start: float
    stop: float
    peak: float
    rate: str
    others: tuple[str, ...]

    @property
    def point(self) -> tuple[float, float, float]:
        """The trunks and the part of a run that are compared."""
        return self.start, self.stop, self.peak

    @property
    def at_any_point(self) -> tuple[float, str, tuple[str, ...]]:
        """The rule without its point."""
        return self.peak, self.rate, self.others


@dataclasses.dataclass(frozen=True, order=True)
class Growth:
    """How the batch and the rate of branches differ from those of their trunk.

    Attributes:
      sizes: multiples of the trunk's batch, each with the multiple from which on it is; none for a
        branch that keeps the batch.
      updates: updates of a branch, with those of its trunk, to its stop.
    """

    rule: Rule
    sizes: tuple[tuple[float, int], ...]
    updates: int

    @property
    def at_once(self) -> int:
        """The multiple of the batch that is taken from the first update on; 0 if there are more."""
        if not self.sizes:
            return 1
        ((start, size), *more) = self.sizes
        return size if start == self.rule.start and not more else 0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Branches of one growth minus their trunks, float64[seeds, sets].

    Attributes:
      seeds: the seeds, in order.
      at_tokens: after equal tokens, and `at_updates` after equal updates.
    """

    growth: Growth
    seeds: Sequence[Seed]
    at_tokens: np.ndarray
    at_updates: np.ndarray

    def cost(self, seed: Seed) -> float:
        """Returns the mean difference of a seed over the sets, at equal tokens."""
        return float(self.at_tokens[self.seeds.index(seed)].mean())

    @property
    def share_kept(self) -> float:
        """What the branch keeps of what its trunk gains by the tokens that it has read more."""
        cost, gain = self.at_tokens.mean(), -self.at_updates.mean()
        return float(gain / (cost + gain))


def compare(results: Results) -> list[Comparison]:
    """Returns the comparisons of a study, sorted; raises an InputError if it has none."""
    by_name = {run.name: run for run in results.runs}
    trunks = {run.name: run.trunk for run in results.study.runs}
    found: dict[Growth, dict[Seed, Pair]] = {}
    for run in results.runs:
        config, trunk = results.configs[run.name], by_name.get(trunks[run.name] or "")
        if trunk is None or run.state != "finished":
            continue
        growth = _growth(config, results.configs[trunk.name])
        if growth is None:
            continue
        ours = run.reported[LOSS][run.stop][results.average]
        at_updates = growth.updates / results.clock.chinchilla_time
        after_tokens = _losses_at(trunk, results.average, growth.rule.stop)
        after_updates = _losses_at(trunk, results.average, at_updates)
        if after_tokens is not None and after_updates is not None:
            pair = np.array(ours) - after_tokens, np.array(ours) - after_updates
            found.setdefault(growth, {})[run.seed] = pair
    if not any(growth.sizes for growth in found):
        raise InputError(
            f"study {results.study.name}: no branch with a larger batch is finished and its trunk "
            "evaluated where it ends: train them first (anytime sweep --run)"
        )
    return [
        Comparison(growth, sorted(pairs), *(np.stack(x) for x in zip(*_sorted(pairs), strict=True)))
        for growth, pairs in sorted(found.items())
    ]


def _sorted(pairs: Mapping[Seed, Pair]) -> list[Pair]:
    return [pairs[seed] for seed in sorted(pairs)]


def _growth(config: Config, trunk: Config) -> Growth | None:
    """How a branch differs from its trunk; None for the same batch and peak, and for a decay."""
    clock, start = config.clock, config.branch_step or 0
    base = clock.span(start - 1)
    phases = [x for x in clock.phases if x.step >= start] if clock != trunk.clock else []
    ratio = config.learning_rate.peak / trunk.learning_rate.peak
    if config.decay.horizon or (not phases and ratio == 1):
        return None
    sizes = tuple((clock.multiple(x.step), x.span // base) for x in phases)
    root = math.sqrt(sizes[0][1]) if sizes else 1.0
    rate = "kept" if ratio == 1 else f"times {ratio:.3g}"
    if root > 1 and math.isclose(ratio, root, rel_tol=1e-2):  # peaks are rounded
        rate = "times the root"
    ours, theirs = compared_settings(config), compared_settings(trunk)
    others = {name for name in ours if ours[name] != theirs.get(name)} - _NAMED
    step = config.stop_rule.step or 0
    points = clock.multiple(start), clock.multiple(step)
    rule = Rule(*points, trunk.learning_rate.peak, rate, tuple(sorted(others)))
    return Growth(rule, sizes, step)


def _losses_at(run: RunResult, label: str, multiple: float) -> np.ndarray | None:
    """The reported losses at a multiple, between two evaluations if none is there."""
    evaluated = {m: np.array(x[label]) for m, x in run.reported[LOSS].items() if label in x}
    for m, losses in evaluated.items():
        if math.isclose(m, multiple, rel_tol=1e-3):
            return losses
    for before, after in itertools.pairwise(sorted(evaluated)):
        if before < multiple < after:
            share = math.log(multiple / before) / math.log(after / before)
            return (1 - share) * evaluated[before] + share * evaluated[after]
    return None


def largest_free(costs: Mapping[int, float]) -> float:
    """Returns the multiple up to which the cost is within `MARGIN`.

    Between two multiples, the cost is linear in the log of the multiple. Infinite if all that were
    tried are within; the first multiple if neither its cost nor the second's is.

    Examples:
      >>> largest_free({1: 0.0, 2: 0.005, 4: 0.015})
      2.8284271247461903
      >>> largest_free({1: 0.04, 2: 0.038}), largest_free({1: 0.04, 2: 0.005})
      (1.0, inf)
    """
    for (before, low), (after, high) in itertools.pairwise(sorted(costs.items())):
        if high > MARGIN:
            share = (MARGIN - low) / (high - low) if low < MARGIN else 0.0
            return before * (after / before) ** share
    return math.inf


def costs_by_seed(
    of_rule: Sequence[Comparison], best: Comparison | None = None
) -> dict[Seed, dict[int, float]]:
    """Returns the costs at equal tokens by multiple of the batch, for each seed that has all.

    They are relative to the trunk, or to branches with its batch at the `best` other rate.
    """
    every = [*of_rule, *([best] if best else [])]
    found: dict[Seed, dict[int, float]] = {}
    for seed in sorted(set.intersection(*({*x.seeds} for x in every))):
        base = best.cost(seed) if best else 0.0
        costs = {x.growth.at_once: x.cost(seed) - base for x in of_rule}
        found[seed] = {1: -base, **costs}
    return found


class Largest(NamedTuple):
    """The largest multiples of the batch that cost nothing, infinite if all that were tried do.

    Attributes:
      of_seeds: relative to the trunk, by seed.
      of_mean: relative to the trunk, of the mean costs.
      against_best_rate: as `of_mean`, relative to the best rate of the trunk's batch.
    """

    of_seeds: Mapping[Seed, float]
    of_mean: float
    against_best_rate: float


def find_largest(comparisons: Sequence[Comparison]) -> dict[Rule, Largest]:
    """Returns the largest multiples that cost nothing, by rule."""
    found: dict[Rule, Largest] = {}
    for rule in sorted({x.growth.rule for x in comparisons if x.growth.at_once > 1}):
        of_rule = [x for x in comparisons if x.growth.rule == rule and x.growth.at_once > 1]
        same_batch = [
            x for x in comparisons if not x.growth.sizes and x.growth.rule.point == rule.point
        ]
        best = min(same_batch, key=lambda x: x.at_tokens.mean(), default=None)
        if best and best.at_tokens.mean() >= 0:
            best = None  # it is the trunk
        each = costs_by_seed(of_rule)
        found[rule] = Largest(
            {seed: largest_free(costs) for seed, costs in each.items()},
            largest_free(_means(each)),
            largest_free(_means(costs_by_seed(of_rule, best))),
        )
    return found


def _means(costs: Mapping[Seed, Mapping[int, float]]) -> dict[int, float]:
    names = next(iter(costs.values()), {})
    return {k: float(np.mean([x[k] for x in costs.values()])) for k in names}


def make_tables(results: Results) -> Iterator[Table]:
    """Yields the differences, the largest multiples that cost nothing, and their powers."""
    comparisons = compare(results)
    names = ["from", "to", "batch", "rate", "also changed", "trunk's peak", "updates", "trunk's"]
    cells = ["seeds", "at equal tokens", "at equal updates", "share kept"]
    table = Table("", [*names, *numbers(*cells)])
    for x in comparisons:
        growth, rule = x.growth, x.growth.rule
        sizes = ", ".join(
            f"{size} times" + ("" if growth.at_once else f" from {m:g}x")
            for m, size in growth.sizes
        )
        at_stop = round(rule.stop * results.clock.chinchilla_time)
        differences = [str(gap_of(x.at_tokens)), *["-"] * 2]
        if growth.sizes:
            differences[1:] = str(gap_of(x.at_updates)), f"{x.share_kept:.2f}"
        table.add_row(
            *(f"{rule.start:g}x", f"{rule.stop:g}x", sizes or "as the trunk's", rule.rate),
            *(", ".join(rule.others) or "-", f"{rule.peak:g}", f"{growth.updates:,}"),
            *(f"{at_stop:,}", len(x.seeds), *differences),
        )
    yield table
    largest = find_largest(comparisons)
    cells = ["multiple", "of each seed", "against the best rate", "tried to"]
    free = Table("", ["from", "to", "rate", "also changed", *numbers(*cells)])
    powers = Table(
        "", ["rate", "also changed", "between", *numbers("power of the tokens", "seeds")]
    )
    for rule, found in largest.items():
        tried = max(x.growth.at_once for x in comparisons if x.growth.rule == rule)
        each = ", ".join(_multiple(x, tried) for x in found.of_seeds.values())
        free.add_row(
            *(f"{rule.start:g}x", f"{rule.stop:g}x", rule.rate, ", ".join(rule.others) or "-"),
            *(_multiple(found.of_mean, tried), each),
            *(_multiple(found.against_best_rate, tried), tried),
        )
        for other, later in largest.items():
            if other.start > rule.start and other.at_any_point == rule.at_any_point:
                seeds = sorted(found.of_seeds.keys() & later.of_seeds.keys())
                before, after = (
                    np.array([x.of_seeds[seed] for seed in seeds]) for x in (found, later)
                )
                powers.add_row(
                    *(rule.rate, ", ".join(rule.others) or "-"),
                    f"{rule.start:g}x and {other.start:g}x",
                    _power(before, after, other.start / rule.start),
                    len(seeds),
                )
    yield from (x for x in (free, powers) if x.rows)


def _multiple(multiple: float, tried: int) -> str:
    return f"{multiple:.1f}" if multiple < math.inf else f"> {tried}"


def _power(before: np.ndarray, after: np.ndarray, ratio: float) -> str:
    """The power of the tokens that largest multiples of some seeds follow, with its interval."""
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return "not known: some are above all that were tried"
    each = np.log(after / before) / math.log(ratio)
    gap = gap_of(each[:, None])
    return f"{gap.mean:.2f}" + f" ± {gap.half_width:.2f}" * (len(each) > 1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)
    parser.add_argument("--average", default="f25", help="read-out (default: f25)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the tables; returns the exit status."""
    return study_page.write(
        arguments, "larger batches", "Larger batches", _make_text, arguments.average
    )


def _make_text(results: Results, _: study_page.Warn) -> tuple[list[str], str]:
    first, *others = make_tables(results)
    parts = [
        f"Losses are read out through {results.average}, in nats per token, the branch's minus "
        f"its trunk's, {GAP_TEXT} Updates are those of the branch with its trunk's before it, and "
        "those of the trunk after as many tokens. *Share kept* is what the branch keeps of what "
        "its trunk gains by the tokens that the branch has read more after equal updates.",
        to_markdown(first),
    ]
    titles = (
        f"The largest multiple of the batch that costs at most {MARGIN:g} at equal tokens, "
        "linearly in its log between two that were tried: by the mean over the seeds, of each "
        "seed, and by the mean relative to the best rate of the trunk's batch:",
        "The power of the tokens that the largest multiples follow, ± half the 95% interval by "
        "Student's t over the seeds:",
    )
    for title, table in zip(titles, others, strict=False):
        parts += [title, to_markdown(table)]
    return parts, f"{len(first.rows)} comparisons"
