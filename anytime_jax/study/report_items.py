"""Report items of a study: each figure and table of the paper, from the study's results.

`ITEMS` lists them in order. An item whose runs are not in the study is skipped; one that lacks some
of its runs is made from the others, with a note that names them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from anytime_jax.averaging import LIVE
from anytime_jax.plotting import schedule_name
from anytime_jax.study import report_figures
from anytime_jax.study.report_figures import Series
from anytime_jax.study.report_tables import (
    Table,
    comparison_table,
    headers,
    loss_cells,
    mean_cell,
    setting_cells,
    setting_names,
)
from anytime_jax.study.results import COSINE, HORIZON_FREE, Results, describe
from anytime_jax.study.selection import (
    Selection,
    Selections,
    at_grid_edge,
    best_at,
    common_multiples,
    differences,
    gaps,
    losses_of,
    select,
)

SELECT_AT = 3  # the paper selects settings at the first three multiples: 1x, 2x, 4x


@dataclasses.dataclass(frozen=True)
class ReportItem:
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
    cosines, tuned = selections.cosines, _tuned_cosines(results, selections.cosines)
    single = {k: next(iter(x.values())) for k, x in _horizon_free(selections.single).items()}
    settings = "; ".join(f"{_name(kind)}: {curve.description}" for kind, curve in single.items())
    caption = (
        "Left: validation loss. Each point of the cosine envelope is the best of the cosines "
        "trained to that budget. A horizon-free curve is a single run, the one whose mean "
        f"difference to the envelope is least ({settings or 'none'}); a point of WSD is the best "
        "branch of any trunk. Right: difference to the envelope; below zero is better than the "
        "cosine."
    )
    partial_kinds = []  # single curves selected before all their rivals were evaluated
    for kind in single:
        common = common_multiples(results.curves(kind), results.label(kind), cosines)
        if common != list(cosines):
            partial_kinds.append(f"{_name(kind)} on {', '.join(headers(common))}")
    note = f"Provisional, as runs are unfinished: selected {'; '.join(partial_kinds)} only."
    return _compare(
        "Horizon-free runs against cosines tuned for every budget",
        caption,
        results,
        cosines,
        selections.single,
        longest_cosine=tuned[max(tuned)] if tuned else None,
        notes=[note] if partial_kinds else [],
    )


def _best_at_each_budget(results: Results, selections: Selections) -> ReportItem | None:
    caption = (
        "As above, with every schedule at the settings that are best at that very budget: these "
        "are not single runs."
    )
    title = "The best settings at each budget"
    return _compare(title, caption, results, selections.cosines, selections.best)


def _compare(
    title: str,
    caption: str,
    results: Results,
    cosines: Selection,
    selected: Mapping[str, Selection],
    longest_cosine: Mapping[float, float] | None = None,
    notes: Sequence[str] = (),
) -> ReportItem | None:
    if not cosines or not selected:
        return None
    series = [Series(COSINE, LIVE, losses_of(cosines, LIVE), {})]
    for kind, selection in selected.items():
        label = results.label(kind)
        by_multiple = {m: gaps(results, x, label, cosines)[m] for m, x in selection.items()}
        series.append(Series(kind, label, losses_of(selection, label), by_multiple))
    seeds = sorted({gap.seeds for each in series for gap in each.gaps.values()})
    noise = "One seed: the noise of the differences is unknown."
    if max(seeds) > 1:
        noise = (
            f"Differences are means over {' or '.join(map(str, seeds))} seeds of weights and data, "
            "with their standard error where there is more than one. The first seed selected the "
            "settings, which favours it a little: the table has rows for the other seeds."
        )
    return ReportItem(
        title,
        f"{caption} {noise}",
        comparison_table(series, list(cosines)),
        partial(
            report_figures.draw_comparison,
            results.clock,
            series,
            longest_cosine,
            results.study.published,
        ),
        [*_notes(results, {COSINE: cosines, **selected}), *notes],
    )


def _cosine_transfer(results: Results, selections: Selections) -> ReportItem | None:
    cosines = selections.cosines
    tuned = _tuned_cosines(results, cosines)
    if len(tuned) < 2:
        return None
    rows = [[f"{m:g}x", *loss_cells(tuned[m], list(cosines))] for m in sorted(tuned)]
    losses = losses_of(cosines, LIVE)
    return ReportItem(
        "Cosines do not transfer across budgets",
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on the way to its own horizon.",
        [["cosine tuned for", *headers(list(cosines))], *rows],
        partial(report_figures.draw_cosine_transfer, results.clock, losses, tuned),
        _notes(results, {COSINE: cosines}),
    )


def _setting_transfer(results: Results, selections: Selections) -> ReportItem | None:
    multiples = list(selections.cosines)
    differences_of: dict[str, dict[str, dict[float, float]]] = {}  # by kind and settings
    rows = []
    for kind, selection in _horizon_free(selections.best).items():
        for m in [m for m in multiples[:SELECT_AT] if m in selection]:
            every = differences(selection[m], results.label(kind), selections.cosines)
            later = {k: x for k, x in every.items() if k >= m}
            settings = selection[m].description
            differences_of.setdefault(kind, {})[f"{m:g}×: {settings}"] = later
            rows.append([_name(kind), f"{m:g}x", settings, *loss_cells(later, multiples, "+")])
    if not rows:
        return None
    return ReportItem(
        "Settings selected early, evaluated later",
        f"Each row selects the settings with the lowest loss of {results.average} at one budget "
        "and shows the difference of the same runs to the cosine envelope at later ones, in nats; "
        "below zero is better than the cosine. First seed.",
        [["schedule", "selected at", "settings", *headers(multiples)], *rows],
        partial(report_figures.draw_setting_transfer, multiples, differences_of),
        _notes(results, {}, [COSINE, *differences_of]),
    )


def _alpha(results: Results, selections: Selections) -> ReportItem | None:
    cosines, kind = selections.cosines, "inverse_sqrt"
    multiples, label = list(cosines), results.label(kind)
    at = multiples[:SELECT_AT][-1] if multiples else 0.0
    selected = best_at(results.curves(kind), at, label)
    if selected is None or "alpha" not in selected.settings:
        return None
    curves = {
        x.settings["alpha"]: {m: loss for m, loss in x.of(label).items() if m in cosines}
        for x in results.curves(kind)
        if x.differs_in(selected) <= {"alpha"}
    }
    if len(curves) < 2:
        return None
    rows = [[f"{alpha:g}", *loss_cells(x, multiples)] for alpha, x in sorted(curves.items())]
    others = describe({k: v for k, v in selected.settings.items() if k != "alpha"})
    losses = losses_of(cosines, LIVE)
    return ReportItem(
        "Sensitivity to the offset alpha",
        f"The inverse square root read out through {label}, every other setting as selected at "
        f"{at:g}x ({others}).",
        [["alpha", *headers(multiples)], *rows],
        partial(report_figures.draw_alphas, results.clock, curves, losses),
        _notes(results, {kind: {at: selected}}),
    )


def _averages(results: Results, selections: Selections) -> ReportItem | None:
    selected = {COSINE: selections.cosines, **selections.single}
    losses = {
        kind: {m: x.losses[m] for m, x in curves.items()} for kind, curves in selected.items()
    }
    losses = {k: x for k, x in losses.items() if any(len(labels) > 1 for labels in x.values())}
    if not losses:
        return None
    labels = [*(label for label in results.labels if label != LIVE), LIVE]
    rows = [
        [_name(kind), f"{m:g}x", *loss_cells(by_label, labels)]
        for kind, by_multiple in losses.items()
        for m, by_label in sorted(by_multiple.items())
    ]
    return ReportItem(
        "Loss against the factor f of the average",
        "Gain of each average over the live weights of the same run; below zero is better. The "
        "half-life of an average is 1/f of the run: 1% of it for f100, 16% for f6.25. First seed; "
        "every schedule at the settings of the comparison.",
        [["schedule", "budget", *labels], *rows],
        partial(report_figures.draw_averages, losses, labels),
        _notes(results, {}, list(selected)),
    )


def _decay_ends(results: Results, selections: Selections) -> ReportItem | None:
    del selections
    changes: dict[str, dict[float, float]] = {}
    for curve in [x for kind in (COSINE, "wsd", "linear") for x in results.curves(kind)]:
        losses = curve.of(LIVE)
        for other in results.other_decays(curve):
            ends = ", ".join(
                f"{name} {curve.settings[name]} → {other.settings[name]}"
                for name in ("floor", "shape")
                if curve.settings.get(name) != other.settings.get(name)
            )
            if change := {m: x - losses[m] for m, x in other.of(LIVE).items() if m in losses}:
                changes[f"{curve.kind}, {curve.description}, {ends}"] = change
    if not changes:
        return None
    multiples = sorted({m for change in changes.values() for m in change})
    rows = [[name, *loss_cells(change, multiples, "+")] for name, change in changes.items()]
    return ReportItem(
        "Other ends of the decay",
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else equal; below zero, the second is better. First seed.",
        [["decay", *headers(multiples)], *rows],
        partial(report_figures.draw_decay_ends, results.clock, changes),
        _notes(results, {}, [COSINE, "wsd"]),
    )


def _single_settings(results: Results, selections: Selections) -> ReportItem | None:
    selected = _horizon_free(selections.single)
    if not selected:
        return None
    names = setting_names(results, list(selected))
    rows = []
    for kind, selection in selected.items():
        label, curve, multiples = results.label(kind), next(iter(selection.values())), [*selection]
        mean = mean_cell(differences(curve, label, selections.cosines), multiples)
        edges = ", ".join(at_grid_edge(results, curve, label, multiples)) or "no"
        cells = [*setting_cells(curve, names), mean, edges]
        rows.append([_name(kind), label, f"{max(multiples):g}x", *cells])
    header = ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    return ReportItem(
        "Settings of the single trajectories",
        "For each horizon-free schedule, the settings whose mean difference to the cosine "
        "envelope, over all budgets, is least (Table 2 of the paper). First seed.",
        [header, *rows],
        notes=_notes(results, selected),
    )


def _best_settings(results: Results, selections: Selections) -> ReportItem | None:
    selected = {COSINE: selections.cosines, **selections.best}
    names = setting_names(results, list(selected))
    rows = []
    for kind, selection in selected.items():
        label = results.label(kind)
        for m, curve in selection.items():
            edges = ", ".join(at_grid_edge(results, curve, label, [m])) or "no"
            cells = [*setting_cells(curve, names), f"{curve.of(label)[m]:.4f}", edges]
            rows.append([_name(kind), f"{m:g}x", label, *cells])
    if not rows:
        return None
    return ReportItem(
        "Best settings at each budget",
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        [["schedule", "budget", "read out", *names, "loss", "on the edge"], *rows],
        notes=_notes(results, selected),
    )


def _runs(results: Results, selections: Selections) -> ReportItem:
    del selections
    rows = []
    for run in results.runs:
        label = results.label(run.kind)
        losses = {m: x[label] for m, x in run.losses.items() if label in x}
        rows.append([run.name, run.state, label, *loss_cells(losses, results.multiples)])
    header = ["run", "state", "read out", *headers(results.multiples)]
    return ReportItem("All runs", "Validation loss in nats per token.", [header, *rows])


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


def _tuned_cosines(results: Results, cosines: Selection) -> dict[float, dict[float, float]]:
    """Losses of the envelope's cosine of each horizon at all evaluated multiples."""
    return {
        m: {at: losses[LIVE] for at, losses in run.losses.items()}
        for m, curve in cosines.items()
        for run in results.runs
        if run.horizon == m
        and (run.kind, run.settings, run.seed) == (curve.kind, curve.settings, curve.seed)
    }


def _notes(
    results: Results, selected: Mapping[str, Selection], other_kinds: Sequence[str] = ()
) -> list[str]:
    """Notes on unfinished runs of the kinds shown, and on selected settings at a grid's edge."""
    notes = []
    if unfinished := results.unfinished([*other_kinds, *selected]):
        more = f"; and {len(unfinished) - 6} more" if unfinished[6:] else ""
        notes.append(f"Not finished: {'; '.join(unfinished[:6])}{more}.")
    edges: dict[tuple[str, str], list[float]] = {}
    for kind, selection in selected.items():
        for m, curve in selection.items():
            if names := at_grid_edge(results, curve, results.label(kind), [m]):
                text = f"{curve.description}: {', '.join(names)}"
                edges.setdefault((_name(kind), text), []).append(m)
    if edges:
        each = [f"{name} at {', '.join(headers(at))} ({x})" for (name, x), at in edges.items()]
        notes.append(f"At the edge of the grid, which should be widened: {'; '.join(each)}.")
    return notes


def _horizon_free(selected: Mapping[str, Selection]) -> dict[str, Selection]:
    return {kind: selection for kind, selection in selected.items() if kind in HORIZON_FREE}


def _name(kind: str) -> str:
    return schedule_name(kind, math=False)
