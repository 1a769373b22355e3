"""Compare branches with larger batches with their trunks, at equal tokens and at equal updates.

A branch whose batch grows is read out through the average at its stop, and so is its trunk after as
many tokens, and after as many updates: there between two evaluations, linearly in the log of the
tokens. Differences are paired by seed. Where branches of one point take several multiples of the
batch from their first update on, the largest one that costs nothing is the one up to which no mean
difference at equal tokens is above the margin. The tables go between <!-- larger batches --> and
<!-- end --> of the page.
"""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_lab import page_block
from anytime_lab.study import study_files
from anytime_lab.study.results import LOSS, Results, RunResult
from anytime_lab.study.selection import MARGIN, Gap, gap_of
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--study=batches --page=lab/evidence/batches.md",)


@dataclasses.dataclass(frozen=True, order=True)
class Growth:
    """How the batch and the rate of branches differ from those of their trunk.

    Attributes:
      start: multiple at which they leave their trunk, and `stop`, at which they end.
      rate: the peak over the trunk's, as a power of the first multiple of the batch.
      sizes: multiples of the trunk's batch, each with the multiple from which on it is.
      peak: the trunk's peak.
      updates: updates of a branch, with those of its trunk, to its stop.
    """

    start: float
    stop: float
    rate: float
    sizes: tuple[tuple[float, int], ...]
    peak: float
    updates: int

    @property
    def is_at_once(self) -> bool:
        """Whether the batch takes one multiple, from the first update on."""
        return len(self.sizes) == 1 and self.sizes[0][0] == self.start


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Branches of one growth minus their trunks, after equal tokens and after equal updates."""

    growth: Growth
    at_tokens: Gap
    at_updates: Gap


def compare(results: Results) -> list[Comparison]:
    """Returns the comparisons of a study, sorted; raises an InputError if it has none."""
    by_name = {run.name: run for run in results.runs}
    trunks = {run.name: run.trunk for run in results.study.runs}
    found: dict[Growth, list[tuple[np.ndarray, np.ndarray]]] = {}
    for run in results.runs:
        config, trunk = results.configs[run.name], by_name.get(trunks[run.name] or "")
        if trunk is None or run.state != "finished":
            continue
        growth = _growth(config, results.configs[trunk.name])
        if growth is None:
            continue
        ours = run.reported[LOSS][run.stop][results.average]
        at_updates = growth.updates / results.clock.chinchilla_time
        after_tokens = _losses_at(trunk, results.average, growth.stop)
        after_updates = _losses_at(trunk, results.average, at_updates)
        if after_tokens is not None and after_updates is not None:
            pair = np.array(ours) - after_tokens, np.array(ours) - after_updates
            found.setdefault(growth, []).append(pair)
    if not found:
        raise InputError(
            f"study {results.study.name}: no branch with a larger batch is finished and its trunk "
            "evaluated where it ends: train them first (anytime sweep --run)"
        )
    return [
        Comparison(growth, *(gap_of(np.stack(x)) for x in zip(*pairs, strict=True)))
        for growth, pairs in sorted(found.items())
    ]


def _growth(config: Config, trunk: Config) -> Growth | None:
    """How a branch differs from its trunk; None if its batch is not larger."""
    clock, start = config.clock, config.branch_step or 0
    base = clock.span(start - 1)
    phases = [x for x in clock.phases if x.step >= start]
    if not phases or clock == trunk.clock:
        return None
    sizes = tuple((clock.multiple(x.step), x.span // base) for x in phases)
    ratio = config.learning_rate.peak / trunk.learning_rate.peak
    rate = round(math.log(ratio, sizes[0][1]), 3)
    step = config.stop_rule.step or 0
    points = clock.multiple(start), clock.multiple(step)
    return Growth(*points, rate, sizes, trunk.learning_rate.peak, step)


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


def largest_free(comparisons: Sequence[Comparison]) -> float:
    """Returns the multiple up to which the cost at equal tokens is within `MARGIN`.

    Between two multiples, the cost is linear in the log of the multiple; 1 costs nothing. Infinite
    if all that were tried are within.
    """
    points = [(1, 0.0), *sorted((x.growth.sizes[0][1], x.at_tokens.mean) for x in comparisons)]
    for (before, low), (after, high) in itertools.pairwise(points):
        if high > MARGIN:
            return before * (after / before) ** ((MARGIN - low) / (high - low))
    return math.inf


def make_tables(results: Results) -> Iterator[Table]:
    """Yields the differences of each growth, and the largest multiples that cost nothing."""
    comparisons = compare(results)
    names = ["from", "to", "batch", "rate", "trunk's peak", "updates", "trunk's", "seeds"]
    table = Table("", [*names, *numbers("at equal tokens", "at equal updates")])
    for x in comparisons:
        growth = x.growth
        sizes = ", ".join(
            f"{size} times" + ("" if growth.is_at_once else f" from {m:g}x")
            for m, size in growth.sizes
        )
        at_stop = round(growth.stop * results.clock.chinchilla_time)
        table.add_row(
            *(f"{growth.start:g}x", f"{growth.stop:g}x", sizes, _describe_rate(growth.rate)),
            *(f"{growth.peak:g}", f"{growth.updates:,}", f"{at_stop:,}", x.at_tokens.seeds),
            *(str(x.at_tokens), str(x.at_updates)),
        )
    yield table
    free = Table("", ["from", "to", "rate", "trunk's peak", *numbers("multiple", "tried to")])
    groups: dict[tuple[float, ...], list[Comparison]] = {}
    for x in comparisons:
        if x.growth.is_at_once:
            key = x.growth.start, x.growth.stop, x.growth.rate, x.growth.peak
            groups.setdefault(key, []).append(x)
    for (start, stop, rate, peak), group in groups.items():
        multiple, tried = largest_free(group), max(x.growth.sizes[0][1] for x in group)
        of_group = f"{start:g}x", f"{stop:g}x", _describe_rate(rate), f"{peak:g}"
        free.add_row(*of_group, f"{multiple:.1f}" if multiple < math.inf else f"> {tried}", tried)
    if free.rows:
        yield free


def _describe_rate(power: float) -> str:
    return {0.0: "kept", 0.5: "times the root"}.get(power, f"times the multiple^{power:g}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    page_block.add_options(parser)
    parser.add_argument("--average", default="f25", help="read-out (default: f25)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the tables; returns the exit status."""
    page_block.check(arguments.page)
    warnings: list[str] = []
    with study_files.open_study(arguments.study, trust=arguments.trust) as study:
        results = Results(study, arguments.average, warn=warnings.append)
        first, *free = make_tables(results)
    finished = sum(run.state == "finished" for run in results.runs)
    parts = [
        f"Study `{results.study.name}`: {finished} of {len(results.runs)} runs are finished. "
        f"Losses are read out through {arguments.average}, in nats per token, the branch's minus "
        "its trunk's, ± half the 95% interval by Student's t over the seeds, or over the sets, "
        f"whichever is wider. *Better* and *worse*: the whole interval is beyond {MARGIN:g}; "
        "*equal*: it is within. Updates are those of the branch with its trunk's before it, and "
        "those of the trunk after as many tokens.",
        to_markdown(first),
    ]
    for table in free:
        parts += [
            f"The largest multiple of the batch that costs at most {MARGIN:g} in the mean at equal "
            "tokens, linearly in its log between two that were tried:",
            to_markdown(table),
        ]
    text = "\n\n".join(parts)
    page_block.replace_block(arguments.page, "larger batches", text, title="Larger batches")
    for line in (*warnings, f"{len(first.rows)} comparisons: {arguments.page}"):
        open_console().print(line)
    return 0
