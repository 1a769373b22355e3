"""The tables of a study: differences to the envelope, settings, and all runs."""

import math
import statistics
from collections.abc import Mapping, Sequence

from anytime_jax import plotting
from anytime_jax.checks import is_number
from anytime_jax.formatting import format_count
from anytime_jax.study import published
from anytime_jax.study.report_figures import Curve
from anytime_jax.study.report_item import Exhibit, cells, notes, times
from anytime_jax.study.results import Line, Results
from anytime_jax.study.selection import (
    ENVELOPE,
    HORIZON_FREE,
    Gap,
    Reading,
    differences,
    envelope,
    on_edge,
    pick_best,
    pick_single,
)


def compared(curves: Sequence[Curve], multiples: Sequence[float]) -> list[list[str]]:
    """Returns losses, differences, and the paper's own differences at the same multiples.

    Args:
      curves: the envelope first.
      multiples: the columns; a last one has the mean of the differences over them.
    """
    rows = [["", *times(multiples), "mean"]]
    for curve in curves:
        rows.append([f"{_plain(curve)}: loss, first seed", *cells(curve.losses, multiples), ""])
    for curve in curves[1:]:
        means = {m: gap.mean for m, gap in curve.gaps.items()}
        name = f"{_plain(curve)}: minus cosine"
        rows.append([name, *_gap_cells(curve.gaps, multiples), _mean(means, multiples)])
        others = {m: gap.others for m, gap in curve.gaps.items() if not math.isnan(gap.others)}
        if others:
            cut = [*cells(others, multiples, "+"), _mean(others, multiples)]
            rows.append([f"{name}, seeds that did not choose", *cut])
    for model in published.losses():
        for kind, theirs in published.differences(model).items():
            name = f"the paper, {model}, {plotting.schedule_name(kind, math=False)}: minus cosine"
            rows.append([name, *cells(theirs, multiples, "+"), _mean(theirs, multiples)])
    return rows


def _mean(numbers: Mapping[float, float], multiples: Sequence[float]) -> str:
    """The mean over the multiples, where there is a number at each of them."""
    there = [numbers[m] for m in multiples if m in numbers]
    return f"{statistics.fmean(there):+.4f}" if len(there) == len(multiples) else ""


def _gap_cells(found: Mapping[float, Gap], multiples: Sequence[float]) -> list[str]:
    """Differences in nats, with their standard error where there is more than one seed."""
    told = []
    for m in multiples:
        gap = found.get(m)
        noise = "" if gap is None or math.isnan(gap.noise) else f" ± {gap.noise:.4f}"
        told.append("" if gap is None else f"{gap.mean:+.4f}{noise}")
    return told


def _plain(curve: Curve) -> str:
    return curve.name.replace(
        plotting.schedule_name(curve.kind), plotting.schedule_name(curve.kind, math=False)
    )


def single_settings(results: Results, reading: Reading) -> Exhibit | None:
    """Returns the settings whose mean difference to the envelope is least (Table 2)."""
    of = envelope(results)
    picked = {k: x for k, x in pick_single(results, reading).items() if k in HORIZON_FREE}
    if not picked:
        return None
    names = _names(results, list(picked))
    table = [
        ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    ]
    for kind, lines in picked.items():
        label, line = reading.label(kind), next(iter(lines.values()))
        mean = _mean(differences(line, label, of), list(lines))
        edge = ", ".join(on_edge(results, line, label, list(lines))) or "no"
        row = [plotting.schedule_name(kind, math=False), label, f"{max(lines):g}x"]
        table.append([*row, *_values(line, names), mean, edge])
    return Exhibit(
        "settings_of_single_trajectories",
        "Settings of the single trajectories",
        "For each horizon-free schedule the settings whose mean difference to the cosine envelope, "
        "over all budgets, is least (Table 2 of the paper). First seed.",
        table,
        None,
        notes(results, reading, picked),
    )


def each_settings(results: Results, reading: Reading) -> Exhibit | None:
    """Returns the settings with the lowest loss at each budget (the tables of the appendix)."""
    picked = {ENVELOPE: envelope(results), **pick_best(results, reading)}
    if not any(picked.values()):
        return None
    names = _names(results, list(picked))
    table = [["schedule", "budget", "read out", *names, "loss", "on the edge"]]
    for kind, lines in picked.items():
        label, name = reading.label(kind), plotting.schedule_name(kind, math=False)
        for m, line in lines.items():
            edge = ", ".join(on_edge(results, line, label, [m])) or "no"
            loss = f"{line.at(label)[m]:.4f}"
            table.append([name, f"{m:g}x", label, *_values(line, names), loss, edge])
    return Exhibit(
        "settings_at_each_budget",
        "Best settings at each budget",
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        table,
        None,
        notes(results, reading, picked),
    )


def all_runs(results: Results, reading: Reading) -> Exhibit:
    """Returns every run with its losses at all multiples."""
    multiples = results.multiples
    table = [["run", "state", "read out", *times(multiples)]]
    for run in results.results:
        label = reading.label(run.kind)
        state = "finished" if run.is_finished else f"at {run.at:.3g}x" if run.at else "missing"
        losses = {m: x[label] for m, x in run.losses.items() if label in x}
        table.append([run.name, state, label, *cells(losses, multiples)])
    finished = sum(run.is_finished for run in results.results)
    tokens = format_count(results.clock.tokens(results.clock.chinchilla_steps))
    return Exhibit(
        "runs",
        "All runs",
        f"{finished} of {len(results.results)} runs are finished; 1x is {tokens} tokens, "
        f"{results.clock.chinchilla_steps:,} updates. Validation loss in nats per token.",
        table,
    )


def _names(results: Results, among: Sequence[str]) -> list[str]:
    """The short names of the settings that any line of some kinds has, without those of a decay."""
    names = [name for x in results.lines if x.kind in among for name in x.settings]
    return [x for x in dict.fromkeys(names) if x not in ("floor", "shape")]


def _values(line: Line, names: Sequence[str]) -> list[str]:
    given = line.settings
    return [f"{given[k]:g}" if is_number(given.get(k)) else str(given.get(k, "-")) for k in names]
