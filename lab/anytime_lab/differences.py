"""Compare groups of a study's runs with one of them, paired by seed.

The runs of a group have the same name but for the seed: `constant-weight_decay=0.1-seed=31` and
those of the other seeds are `constant-weight_decay=0.1`, or `constant` if no other group begins so.
Each group is compared with the base at the points where both were evaluated, on the reported sets.
Runs without a horizon are read out through f25 and others through their live weights, or all
through --average. The tables go between <!-- differences --> and <!-- end --> of the page.
"""

import argparse
import itertools
import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError, nearest
from anytime_jax.tables import Table, numbers
from anytime_lab import study_page
from anytime_lab.study.plan import without_seed
from anytime_lab.study.results import LOSS, Results, RunResult
from anytime_lab.study.selection import GAP_TEXT, MARGIN, Gap, gap_of
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--study=lab/evidence/batch_ramps --base=constant-peak=0.0111 --page=differences.md",)
Group = Mapping[tuple[int, int], RunResult]  # by the seeds of the weights and of the data


def group_runs(results: Results) -> dict[str, Group]:
    """Returns the evaluated runs of each group by their seeds.

    Groups have the shortest names that tell them apart, whole parts between hyphens.
    """
    groups: dict[str, dict[tuple[int, int], RunResult]] = {}
    for run in results.runs:
        if run.losses:
            groups.setdefault(without_seed(run.name), {})[run.seed] = run
    return {_shortest(name, groups): group for name, group in groups.items()}


def _shortest(name: str, names: Collection[str]) -> str:
    for start in itertools.accumulate(name.split("-"), "{}-{}".format):
        if sum(f"{x}-".startswith(f"{start}-") for x in names) == 1:
            return start
    return name


def compare(
    results: Results,
    ours: Group,
    base: Group,
    prefix: str = "",
    average: str | None = None,
) -> dict[float, Gap]:
    """Returns the differences of a group to the base at the points that a pair has, by multiple.

    With a `prefix`, they are those on the reported sets whose names begin with it. With an
    `average`, all runs are read out through it.
    """
    chosen = [i for i, name in enumerate(results.reported_sets or ("",)) if name.startswith(prefix)]
    found: dict[float, list[np.ndarray]] = {}
    for seed in ours.keys() & base.keys():
        one, other = (_reported(run, average or run.label) for run in (ours[seed], base[seed]))
        for multiple in sorted(one.keys() & other.keys()):
            found.setdefault(multiple, []).append((one[multiple] - other[multiple])[chosen])
    return {multiple: gap_of(np.stack(found[multiple])) for multiple in sorted(found)}


def _reported(run: RunResult, label: str) -> dict[float, np.ndarray]:
    """The reported losses of weights by multiple; of a run with a horizon, at its ends."""
    losses = run.reported[LOSS]
    points = losses.keys() if run.horizon is None else losses.keys() & {0.0, run.horizon}
    return {m: np.array(losses[m][label]) for m in points if label in losses[m]}


def make_table(results: Results, base: str, prefix: str = "", average: str | None = None) -> Table:
    """Returns the losses and the differences of all groups to the one that is called `base`.

    The losses are the mean validation losses over the seeds, at the last point that all have.
    `prefix` and `average` are those of `compare`.

    Raises:
      InputError: if there is no such group or no such set.
    """
    groups = group_runs(results)
    if base not in groups:
        hint = nearest(base, groups) or f"; there are {', '.join(groups)}"
        raise InputError(f"--base={base}: no group of evaluated runs has this name{hint}")
    check_sets(results, prefix)
    rows = {name: compare(results, x, groups[base], prefix, average) for name, x in groups.items()}
    multiples = sorted({m for gaps in rows.values() for m in gaps})
    table = Table(
        "",
        ["runs", "read-out", *numbers("loss", "seeds", *(f"{m:g}x" for m in multiples), "power")],
    )
    for name, gaps in rows.items():
        runs = [*groups[name].values()]
        label = average or runs[0].label
        last = max(set.intersection(*({*run.losses} for run in runs)), default=None)
        loss = np.mean([run.losses[last].get(label, np.nan) for run in runs]) if last else np.nan
        cells = [cell_of(gaps.get(m)) for m in multiples]
        powers = "-" if name == base else powers_of(gaps.values())
        shown = "live" if label == LIVE else label
        table.add_row(name, shown, f"{loss:.4f}", len(runs), *cells, powers)
    return table


def check_sets(results: Results, prefix: str) -> None:
    """Raises an InputError if no reported set begins with a prefix."""
    if not any(name.startswith(prefix) for name in results.reported_sets or ("",)):
        known = ", ".join(results.reported_sets) or "none"
        raise InputError(f"--sets={prefix}: no reported set begins with it; they are {known}")


def cell_of(gap: Gap | None) -> str:
    """Returns the cell of a difference: "-" if there is none, "0" of a run with itself."""
    if gap is None:
        return "-"
    return "0" if gap.mean == 0 == gap.stderr else str(gap)


def powers_of(gaps: Iterable[Gap]) -> str:
    """Returns the cell of the powers of differences."""
    return ", ".join("-" if math.isnan(gap.power) else f"{gap.power:.2f}" for gap in gaps)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)
    add = parser.add_argument
    add("--base", required=True, metavar="NAME", help="name of the base, as in the table")
    add_sets(parser, "a table for the reported sets of each prefix")
    add("--average", help="read-out of all runs (default: f25, and live of those with a horizon)")


def add_sets(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds the option for prefixes of the names of reported sets."""
    parser.add_argument("--sets", nargs="*", default=[""], metavar="PREFIX", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Writes the tables; returns the exit status."""

    def make_text(results: Results, _: study_page.Warn) -> tuple[list[str], str]:
        tables = {
            x: make_table(results, arguments.base, x, arguments.average) for x in arguments.sets
        }
        parts = [
            f"Differences are losses minus those of `{arguments.base}` with the same seed, in nats "
            f"per token, {GAP_TEXT} *Power* is the probability that a two-sided t test at 5% finds "
            f"a true difference of {MARGIN:g}. *Loss* is the mean validation loss over the seeds "
            "at the last point that all have."
        ]
        for prefix, table in tables.items():
            if prefix:
                parts.append(f"On the sets `{prefix}*`:")
            parts.append(to_markdown(table))
        return parts, f"{len(next(iter(tables.values())).rows)} groups of runs"

    average = arguments.average or "f25"
    return study_page.write(arguments, "differences", "Differences", make_text, average)
