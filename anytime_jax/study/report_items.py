"""Report items of a study: each figure and table of the paper, from the study's results.

`ITEMS` lists them in order. An item whose runs are not in the study is skipped; one that lacks some
of its runs is made from the others, with a note that names them.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax import plotting
from anytime_jax.averaging import LIVE
from anytime_jax.checks import is_number
from anytime_jax.formatting import format_count
from anytime_jax.study import published, report_figures
from anytime_jax.study.report_figures import Series
from anytime_jax.study.results import COSINE, HORIZON_FREE, LossCurve, Results, describe
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

Table = Sequence[Sequence[str]]  # rows of cells, the header first


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
    results, cosines, selections = context.results, context.cosines, context.single
    if not cosines or not selections:
        return None
    single = {k: next(iter(x.values())) for k, x in selections.items() if k in HORIZON_FREE}
    settings = "; ".join(f"{_name(kind)}: {curve.description}" for kind, curve in single.items())
    series = _series(context, selections)
    tuned = _tuned_cosines(context)
    figure = report_figures.draw_comparison(
        results.clock,
        series,
        tuned[max(tuned)] if tuned else None,
        context.model,
        results.study.published == context.model,
    )
    return Content(
        "Left: validation loss. Each point of the cosine envelope is the best of the cosines "
        "trained to that budget. A horizon-free curve is a single run, the one whose mean "
        f"difference to the envelope is least ({settings or 'none'}); a point of WSD is the best "
        "branch of any trunk. Right: difference to the envelope; below zero is better than the "
        f"cosine. {_describe_noise(series)}",
        _comparison_table(series, context.multiples),
        figure,
        [
            *_notes(results, {COSINE: cosines, **selections}),
            *_provisional_note(context, list(single)),
        ],
    )


def _best_at_each_budget(context: Context) -> Content | None:
    results, cosines, selections = context.results, context.cosines, context.best
    if not cosines or not selections:
        return None
    series = _series(context, selections)
    same_model = results.study.published == context.model
    return Content(
        "As above, with every schedule at the settings that are best at that very budget: these "
        f"are not single runs. {_describe_noise(series)}",
        _comparison_table(series, context.multiples),
        report_figures.draw_comparison(results.clock, series, None, context.model, same_model),
        _notes(results, {COSINE: cosines, **selections}),
    )


def _cosine_transfer(context: Context) -> Content | None:
    tuned, multiples = _tuned_cosines(context), context.multiples
    if len(tuned) < 2:
        return None
    rows = [[f"{m:g}x", *_loss_cells(tuned[m], multiples)] for m in sorted(tuned)]
    losses = losses_of(context.cosines, LIVE)
    return Content(
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on the way to its own horizon.",
        [["cosine tuned for", *_headers(multiples)], *rows],
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
    table = [["schedule", "selected at", "settings", *_headers(multiples)]]
    for kind, selected in rows.items():
        for m, (settings, later) in selected.items():
            first = {k: gap.first for k, gap in later.items()}
            table.append([_name(kind), f"{m:g}x", settings, *_loss_cells(first, multiples, "+")])
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
    rows = [[f"{alpha:g}", *_loss_cells(x, multiples)] for alpha, x in sorted(curves.items())]
    others = describe({k: v for k, v in selected.settings.items() if k != "alpha"})
    losses = losses_of(context.cosines, LIVE)
    return Content(
        f"The inverse square root read out through {label}, every other setting as selected at "
        f"{at:g}x ({others}).",
        [["alpha", *_headers(multiples)], *rows],
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
    rows = [[name, *_loss_cells(change, multiples, "+")] for name, change in changes.items()]
    return Content(
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else equal; below zero, the second is better. First seed.",
        [["decay", *_headers(multiples)], *rows],
        report_figures.draw_decay_ends(results.clock, changes),
        _notes(results, {}, [COSINE, "wsd"]),
    )


def _single_settings(context: Context) -> Content | None:
    results = context.results
    selections = {k: x for k, x in context.single.items() if k in HORIZON_FREE}
    if not selections:
        return None
    names = _setting_names(results, list(selections))
    header = ["schedule", "read out", "evaluated through", *names, "mean difference", "on the edge"]
    table = [header]
    for kind, selection in selections.items():
        label, curve = results.label(kind), next(iter(selection.values()))
        mean = _mean_cell(differences(curve, label, context.cosines), list(selection))
        edges = ", ".join(at_grid_edge(results, curve, label, list(selection))) or "no"
        values = _setting_cells(curve, names)
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
    names = _setting_names(results, list(selections))
    table = [["schedule", "budget", "read out", *names, "loss", "on the edge"]]
    for kind, selection in selections.items():
        label = results.label(kind)
        for m, curve in selection.items():
            edges = ", ".join(at_grid_edge(results, curve, label, [m])) or "no"
            cells = [*_setting_cells(curve, names), f"{curve.of(label)[m]:.4f}", edges]
            table.append([_name(kind), f"{m:g}x", label, *cells])
    return Content(
        "The settings with the lowest validation loss at each budget (the paper's tables of "
        "per-endpoint optima). First seed.",
        table,
        notes=_notes(results, selections),
    )


def _runs(context: Context) -> Content:
    results = context.results
    table = [["run", "state", "read out", *_headers(results.multiples)]]
    for run in results.runs:
        label = results.label(run.kind)
        losses = {m: x[label] for m, x in run.losses.items() if label in x}
        table.append([run.name, run.state, label, *_loss_cells(losses, results.multiples)])
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


def _series(context: Context, selections: Mapping[str, Selection]) -> list[Series]:
    """The envelope, then the series of every kind."""
    results, cosines = context.results, context.cosines
    series = [Series(COSINE, LIVE, losses_of(cosines, LIVE), {})]
    for kind, selection in selections.items():
        label = results.label(kind)
        selected = {m: gaps(results, x, label, cosines)[m] for m, x in selection.items()}
        series.append(Series(kind, label, losses_of(selection, label), selected))
    return series


def _tuned_cosines(context: Context) -> dict[float, dict[float, float]]:
    """Losses of the envelope's cosine of each horizon at all evaluated multiples."""
    tuned = {}
    for m, curve in context.cosines.items():
        for run in context.results.runs:
            same = (run.kind, run.settings, run.seed) == (curve.kind, curve.settings, curve.seed)
            if same and run.horizon == m:
                tuned[m] = {at: losses[LIVE] for at, losses in run.losses.items()}
    return tuned


def _comparison_table(series: Sequence[Series], multiples: Sequence[float]) -> Table:
    """Losses, differences to the envelope, and the paper's differences at the same multiples."""
    rows = [["", *_headers(multiples), "mean"]]
    for each in series:
        cells = _loss_cells(each.losses, multiples)
        rows.append([f"{each.name(math=False)}: loss, first seed", *cells, ""])
    for each in series[1:]:
        name = f"{each.name(math=False)}: minus cosine"
        means = {m: gap.mean for m, gap in each.gaps.items()}
        cells = [_gap_cell(each.gaps[m]) if m in each.gaps else "" for m in multiples]
        rows.append([name, *cells, _mean_cell(means, multiples)])
        others = {m: gap.others for m, gap in each.gaps.items() if not math.isnan(gap.others)}
        if others:
            cells = [*_loss_cells(others, multiples, "+"), _mean_cell(others, multiples)]
            rows.append([f"{name}, seeds that did not choose", *cells])
    for model in published.losses():
        for kind, theirs in published.differences(model).items():
            name = f"the paper, {model}, {_name(kind)}: minus cosine"
            cells = [*_loss_cells(theirs, multiples, "+"), _mean_cell(theirs, multiples)]
            rows.append([name, *cells])
    return rows


def _describe_noise(series: Sequence[Series]) -> str:
    counts = {gap.seeds for each in series for gap in each.gaps.values()}
    if counts <= {1}:
        return "One seed: the noise of the differences is unknown."
    return (
        f"Differences are means over {' or '.join(map(str, sorted(counts)))} seeds of weights and "
        "data, with their standard error where there is more than one. The first seed selected the "
        "settings, which favours it a little: the table has rows for the other seeds."
    )


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
        each = [f"{name} at {', '.join(_headers(at))} ({x})" for (name, x), at in edges.items()]
        notes.append(f"At the edge of the grid, which should be widened: {'; '.join(each)}.")
    return notes


def _provisional_note(context: Context, kinds: Sequence[str]) -> list[str]:
    """A note on the single curves that were selected before all their rivals were evaluated."""
    results, partial = context.results, []
    for kind in kinds:
        common = common_multiples(results.curves(kind), results.label(kind), context.cosines)
        if common != context.multiples:
            partial.append(f"{_name(kind)} on {', '.join(_headers(common))}")
    text = f"Provisional, as runs are unfinished: selected {'; '.join(partial)} only."
    return [text] if partial else []


def _name(kind: str) -> str:
    return plotting.schedule_name(kind, math=False)


def _headers(multiples: Sequence[float]) -> list[str]:
    return [f"{m:g}x" for m in multiples]


def _loss_cells(
    losses: Mapping[float, float], multiples: Sequence[float], sign: str = ""
) -> list[str]:
    """Losses in nats, or differences with `sign="+"`; empty where there is none."""
    return [f"{losses[m]:{sign}.4f}" if m in losses else "" for m in multiples]


def _gap_cell(gap: Gap) -> str:
    return f"{gap.mean:+.4f}" + ("" if math.isnan(gap.stderr) else f" ± {gap.stderr:.4f}")


def _mean_cell(numbers: Mapping[float, float], multiples: Sequence[float]) -> str:
    """The mean over the multiples; empty unless each of them has a number."""
    complete = all(m in numbers for m in multiples)
    return f"{statistics.fmean(numbers[m] for m in multiples):+.4f}" if complete else ""


def _setting_names(results: Results, kinds: Sequence[str]) -> list[str]:
    """Short names of the settings of some kinds, without those of a decay."""
    names = [name for x in results.all_curves if x.kind in kinds for name in x.settings]
    return [x for x in dict.fromkeys(names) if x not in ("floor", "shape")]


def _setting_cells(curve: LossCurve, names: Sequence[str]) -> list[str]:
    values = [curve.settings.get(name, "-") for name in names]
    return [f"{value:g}" if is_number(value) else str(value) for value in values]
