"""Report items of a study: each figure and table of the paper, from the study's results.

`ITEMS` lists them in order. An item whose runs are not in the study is skipped; one that lacks some
of its runs is made from the others, with a note that names them.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from anytime_jax.averaging import LIVE
from anytime_jax.checks import is_number
from anytime_jax.tables import Column, Table, numbers
from anytime_lab.paper import report_figures
from anytime_lab.paper.report_figures import Series
from anytime_lab.schedule_styles import schedule_name
from anytime_lab.study import paper_losses
from anytime_lab.study.results import COSINE, DECAY, LossCurve, Results, describe
from anytime_lab.study.selection import (
    Selection,
    Selections,
    at_grid_edge,
    best_at,
    common_multiples,
    differences,
    gap_at,
    losses_of,
    select,
)

SELECTION_MULTIPLES = 3  # the paper selects settings at the first three multiples: 1x, 2x, 4x


class ReportItem(NamedTuple):
    """A table with its caption, a function that draws it if there is a figure, and notes."""

    title: str
    caption: str
    table: Table
    draw: Callable[[], Figure] | None = None
    notes: Sequence[str] = ()


def make_items(results: Results) -> tuple[dict[str, ReportItem], list[str]]:
    """Returns the items that the results allow, by name, and the names of the others."""
    selections = select(results)
    candidates = {name: make(results, selections) for name, make in ITEMS.items()}
    items = {name: item for name, item in candidates.items() if item is not None}
    return items, [name for name in ITEMS if name not in items]


def _comparison(results: Results, selections: Selections) -> ReportItem | None:
    cosines = selections.cosines
    # `provisional` has single curves that were selected before all rivals were evaluated.
    settings, provisional = [], []
    for kind, selection in _horizon_free(selections.single).items():
        settings.append(f"{_name_cell(kind)}: {next(iter(selection.values())).description}")
        common = common_multiples(results.comparable_curves(kind), cosines)
        if common != list(cosines):
            provisional.append(f"{_name_cell(kind)} on {', '.join(_headers(common))}")
    note = f"Provisional, as runs are unfinished: selected {'; '.join(provisional)} only."
    return _compare(
        "Horizon-free runs against cosines tuned for every budget",
        "Left: validation loss. Each point of the cosine envelope is the best of the cosines "
        "trained to that budget. A horizon-free curve is a single run, the one whose mean "
        f"difference to the envelope is least ({'; '.join(settings) or 'none'}); a point of WSD is "
        "the best branch of any trunk. Right: difference to the envelope; below zero is better "
        "than the cosine.",
        results,
        selections.single,
        longest_cosine=_losses_on_the_way(cosines).get(max(cosines, default=0.0)),
        notes=[note] if provisional else [],
    )


def _best_at_each_budget(results: Results, selections: Selections) -> ReportItem | None:
    return _compare(
        "The best settings at each budget",
        "As above, with every schedule at the settings that are best at that very budget: these "
        "are not single runs.",
        results,
        selections.best,
    )


def _compare(
    title: str,
    caption: str,
    results: Results,
    selected: Mapping[str, Selection],
    longest_cosine: Mapping[float, float] | None = None,
    notes: Sequence[str] = (),
) -> ReportItem | None:
    if len(selected) < 2:
        return None
    cosines = selected[COSINE]
    series = []
    for kind, selection in selected.items():
        label = next(iter(selection.values())).label
        gaps = {m: gap_at(results, curve, m, cosines) for m, curve in selection.items()}
        series.append(Series(kind, label, losses_of(selection), gaps))
    seeds = sorted({gap.seeds for each in series[1:] for gap in each.gaps.values()})
    noise = "One seed: the noise of the differences is unknown."
    if max(seeds) > 1:
        noise = (
            f"Differences are means over {' or '.join(map(str, seeds))} seeds of weights and data, "
            "with their standard error if there are several. The first seed selected the "
            "settings, which favors it a little: the table has rows for the other seeds."
        )
    model = results.study.published
    draw = partial(report_figures.draw_comparison, results.clock, series, longest_cosine, model)
    table = _comparison_table(series, list(cosines))
    notes = [*_notes(results, selected), *notes]
    return ReportItem(title, f"{caption} {noise}", table, draw, notes)


def _comparison_table(series: Sequence[Series], multiples: Sequence[float]) -> Table:
    """Losses, differences to the envelope, and the paper's differences."""

    def difference_row(name: str, numbers: Mapping[float, float]) -> list[str]:
        return [name, *_loss_cells(numbers, multiples, "+"), _mean_cell(numbers, multiples)]

    table = Table("", ["", *numbers(*_headers(multiples), "mean")])
    for each in series:
        cells = _loss_cells(each.losses, multiples)
        table.add_row(f"{each.name(math=False)}: loss, first seed", *cells, None)
    for each in series[1:]:
        name = f"{each.name(math=False)}: minus cosine"
        row = difference_row(name, {m: gap.mean for m, gap in each.gaps.items()})
        others = {m: gap.others for m, gap in each.gaps.items() if gap.seeds > 1}
        for m in others:
            row[1 + multiples.index(m)] += f" ± {each.gaps[m].stderr:.4f}"
        table.add_row(*row)
        if others:
            table.add_row(*difference_row(f"{name}, seeds that did not choose", others))
    for model in paper_losses.losses():
        for kind, theirs in paper_losses.differences(model).items():
            name = f"the paper, {model}, {_name_cell(kind)}: minus cosine"
            table.add_row(*difference_row(name, theirs))
    return table


def _cosine_transfer(results: Results, selections: Selections) -> ReportItem | None:
    cosines = selections.cosines
    if len(cosines) < 2:
        return None
    tuned = _losses_on_the_way(cosines)
    rows = [[f"{m:g}x", *map(tuned[m].get, cosines)] for m in cosines]
    return ReportItem(
        "Cosines do not transfer across budgets",
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on the way to its own horizon.",
        Table("", ["cosine tuned for", *_loss_columns(cosines)], rows),
        partial(report_figures.draw_cosine_transfer, results.clock, losses_of(cosines), tuned),
        _notes(results, {COSINE: cosines}),
    )


def _setting_transfer(results: Results, selections: Selections) -> ReportItem | None:
    multiples = list(selections.cosines)
    differences_of: dict[str, dict[str, dict[float, float]]] = {}  # keys are kinds and settings
    rows = []
    for kind, selection in _horizon_free(selections.best).items():
        for m in [m for m in multiples[:SELECTION_MULTIPLES] if m in selection]:
            every = differences(selection[m], selections.cosines)
            later = {k: x for k, x in every.items() if k >= m}
            settings = selection[m].description
            differences_of.setdefault(kind, {})[f"{m:g}×: {settings}"] = later
            rows.append([_name_cell(kind), f"{m:g}x", settings, *map(later.get, multiples)])
    if not rows:
        return None
    return ReportItem(
        "Settings selected early, evaluated later",
        f"Each row selects the settings with the lowest loss of {results.average} at one budget "
        "and shows the difference of the same runs to the cosine envelope at later ones, in nats; "
        "below zero is better than the cosine. First seed.",
        Table("", ["schedule", "selected at", "settings", *_loss_columns(multiples, "+")], rows),
        partial(report_figures.draw_setting_transfer, multiples, differences_of),
        _notes(results, {}, [COSINE, *differences_of]),
    )


def _alpha(results: Results, selections: Selections) -> ReportItem | None:
    cosines, kind = selections.cosines, "inverse_sqrt"
    multiples = list(cosines)
    at = multiples[:SELECTION_MULTIPLES][-1] if multiples else 0.0
    selected = best_at(results.comparable_curves(kind), at)
    if selected is None or "alpha" not in selected.settings:
        return None
    curves = {
        x.settings["alpha"]: {m: loss for m, loss in x.losses.items() if m in cosines}
        for x in results.comparable_curves(kind)
        if x.differs_in(selected) <= {"alpha"}
    }
    if len(curves) < 2:
        return None
    rows = [[f"{alpha:g}", *map(x.get, multiples)] for alpha, x in sorted(curves.items())]
    others = describe({k: v for k, v in selected.settings.items() if k != "alpha"})
    return ReportItem(
        "Sensitivity to the offset alpha",
        f"The inverse square root read out through {selected.label}, every other setting as "
        f"selected at {at:g}x ({others}).",
        Table("", ["alpha", *_loss_columns(multiples)], rows),
        partial(report_figures.draw_alphas, results.clock, curves, losses_of(cosines)),
        _notes(results, {kind: {at: selected}}),
    )


def _averages(results: Results, selections: Selections) -> ReportItem | None:
    losses = {
        kind: {m: curve.runs[m].losses[m] for m, curve in selection.items()}
        for kind, selection in selections.single.items()
    }
    losses = {k: x for k, x in losses.items() if any(len(labels) > 1 for labels in x.values())}
    if not losses:
        return None
    there = {label for x in losses.values() for labels in x.values() for label in labels}
    labels = [*(x for x in results.labels if x != LIVE and x in there), LIVE]
    rows = [
        [_name_cell(kind), f"{m:g}x", *map(by_label.get, labels)]
        for kind, by_multiple in losses.items()
        for m, by_label in sorted(by_multiple.items())
    ]
    return ReportItem(
        "Loss against the factor f of the average",
        "Gain of each average over the live weights of the same run; below zero is better. The "
        "half-life of an average is 1/f of the run: 1% of it for f100, 16% for f6.25. First seed; "
        "every schedule at the settings of the comparison.",
        Table("", ["schedule", "budget", *numbers(*labels, format=".4f")], rows),
        partial(report_figures.draw_averages, losses, labels),
        _notes(results, {}, list(selections.single)),
    )


def _decay_ends(results: Results, selections: Selections) -> ReportItem | None:
    del selections
    changes: dict[str, dict[float, float]] = {}
    for curve in [x for kind in (COSINE, "wsd", "linear") for x in results.comparable_curves(kind)]:
        for other in results.all_curves:
            has_same_seed = (other.kind, other.seed) == (curve.kind, curve.seed)
            if not has_same_seed or not set() < other.differs_in(curve) <= set(DECAY):
                continue
            ends = ", ".join(
                f"{name} {curve.settings[name]} → {other.settings[name]}"
                for name in ("floor", "shape")
                if curve.settings.get(name) != other.settings.get(name)
            )
            losses = curve.losses
            if change := {m: x - losses[m] for m, x in other.losses.items() if m in losses}:
                changes[f"{curve.kind}, {curve.description}, {ends}"] = change
    if not changes:
        return None
    multiples = sorted({m for change in changes.values() for m in change})
    rows = [[name, *map(change.get, multiples)] for name, change in changes.items()]
    return ReportItem(
        "Other ends of the decay",
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else equal; below zero, the second is better. First seed.",
        Table("", ["decay", *_loss_columns(multiples, "+")], rows),
        partial(report_figures.draw_decay_ends, results.clock, changes),
        _notes(results, {}, [COSINE, "wsd"]),
    )


def _single_settings(results: Results, selections: Selections) -> ReportItem | None:
    selected = _horizon_free(selections.single)
    if not selected:
        return None
    names = _setting_names(results, selected)
    rows = []
    for kind, selection in selected.items():
        curve, multiples = next(iter(selection.values())), list(selection)
        mean = _mean_cell(differences(curve, selections.cosines), multiples)
        cells = [*_setting_cells(curve, names), mean, _edge_cell(results, curve, multiples)]
        rows.append([_name_cell(kind), curve.label, f"{max(multiples):g}x", *cells])
    header = ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    return ReportItem(
        "Settings of the single trajectories",
        "For each horizon-free schedule, the settings whose mean difference to the cosine "
        "envelope, over all budgets, is least (Table 2 of the paper). First seed.",
        Table("", header, rows),
        notes=_notes(results, selected),
    )


def _best_settings(results: Results, selections: Selections) -> ReportItem | None:
    names = _setting_names(results, selections.best)
    rows = []
    for kind, selection in selections.best.items():
        for m, curve in selection.items():
            cells = [*_setting_cells(curve, names), curve.losses[m]]
            edge = _edge_cell(results, curve, [m])
            rows.append([_name_cell(kind), f"{m:g}x", curve.label, *cells, edge])
    if not rows:
        return None
    columns: list[str | Column] = ["schedule", "budget", "read out", *names]
    return ReportItem(
        "Best settings at each budget",
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        Table("", [*columns, *numbers("loss", format=".4f"), "on the edge"], rows),
        notes=_notes(results, selections.best),
    )


def _runs(results: Results, selections: Selections) -> ReportItem:
    del selections
    rows = []
    for run in results.runs:
        losses = {m: x[run.label] for m, x in run.losses.items() if run.label in x}
        rows.append([run.name, run.state, run.label, *map(losses.get, results.multiples)])
    columns = ["run", "state", "read out", *_loss_columns(results.multiples)]
    table = Table("", columns, rows)
    return ReportItem("All runs", "Validation loss in nats per token.", table)


ITEMS: dict[str, Callable[[Results, Selections], ReportItem | None]] = {
    "comparison": _comparison,
    "best_at_each_budget": _best_at_each_budget,
    "cosine_transfer": _cosine_transfer,
    "transfer": _setting_transfer,
    "alpha": _alpha,
    "averages": _averages,
    "decay_ends": _decay_ends,
    "settings_of_single_trajectories": _single_settings,
    "settings_at_each_budget": _best_settings,
    "runs": _runs,
}


def _losses_on_the_way(cosines: Selection) -> dict[float, dict[float, float]]:
    """Losses of the cosine of each horizon at all its evaluations."""
    return {
        m: {at: losses[LIVE] for at, losses in curve.runs[m].losses.items()}
        for m, curve in cosines.items()
    }


def _notes(
    results: Results, selected: Mapping[str, Selection], other_kinds: Sequence[str] = ()
) -> list[str]:
    """Notes on unfinished runs of the kinds shown, and on selected settings at a grid's edge."""
    notes, kinds = [], {*other_kinds, *selected}
    runs = [run for run in results.runs if run.kind in kinds and run.state != "finished"]
    if runs:
        shown = "; ".join(f"{run.name} ({run.state})" for run in runs[:6])
        more = f"; and {len(runs) - 6} more" if runs[6:] else ""
        notes.append(f"Not finished: {shown}{more}.")
    edges: dict[tuple[str, str], list[float]] = {}
    for kind, selection in selected.items():
        for m, curve in selection.items():
            if names := at_grid_edge(results, curve, [m]):
                text = f"{curve.description}: {', '.join(names)}"
                edges.setdefault((_name_cell(kind), text), []).append(m)
    if edges:
        each = [f"{name} at {', '.join(_headers(at))} ({x})" for (name, x), at in edges.items()]
        notes.append(f"At the edge of the grid, which should be widened: {'; '.join(each)}.")
    return notes


def _horizon_free(selected: Mapping[str, Selection]) -> dict[str, Selection]:
    return {
        kind: selection
        for kind, selection in selected.items()
        if not any(curve.has_horizon for curve in selection.values())
    }


def _headers(multiples: Iterable[float]) -> list[str]:
    return [f"{m:g}x" for m in multiples]


def _name_cell(kind: str) -> str:
    return schedule_name(kind, math=False)


def _loss_columns(multiples: Iterable[float], sign: str = "") -> list[Column]:
    """Columns of losses, or of differences with `sign="+"`."""
    return numbers(*_headers(multiples), format=f"{sign}.4f")


def _loss_cells(
    losses: Mapping[float, float], multiples: Iterable[float], sign: str = ""
) -> list[str]:
    """Cells of losses, or of differences with `sign="+"`; empty without a value."""
    return [f"{losses[m]:{sign}.4f}" if m in losses else "" for m in multiples]


def _mean_cell(numbers: Mapping[float, float], multiples: Iterable[float]) -> str:
    """The mean over the multiples; empty unless each of them has a number."""
    complete = all(m in numbers for m in multiples)
    return f"{statistics.fmean(numbers[m] for m in multiples):+.4f}" if complete else ""


def _setting_names(results: Results, kinds: Collection[str]) -> list[str]:
    """Short names of the settings of some kinds, without the settings of a decay."""
    names = [name for x in results.all_curves if x.kind in kinds for name in x.settings]
    return [x for x in dict.fromkeys(names) if x not in ("floor", "shape")]


def _setting_cells(curve: LossCurve, names: Sequence[str]) -> list[str]:
    values = [curve.settings.get(name, "-") for name in names]
    return [f"{value:g}" if is_number(value) else str(value) for value in values]


def _edge_cell(results: Results, curve: LossCurve, multiples: Sequence[float]) -> str:
    return ", ".join(at_grid_edge(results, curve, multiples)) or "no"
