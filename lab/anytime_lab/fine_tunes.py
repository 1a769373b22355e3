"""Compare the models that a study tunes, each at its best peak, paired by seed.

A run is called START-horizon=...-peak=...-seed=...: the model that it starts from, and the length,
the peak and the seed of its tuning. Of a start and a length, the peak is taken whose mean loss over
the seeds is least, or the smallest one within 0.001 nats of it. Differences are to the start
--base, on the sets whose names begin with --learned and with --kept. Kept losses are compared at
equal learned losses too: at the least that both starts reach, on the line through the losses of the
peaks of a start, from the smallest peak to the best one.

The table goes between <!-- fine-tunes --> and <!-- end --> of the page.
"""

import argparse
from collections.abc import Mapping

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_jax.tables import Table, numbers
from anytime_lab import study_page
from anytime_lab.study.results import LOSS, Results, RunResult
from anytime_lab.study.selection import GAP_TEXT, MARGIN, gap_of
from anytime_lab.table_text import to_markdown

EXAMPLES = (
    "--study=lab/evidence/finetunes --base=wsd --learned=report-english --kept=report-python "
    "--page=fine_tunes.md",
)
_EQUAL = 0.001  # nats, between peaks

Seed = tuple[int, int]
Peaks = Mapping[float, Mapping[Seed, RunResult]]  # the runs of a start and a length


def group_runs(results: Results) -> dict[float, dict[str, Peaks]]:
    """Returns the finished runs by length and start, then by peak and seed."""
    found: dict[float, dict[str, dict[float, dict[Seed, RunResult]]]] = {}
    for run in results.runs:
        if run.state == "finished" and run.horizon is not None:
            starts = found.setdefault(run.horizon, {})
            peaks = starts.setdefault(run.name.partition("-horizon=")[0], {})
            peaks.setdefault(float(run.settings["peak"]), {})[run.seed] = run
    return found


def best_peak(peaks: Peaks) -> float:
    """Returns the smallest peak with a mean loss over the seeds within 0.001 nats of the least."""
    means = {
        peak: np.mean([run.losses[run.stop][LIVE] for run in of_seed.values()])
        for peak, of_seed in sorted(peaks.items())
    }
    return next(peak for peak, mean in means.items() if mean <= min(means.values()) + _EQUAL)


class Sets:
    """The reported sets whose names begin with a prefix."""

    def __init__(self, results: Results, prefix: str):
        """Raises an InputError if there are none."""
        names = results.reported_sets
        self._chosen = [i for i, name in enumerate(names) if name.startswith(prefix)]
        if not self._chosen:
            known = ", ".join(names) or "none"
            raise InputError(f"{prefix}: no reported set begins with it; they are {known}")

    def losses(self, run: RunResult, multiple: float) -> np.ndarray:
        """Returns the losses of the live weights, float64[sets]."""
        return np.array(run.reported[LOSS][multiple][LIVE])[self._chosen]


def kept_at_equal(ours: Peaks, base: Peaks, seed: Seed, learned: Sets, kept: Sets) -> np.ndarray:
    """Returns kept losses of a start minus those of the base at equal learned losses, [sets]."""
    lines = []
    for peaks in (ours, base):
        of_seed = [peaks[peak][seed] for peak in sorted(peaks)]
        x = np.array([learned.losses(run, run.stop).mean() for run in of_seed])
        y = np.stack([kept.losses(run, run.stop) for run in of_seed])
        is_lowest = x <= np.minimum.accumulate(x)
        lines.append((x[is_lowest][::-1], y[is_lowest][::-1]))
    level = max(x[0] for x, _ in lines)
    one, other = (np.array([np.interp(level, x, losses) for losses in y.T]) for x, y in lines)
    return one - other


def make_table(results: Results, base: str, learned: Sets, kept: Sets) -> Table:
    """Returns the differences of all starts to the base, before the tuning and for each length.

    Raises:
      InputError: if no run of a length starts from the base.
    """
    gaps = numbers("learned", "kept", "kept at equal learned", "power")
    table = Table("", ["length", "start", *numbers("peak", "loss"), *gaps])
    groups = dict(sorted(group_runs(results).items(), reverse=True))
    for length, starts in groups.items():
        if base not in starts:
            known = ", ".join(starts)
            raise InputError(f"--base={base}: no run of {length:g}x starts from it; give {known}")
    longest = next(iter(groups.values()), {})
    for length, starts in [(0.0, longest), *groups.items()]:
        of_base = starts[base][best_peak(starts[base])] if starts else {}
        for name, ours in starts.items():
            peak = best_peak(ours)
            pairs = [(ours[peak][x], of_base[x]) for x in sorted(ours[peak].keys() & of_base)]
            differences = [
                np.stack([x.losses(one, length) - x.losses(other, length) for one, other in pairs])
                for x in (learned, kept)
            ]
            if length:
                each = [kept_at_equal(ours, starts[base], x.seed, learned, kept) for x, _ in pairs]
                differences.append(np.stack(each))
            found = [gap_of(x) for x in differences]
            cells = ["0" if name == base else str(x) for x in found]
            table.add_row(
                f"{length:g}x" if length else "none",
                name,
                f"{peak:g}" if length else "-",
                f"{np.mean([learned.losses(x, length) for x, _ in pairs]):.4f}",
                *(cells if length else [*cells, "-"]),
                "-" if name == base else ", ".join(f"{x.power:.2f}" for x in found),
            )
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)
    add = parser.add_argument
    add("--base", required=True, metavar="START", help="start to which others are compared")
    add("--learned", required=True, metavar="PREFIX", help="sets of the text of the tuning")
    add("--kept", required=True, metavar="PREFIX", help="sets of the text before")


def run(arguments: argparse.Namespace) -> int:
    """Writes the table; returns the exit status."""

    def make_text(results: Results, _: study_page.Warn) -> tuple[list[str], str]:
        sets = Sets(results, arguments.learned), Sets(results, arguments.kept)
        table = make_table(results, arguments.base, *sets)
        about = (
            f"*Loss* is the mean over the seeds on the sets `{arguments.learned}*`, in nats per "
            f"token. *Learned* and *kept* are losses on these and on `{arguments.kept}*`, minus "
            f"those of `{arguments.base}` with the same seed, {GAP_TEXT} *Power* is the "
            f"probability that a two-sided t test at 5% finds a true difference of {MARGIN:g}, for "
            "each of them."
        )
        return [about, to_markdown(table)], f"{len(table.rows)} rows"

    return study_page.write(arguments, "fine-tunes", "Fine-tunes", make_text, LIVE)
