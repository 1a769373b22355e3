"""Report items of a study: each figure and table of the paper, from the study's results.

`ITEMS` lists them in order. An item whose runs are not in the study is skipped; one that lacks some
of its runs is made from the others, with a note that names them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax import plotting
from anytime_jax.averaging import LIVE
from anytime_jax.formatting import format_count
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
    Gap,
    Selection,
    at_grid_edge,
    best_at,
    common_multiples,
    differences,
    envelope,
    gaps,
    losses_of,
    select_best,
    select_single,
)

SELECT_AT = 3  # the paper selects settings at the first three multiples: 1x, 2x, 4x


@dataclasses.dataclass(frozen=True)
class Content:
    """A table with its caption, the figure that draws it if there is one, and notes on both."""

    caption: str
    table: Table
    figure: Figure | None = None
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Context:
    """Results with the selections that several items show.

    Attributes:
      results: results of the study.
      model: "150M" or "300M" to draw the paper's published differences too.
      cosines: the envelope.
      single: selections of the main comparison, by kind.
      best: best curve at each multiple, by kind.
    """

    results: Results
    model: str
    cosines: Selection
    single: Mapping[str, Selection]
    best: Mapping[str, Selection]

    @property
    def multiples(self) -> list[float]:
        """Multiples of the envelope."""
        return sorted(self.cosines)


@dataclasses.dataclass(frozen=True)
class ReportItem:
    """A figure or a table of the report; `name` is that of its files and of its anchor."""

    name: str
    title: str
    content: Content


def make_items(results: Results, model: str = "") -> tuple[list[ReportItem], list[str]]:
    """Returns the items that the results allow, and the titles of those that were skipped."""
    context = Context(
        results, model, envelope(results), select_single(results), select_best(results)
    )
    items, skipped = [], []
    for name, (title, make) in ITEMS.items():
        content = make(context)
        if content is None:
            skipped.append(title)
        else:
            items.append(ReportItem(name, title, content))
    return items, skipped


def _comparison(context: Context) -> Content | None:
    results, selections, tuned = context.results, context.single, _tuned_cosines(context)
    single = {k: next(iter(x.values())) for k, x in selections.items() if k in HORIZON_FREE}
    settings = "; ".join(f"{_name(kind)}: {curve.description}" for kind, curve in single.items())
    caption = (
        "Left: validation loss. Each point of the cosine envelope is the best of the cosines "
        "trained to that budget. A horizon-free curve is a single run, the one whose mean "
        f"difference to the envelope is least ({settings or 'none'}); a point of WSD is the best "
        "branch of any trunk. Right: difference to the envelope; below zero is better than the "
        "cosine."
    )
    partial = []  # single curves that were selected before all their rivals were evaluated
    for kind in single:
        common = common_multiples(results.curves(kind), results.label(kind), context.cosines)
        if common != context.multiples:
            partial.append(f"{_name(kind)} on {', '.join(headers(common))}")
    note = f"Provisional, as runs are unfinished: selected {'; '.join(partial)} only."
    longest = tuned[max(tuned)] if tuned else None
    return _compare(context, selections, caption, longest, [note] if partial else [])


def _best_at_each_budget(context: Context) -> Content | None:
    caption = (
        "As above, with every schedule at the settings that are best at that very budget: these "
        "are not single runs."
    )
    return _compare(context, context.best, caption)


def _compare(
    context: Context,
    selections: Mapping[str, Selection],
    caption: str,
    longest_cosine: Mapping[float, float] | None = None,
    notes: Sequence[str] = (),
) -> Content | None:
    results, cosines, model = context.results, context.cosines, context.model
    if not cosines or not selections:
        return None
    series = [Series(COSINE, LIVE, losses_of(cosines, LIVE), {})]
    for kind, selection in selections.items():
        label = results.label(kind)
        selected = {m: gaps(results, x, label, cosines)[m] for m, x in selection.items()}
        series.append(Series(kind, label, losses_of(selection, label), selected))
    seeds = sorted({gap.seeds for each in series for gap in each.gaps.values()})
    noise = "One seed: the noise of the differences is unknown."
    if max(seeds) > 1:
        noise = (
            f"Differences are means over {' or '.join(map(str, seeds))} seeds of weights and data, "
            "with their standard error where there is more than one. The first seed selected the "
            "settings, which favours it a little: the table has rows for the other seeds."
        )
    same_model = results.study.published == model
    return Content(
        f"{caption} {noise}",
        comparison_table(series, context.multiples),
        report_figures.draw_comparison(results.clock, series, longest_cosine, model, same_model),
        [*_notes(results, {COSINE: cosines, **selections}), *notes],
    )


def _cosine_transfer(context: Context) -> Content | None:
    tuned, multiples = _tuned_cosines(context), context.multiples
    if len(tuned) < 2:
        return None
    rows = [[f"{m:g}x", *loss_cells(tuned[m], multiples)] for m in sorted(tuned)]
    losses = losses_of(context.cosines, LIVE)
    return Content(
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on the way to its own horizon.",
        [["cosine tuned for", *headers(multiples)], *rows],
        report_figures.draw_cosine_transfer(context.results.clock, losses, tuned),
        _notes(context.results, {COSINE: context.cosines}),
    )


def _setting_transfer(context: Context) -> Content | None:
    results, multiples = context.results, context.multiples
    rows: dict[str, dict[float, tuple[str, dict[float, Gap]]]] = {}
    for kind, selection in context.best.items():
        for m in multiples[:SELECT_AT]:
            if kind in HORIZON_FREE and m in selection:
                all_gaps = gaps(results, selection[m], results.label(kind), context.cosines)
                later = {k: gap for k, gap in all_gaps.items() if k >= m}
                rows.setdefault(kind, {})[m] = (selection[m].description, later)
    if not rows:
        return None
    table = [["schedule", "selected at", "settings", *headers(multiples)]]
    for kind, selected in rows.items():
        for m, (settings, later) in selected.items():
            first = {k: gap.first for k, gap in later.items()}
            table.append([_name(kind), f"{m:g}x", settings, *loss_cells(first, multiples, "+")])
    return Content(
        f"Each row selects the settings with the lowest loss of {results.average} at one budget "
        "and shows the difference of the same runs to the cosine envelope at later ones, in nats; "
        "below zero is better than the cosine. First seed.",
        table,
        report_figures.draw_setting_transfer(multiples, rows),
        _notes(results, {}, [COSINE, *rows]),
    )


def _alpha(context: Context) -> Content | None:
    results, multiples, kind = context.results, context.multiples, "inverse_sqrt"
    label = results.label(kind)
    at = multiples[:SELECT_AT][-1] if multiples else 0.0
    selected = best_at(results.curves(kind), at, label)
    if selected is None or "alpha" not in selected.settings:
        return None
    curves = {
        x.settings["alpha"]: {m: loss for m, loss in x.of(label).items() if m in context.cosines}
        for x in results.curves(kind)
        if x.differs_in(selected) <= {"alpha"}
    }
    if len(curves) < 2:
        return None
    rows = [[f"{alpha:g}", *loss_cells(x, multiples)] for alpha, x in sorted(curves.items())]
    others = describe({k: v for k, v in selected.settings.items() if k != "alpha"})
    losses = losses_of(context.cosines, LIVE)
    return Content(
        f"The inverse square root read out through {label}, every other setting as selected at "
        f"{at:g}x ({others}).",
        [["alpha", *headers(multiples)], *rows],
        report_figures.draw_alphas(results.clock, curves, losses),
        _notes(results, {kind: {at: selected}}),
    )


def _averages(context: Context) -> Content | None:
    results = context.results
    selections = {COSINE: context.cosines, **context.single}
    curves = [
        dataclasses.replace(
            next(iter(selection.values())),
            losses={m: curve.losses[m] for m, curve in selection.items()},
        )
        for selection in selections.values()
        if selection
    ]
    curves = [x for x in curves if any(len(losses) > 1 for losses in x.losses.values())]
    if not curves:
        return None
    labels = [*(label for label in results.labels if label != LIVE), LIVE]
    table = [["schedule", "budget", *labels]]
    for curve in curves:
        for m, losses in sorted(curve.losses.items()):
            cells = [f"{losses[x]:.4f}" if x in losses else "" for x in labels]
            table.append([_name(curve.kind), f"{m:g}x", *cells])
    return Content(
        "Gain of each average over the live weights of the same run; below zero is better. The "
        "half-life of an average is 1/f of the run: 1% of it for f100, 16% for f6.25. First seed; "
        "every schedule at the settings of the comparison.",
        table,
        report_figures.draw_averages(curves, labels),
        _notes(results, {}, list(selections)),
    )


def _decay_ends(context: Context) -> Content | None:
    results = context.results
    changes: dict[str, dict[float, float]] = {}
    for kind in (COSINE, "wsd", "linear"):
        for curve in results.curves(kind):
            losses = curve.of(LIVE)
            for other in results.other_decays(curve):
                change = {m: x - losses[m] for m, x in other.of(LIVE).items() if m in losses}
                ends = ", ".join(
                    f"{name} {curve.settings[name]} → {other.settings[name]}"
                    for name in ("floor", "shape")
                    if curve.settings.get(name) != other.settings.get(name)
                )
                if change:
                    changes[f"{kind}, {curve.description}, {ends}"] = change
    if not changes:
        return None
    multiples = sorted({m for change in changes.values() for m in change})
    rows = [[name, *loss_cells(change, multiples, "+")] for name, change in changes.items()]
    return Content(
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else equal; below zero, the second is better. First seed.",
        [["decay", *headers(multiples)], *rows],
        report_figures.draw_decay_ends(results.clock, changes),
        _notes(results, {}, [COSINE, "wsd"]),
    )


def _single_settings(context: Context) -> Content | None:
    results = context.results
    selections = {k: x for k, x in context.single.items() if k in HORIZON_FREE}
    if not selections:
        return None
    names = setting_names(results, list(selections))
    table = [
        ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    ]
    for kind, selection in selections.items():
        label, curve = results.label(kind), next(iter(selection.values()))
        mean = mean_cell(differences(curve, label, context.cosines), list(selection))
        edges = ", ".join(at_grid_edge(results, curve, label, list(selection))) or "no"
        values = setting_cells(curve, names)
        table.append([_name(kind), label, f"{max(selection):g}x", *values, mean, edges])
    return Content(
        "For each horizon-free schedule, the settings whose mean difference to the cosine "
        "envelope, over all budgets, is least (Table 2 of the paper). First seed.",
        table,
        notes=_notes(results, selections),
    )


def _best_settings(context: Context) -> Content | None:
    results = context.results
    selections = {COSINE: context.cosines, **context.best}
    if not any(selections.values()):
        return None
    names = setting_names(results, list(selections))
    table = [["schedule", "budget", "read out", *names, "loss", "on the edge"]]
    for kind, selection in selections.items():
        label = results.label(kind)
        for m, curve in selection.items():
            edges = ", ".join(at_grid_edge(results, curve, label, [m])) or "no"
            cells = [*setting_cells(curve, names), f"{curve.of(label)[m]:.4f}", edges]
            table.append([_name(kind), f"{m:g}x", label, *cells])
    return Content(
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        table,
        notes=_notes(results, selections),
    )


def _runs(context: Context) -> Content:
    results = context.results
    table = [["run", "state", "read out", *headers(results.multiples)]]
    for run in results.runs:
        label = results.label(run.kind)
        losses = {m: x[label] for m, x in run.losses.items() if label in x}
        table.append([run.name, run.state, label, *loss_cells(losses, results.multiples)])
    finished = sum(run.is_finished for run in results.runs)
    clock = results.clock
    return Content(
        f"{finished} of {len(results.runs)} runs are finished; 1x is "
        f"{format_count(clock.tokens(clock.chinchilla_steps))} tokens, "
        f"{clock.chinchilla_steps:,} updates. Validation loss in nats per token.",
        table,
    )


ITEMS: dict[str, tuple[str, Callable[[Context], Content | None]]] = {
    "comparison": ("Horizon-free runs against cosines tuned for every budget", _comparison),
    "best_at_each_budget": ("The best settings at each budget", _best_at_each_budget),
    "cosine_transfer": ("Cosines do not transfer across budgets", _cosine_transfer),
    "transfer": ("Settings selected early, evaluated later", _setting_transfer),
    "alpha": ("Sensitivity to the offset alpha", _alpha),
    "averages": ("Loss against the factor f of the average", _averages),
    "decay_ends": ("Other ends of the decay", _decay_ends),
    "settings_of_single_trajectories": ("Settings of the single trajectories", _single_settings),
    "settings_at_each_budget": ("Best settings at each budget", _best_settings),
    "runs": ("All runs", _runs),
}


def _tuned_cosines(context: Context) -> dict[float, dict[float, float]]:
    """Losses of the envelope's cosine of each horizon at all evaluated multiples."""
    tuned = {}
    for m, curve in context.cosines.items():
        for run in context.results.runs:
            same = (run.kind, run.settings, run.seed) == (curve.kind, curve.settings, curve.seed)
            if same and run.horizon == m:
                tuned[m] = {at: losses[LIVE] for at, losses in run.losses.items()}
    return tuned


def _notes(
    results: Results, selections: Mapping[str, Selection], other_kinds: Sequence[str] = ()
) -> list[str]:
    """Notes on unfinished runs of the kinds shown, and on selected settings at a grid's edge."""
    notes = []
    if unfinished := results.unfinished([*other_kinds, *selections]):
        more = f"; and {len(unfinished) - 6} more" if unfinished[6:] else ""
        notes.append(f"Not finished: {'; '.join(unfinished[:6])}{more}.")
    edges: dict[tuple[str, str], list[float]] = {}
    for kind, selection in selections.items():
        for m, curve in selection.items():
            if names := at_grid_edge(results, curve, results.label(kind), [m]):
                text = f"{curve.description}: {', '.join(names)}"
                edges.setdefault((_name(kind), text), []).append(m)
    if edges:
        each = [f"{name} at {', '.join(headers(at))} ({x})" for (name, x), at in edges.items()]
        notes.append(f"At the edge of the grid, which should be widened: {'; '.join(each)}.")
    return notes


def _name(kind: str) -> str:
    return plotting.schedule_name(kind, math=False)
