"""The tables of a study: differences to the envelope, settings, and all runs."""

import math
import statistics
from collections.abc import Mapping, Sequence

from anytime_jax.clock import human
from anytime_jax.study import published, style
from anytime_jax.study.exhibit import Exhibit, cells, kinds, notes, selected, times
from anytime_jax.study.figures import Curve
from anytime_jax.study.results import Line, Results
from anytime_jax.study.select import Gap, Reading, best_at, differences, envelope, on_edge


def compared(
    results: Results, curves: Sequence[Curve], multiples: Sequence[float]
) -> list[list[str]]:
    """Losses, differences, and the paper's own differences at the same multiples."""
    head = ["", *times(multiples), "mean"]
    rows = [head]
    for curve in curves:
        rows.append([f"{_plain(curve)}: loss", *cells(curve.losses, multiples), ""])
    for curve in curves[1:]:
        mean = statistics.fmean(x.mean for x in curve.gaps.values())
        found = _gap_cells(curve.gaps, multiples)
        rows.append([f"{_plain(curve)}: minus cosine", *found, f"{mean:+.4f}"])
    for model in published.losses():
        for kind, theirs in published.differences(model).items():
            there = [theirs[m] for m in multiples if m in theirs]
            mean = f"{statistics.fmean(there):+.4f}" if there else ""
            name = f"the paper, {model}, {style.PLAIN_NAMES[kind]}: minus cosine"
            rows.append([name, *cells(theirs, multiples, "+"), mean])
    return rows


def _gap_cells(found: Mapping[float, Gap], multiples: Sequence[float]) -> list[str]:
    """Differences in nats, with their standard error where there is more than one seed."""
    told = []
    for m in multiples:
        gap = found.get(m)
        noise = "" if gap is None or math.isnan(gap.noise) else f" ± {gap.noise:.4f}"
        told.append("" if gap is None else f"{gap.mean:+.4f}{noise}")
    return told


def _plain(curve: Curve) -> str:
    return curve.name.replace(style.NAMES["inverse_sqrt"], style.PLAIN_NAMES["inverse_sqrt"])


def single_settings(results: Results, reading: Reading) -> Exhibit | None:
    """Returns the settings whose mean difference to the envelope is least (Table 2)."""
    chosen, of = selected(results, reading), envelope(results)
    if not chosen:
        return None
    names = _names(results, list(chosen))
    table = [
        ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    ]
    for kind, line in chosen.items():
        label = reading.label(kind)
        found = differences(line, label, of)
        mean = f"{statistics.fmean(found.values()):+.4f}" if found else ""
        edge = ", ".join(on_edge(results, line)) or "no"
        row = [style.PLAIN_NAMES.get(kind, kind), label, f"{max(found):g}x"]
        table.append([*row, *_values(line, names), mean, edge])
    return Exhibit(
        "settings_of_single_trajectories",
        "Settings of the single trajectories",
        "For each schedule the settings whose mean difference to the cosine envelope, over all "
        "budgets, is least (Table 2 of the paper). First seed.",
        table,
        None,
        notes(results, list(chosen), list(chosen.values())),
    )


def each_settings(results: Results, reading: Reading) -> Exhibit | None:
    """Returns the settings with the lowest loss at each budget (the tables of the appendix)."""
    compared_kinds = ["cosine", *kinds(results)]
    names = _names(results, compared_kinds)
    table = [["schedule", "budget", "read out", *names, "loss", "on the edge"]]
    used = []
    for kind in compared_kinds:
        label = reading.label(kind)
        for m in results.multiples:
            line = best_at(results.main(kind), m, label)
            if line is not None:
                used.append(line)
                edge = ", ".join(on_edge(results, line)) or "no"
                name = style.PLAIN_NAMES.get(kind, kind)
                loss = f"{line.at(label)[m]:.4f}"
                table.append([name, f"{m:g}x", label, *_values(line, names), loss, edge])
    if not used:
        return None
    return Exhibit(
        "settings_at_each_budget",
        "Best settings at each budget",
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        table,
        None,
        notes(results, compared_kinds, used),
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
    tokens = human(results.clock.tokens(results.clock.chinchilla_steps))
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
    return [f"{line.settings[k]:g}" if k in line.settings else "-" for k in names]
