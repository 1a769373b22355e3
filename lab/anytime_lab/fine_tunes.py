"""Compare the models that a study tunes, each at its best peak, paired by seed.

A run is called START-horizon=...-peak=...-seed=...: START is the model that the run tunes. For each
start and length of the tuning, the table has the peak with the least mean validation loss over the
seeds, or the smallest peak whose loss is within 0.001 nats of the least. Differences are between
live weights, before the tuning and at its end, and to those of the start --base. Each of --sets has
a column of differences, on the reported sets whose names begin with it.

The table goes between <!-- fine-tunes --> and <!-- end --> of the page.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_lab import differences, study_page
from anytime_lab.differences import Group
from anytime_lab.study.results import Results
from anytime_lab.study.selection import EDGE, GAP_TEXT, MARGIN
from anytime_lab.table_text import to_markdown

EXAMPLES = (
    "--study=lab/evidence/finetunes --base=wsd --sets report-english report-python "
    "--page=fine_tunes.md",
)
_EQUAL = 0.001  # nats, between peaks


def group_runs(results: Results) -> dict[float, dict[str, dict[float, Group]]]:
    """Returns the runs by length, start and peak, of the seeds that all of these have.

    Raises an InputError if there is no such seed, as where runs do not start from given weights.
    """
    groups = differences.group_runs(results)
    seeds = set.intersection(
        *(
            {seed for seed, run in group.items() if run.losses.keys() >= {0.0, run.stop}}
            for group in groups.values()
        )
    )
    if not seeds:
        raise InputError(
            f"study {results.study.name}: no seed has runs from given weights to the end, of each "
            "start, length and peak: train the others"
        )
    found: dict[float, dict[str, dict[float, Group]]] = {}
    for name, group in groups.items():
        runs = {seed: run for seed, run in group.items() if seed in seeds}
        first = next(iter(runs.values()))
        starts = found.setdefault(first.stop, {})
        peaks = starts.setdefault(name.partition("-horizon=")[0], {})
        peaks[float(first.settings["peak"])] = runs
    return dict(sorted(found.items(), reverse=True))


def best_peak(peaks: Mapping[float, Group]) -> float:
    """Returns the smallest peak with a mean loss within 0.001 nats of the least."""
    means = {
        peak: np.mean([run.losses[run.stop][LIVE] for run in runs.values()])
        for peak, runs in sorted(peaks.items())
    }
    least = np.nanmin([*means.values()])
    return next(peak for peak, mean in means.items() if mean <= least + _EQUAL)


def make_table(results: Results, base: str, prefixes: Sequence[str]) -> Table:
    """Returns the differences of all starts to the base, before the tuning and for each length.

    Raises:
      InputError: if no run tunes the base, or a prefix names no reported set.
    """
    for prefix in prefixes:
        differences.check_sets(results, prefix)
    columns = numbers("peak", "loss", *(f"{x}*" for x in prefixes), "power")
    table = Table("", ["tuned for", "start", *columns])
    lengths = group_runs(results)
    for length, starts in lengths.items():
        if base not in starts:
            known = ", ".join(starts)
            raise InputError(f"--base={base}: no run of {length:g}x tunes it; give one of {known}")
        peaks = {name: best_peak(of_start) for name, of_start in starts.items()}
        for point in (length,) if table.rows else (0.0, length):
            for name, of_start in starts.items():
                group, others = of_start[peaks[name]], starts[base][peaks[base]]
                gaps = [
                    differences.compare(results, group, others, prefix, LIVE)[point]
                    for prefix in prefixes
                ]
                edge = EDGE if peaks[name] in (min(of_start), max(of_start)) else ""
                loss = np.mean([run.losses[point][LIVE] for run in group.values()])
                table.add_row(
                    f"{point:g}x",
                    name,
                    f"{peaks[name]:g}{edge}" if point else "-",
                    f"{loss:.4f}",
                    *map(differences.cell_of, gaps),
                    "-" if name == base else differences.powers_of(gaps),
                )
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)
    add = parser.add_argument
    add("--base", required=True, metavar="START", help="start to which others are compared")
    differences.add_sets(parser, "a column for the reported sets of each prefix")


def run(arguments: argparse.Namespace) -> int:
    """Writes the table; returns the exit status."""

    def make_text(results: Results, _: study_page.Warn) -> tuple[list[str], str]:
        table = make_table(results, arguments.base, arguments.sets)
        about = (
            f"Differences are losses minus those of `{arguments.base}` with the same seed, in nats "
            f"per token, {GAP_TEXT} *Power* is the probability that a two-sided t test at 5% finds "
            f"a true difference of {MARGIN:g}, for each difference. *Loss* is the mean validation "
            f"loss over the seeds. {EDGE} marks the least or largest peak that was tried."
        )
        return [about, to_markdown(table)], f"{len(table.rows)} rows"

    return study_page.write(arguments, "fine-tunes", "Fine-tunes", make_text, LIVE)
