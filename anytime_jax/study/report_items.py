"""The exhibits of a study: each figure and table of the paper, made from the study's results.

An exhibit whose runs are not there yet is left out and says why; one that lacks some of them is
drawn from the rest and names what is missing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from anytime_jax import plotting
from anytime_jax.study import report_figures, report_tables
from anytime_jax.study.report_figures import Curve
from anytime_jax.study.report_item import Exhibit, cells, notes, times
from anytime_jax.study.results import LIVE, Line, Results, settings_text
from anytime_jax.study.selection import (
    HORIZON_FREE,
    Gap,
    Picked,
    Reading,
    best_at,
    common,
    envelope,
    gaps,
    pick_best,
    pick_single,
    read_out,
)

SELECT_AT = 3  # the paper selects at the first three multiples: 1x, 2x, 4x


def make(results: Results, reading: Reading, model: str = "") -> tuple[list[Exhibit], list[str]]:
    """Returns every exhibit that the results allow, and why the others are left out.

    Args:
      results: of the study.
      reading: which weights are read out.
      model: "150M" or "300M" to draw the paper's published differences too.
    """
    makers: dict[str, Callable[[], Exhibit | None]] = {
        "the comparison": lambda: _comparison(results, reading, model),
        "the best at each budget": lambda: _best(results, reading, model),
        "the transfer of cosines": lambda: _cosines(results),
        "the transfer of settings": lambda: _heatmaps(results, reading),
        "the sensitivity to alpha": lambda: _alphas(results, reading),
        "the averages": lambda: _averages(results, reading),
        "other ends of the decay": lambda: _floors(results),
        "the settings of single trajectories": lambda: report_tables.single_settings(
            results, reading
        ),
        "the settings at each budget": lambda: report_tables.each_settings(results, reading),
        "all runs": lambda: report_tables.all_runs(results, reading),
    }
    made, left_out = [], []
    for what, maker in makers.items():
        exhibit = maker()
        if exhibit is None:
            left_out.append(f"{what}: its runs are not in the study, or have no evaluation yet")
        else:
            made.append(exhibit)
    return made, left_out


def _comparison(results: Results, reading: Reading, model: str) -> Exhibit | None:
    of, picked = envelope(results), pick_single(results, reading)
    if not of or not picked:
        return None
    curves = _curves(results, reading, of, picked)
    single = {k: next(iter(x.values())) for k, x in picked.items() if k in HORIZON_FREE}
    told = "; ".join(
        f"{plotting.schedule_name(k, math=False)}: {x.text}" for k, x in single.items()
    )
    return Exhibit(
        "comparison",
        "Horizon-free runs against cosines tuned for every budget",
        "Left: validation loss. Every point of the cosine envelope is the best of the cosines "
        "trained to that budget. A horizon-free line is a single run, the one whose mean "
        f"difference to the envelope is least ({told or 'none'}); a point of WSD is the best "
        "branch of any trunk. Right: difference to the envelope, below zero is better than the "
        f"cosine. {_about_noise(curves)}",
        report_tables.compared(curves, sorted(of)),
        report_figures.draw_comparison(
            results.clock,
            curves,
            _longest_cosine(results, of),
            model,
            results.study.published == model,
        ),
        [
            *notes(results, reading, {"cosine": of, **picked}),
            *_provisional(results, reading, of, list(single)),
        ],
    )


def _curves(
    results: Results, reading: Reading, of: Picked, picked: Mapping[str, Picked]
) -> list[Curve]:
    """The envelope, and the curve of every kind."""
    curves = [Curve("cosine", "cosine envelope", read_out(of, LIVE), {})]
    for kind, lines in picked.items():
        label = reading.label(kind)
        losses = read_out(lines, label)
        found = {m: gaps(results, line, label, of)[m] for m, line in lines.items()}
        curves.append(Curve(kind, _legend_name(kind, label), losses, found))
    return curves


def _legend_name(kind: str, label: str) -> str:
    return plotting.schedule_name(kind) + ("" if label == LIVE else f" + {label}")


def _provisional(results: Results, reading: Reading, of: Picked, kinds: Sequence[str]) -> list[str]:
    """Says which single lines were selected before all of their rivals had arrived."""
    told = []
    for kind in kinds:
        shared = common(results.main(kind), reading.label(kind), of)
        if shared != sorted(of):
            told.append(f"{plotting.schedule_name(kind, math=False)} on {', '.join(times(shared))}")
    return [f"Provisional, as runs are under way: selected {'; '.join(told)} only."] if told else []


def _about_noise(curves: Sequence[Curve]) -> str:
    counts = {gap.seeds for curve in curves for gap in curve.gaps.values()}
    if counts <= {1}:
        return "One seed: differences come without noise."
    return (
        f"Differences are means over {' or '.join(map(str, sorted(counts)))} seeds of weights and "
        "data, with their standard error where there is more than one; the first seed alone has "
        "chosen the settings and looks a little better for it, so the others stand in rows of "
        "their own."
    )


def _longest_cosine(results: Results, of: Mapping[float, Line]) -> dict[float, float]:
    """The losses on its way of the cosine tuned for the longest horizon."""
    runs = _cosine_runs(results, of)
    return runs[max(runs)] if runs else {}


def _cosine_runs(results: Results, of: Mapping[float, Line]) -> dict[float, dict[float, float]]:
    """For each horizon the losses of its tuned cosine at every multiple evaluated."""
    found = {}
    for m, line in of.items():
        for run in results.results:
            same = (run.kind, run.settings, run.seed) == (line.kind, line.settings, line.seed)
            if same and run.horizon == m:
                found[m] = {at: losses[LIVE] for at, losses in run.losses.items()}
    return found


def _best(results: Results, reading: Reading, model: str) -> Exhibit | None:
    of, picked = envelope(results), pick_best(results, reading)
    if not of or not picked:
        return None
    curves = _curves(results, reading, of, picked)
    return Exhibit(
        "best_at_each_budget",
        "The best settings at each budget",
        "As above, with every schedule at the settings that are best at that very budget: these "
        f"are not single runs. {_about_noise(curves)}",
        report_tables.compared(curves, sorted(of)),
        report_figures.draw_comparison(
            results.clock, curves, None, model, results.study.published == model
        ),
        notes(results, reading, {"cosine": of, **picked}),
    )


def _cosines(results: Results) -> Exhibit | None:
    of = envelope(results)
    runs = _cosine_runs(results, of)
    if len(runs) < 2:
        return None
    losses = read_out(of, LIVE)
    rows = [["cosine tuned for", *times(sorted(of))]]
    rows += [[f"{m:g}x", *cells(runs[m], sorted(of))] for m in sorted(runs)]
    return Exhibit(
        "cosine_transfer",
        "Cosines do not transfer across budgets",
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on its way to its own horizon.",
        rows,
        report_figures.draw_transfer_of_cosines(results.clock, losses, runs),
        notes(results, Reading(), {"cosine": of}),
    )


def _heatmaps(results: Results, reading: Reading) -> Exhibit | None:
    of = envelope(results)
    multiples = sorted(of)
    rows: dict[str, dict[float, tuple[str, dict[float, Gap]]]] = {}
    for kind, lines in pick_best(results, reading).items():
        if kind in HORIZON_FREE:
            label = reading.label(kind)
            for m, line in [(m, lines[m]) for m in multiples[:SELECT_AT] if m in lines]:
                found = {k: x for k, x in gaps(results, line, label, of).items() if k >= m}
                rows.setdefault(kind, {})[m] = (line.text, found)
    if not rows:
        return None
    table = [["schedule", "selected at", "settings", *times(multiples)]]
    for kind, picked in rows.items():
        for m, (text, found) in picked.items():
            first = {k: gap.first for k, gap in found.items()}
            name = plotting.schedule_name(kind, math=False)
            table.append([name, f"{m:g}x", text, *cells(first, multiples, "+")])
    return Exhibit(
        "transfer",
        "Settings selected early, evaluated later",
        f"Each row selects the settings with the lowest loss of {reading.average} at one budget "
        "and shows what the same runs come to later, relative to the cosine envelope, in nats; "
        "below zero is better than the cosine. First seed.",
        table,
        report_figures.draw_heatmaps(multiples, rows),
        notes(results, reading, {}, ["cosine", *rows]),
    )


def _alphas(results: Results, reading: Reading) -> Exhibit | None:
    of = envelope(results)
    at = sorted(of)[:SELECT_AT][-1] if of else 0.0
    lines = results.main("inverse_sqrt")
    chosen = best_at(lines, at, reading.average)
    if chosen is None or "alpha" not in chosen.settings:
        return None
    rest = {k: v for k, v in chosen.settings.items() if k != "alpha"}
    same = {
        x.settings["alpha"]: {m: y for m, y in x.at(reading.average).items() if m in of}
        for x in lines
        if {k: v for k, v in x.settings.items() if k != "alpha"} == rest
    }
    if len(same) < 2:
        return None
    multiples = sorted(of)
    table = [["alpha", *times(multiples)]]
    table += [[f"{a:g}", *cells(losses, multiples)] for a, losses in sorted(same.items())]
    losses = read_out(of, LIVE)
    return Exhibit(
        "alpha",
        "How much the offset alpha matters",
        f"The inverse square root read out through {reading.average}, every other setting as "
        f"selected at {at:g}x ({settings_text(rest)}).",
        table,
        report_figures.draw_alphas(results.clock, same, losses),
        notes(results, reading, {"inverse_sqrt": {at: chosen}}),
    )


def _averages(results: Results, reading: Reading) -> Exhibit | None:
    of = envelope(results)
    picked = {"cosine": of, **pick_single(results, reading)}
    lines = [
        dataclasses.replace(
            next(iter(x.values())), losses={m: line.losses[m] for m, line in x.items()}
        )
        for x in picked.values()
        if x
    ]
    lines = [x for x in lines if any(len(losses) > 1 for losses in x.losses.values())]
    if not lines:
        return None
    order = [*[x for x in results.labels if x != LIVE], LIVE]
    table = [["schedule", "budget", *order]]
    for line in lines:
        name = plotting.schedule_name(line.kind, math=False)
        for m, losses in sorted(line.losses.items()):
            row = [f"{losses[x]:.4f}" if x in losses else "" for x in order]
            table.append([name, f"{m:g}x", *row])
    return Exhibit(
        "averages",
        "Loss against the factor f of the average",
        "What each average gains over the live weights of the same run, below zero is better. "
        "The half-life of an average is 1/f of the run: 1% of it for f100, 16% for f6.25. First "
        "seed; every schedule at the settings of the comparison.",
        table,
        report_figures.draw_averages(lines, results.labels),
        notes(results, reading, {}, list(picked)),
    )


def _floors(results: Results) -> Exhibit | None:
    changes: dict[str, dict[float, float]] = {}
    for kind in ("cosine", "wsd", "linear"):
        for line in results.main(kind):
            for other in results.other_decays(line):
                base = line.at(LIVE)
                change = {m: x - base[m] for m, x in other.at(LIVE).items() if m in base}
                if change:
                    ends = ", ".join(
                        f"{k} {line.settings[k]} → {other.settings[k]}"
                        for k in ("floor", "shape")
                        if line.settings.get(k) != other.settings.get(k)
                    )
                    changes[f"{kind}, {line.text}, {ends}"] = change
    if not changes:
        return None
    multiples = sorted({m for x in changes.values() for m in x})
    table = [["decay", *times(multiples)]]
    table += [[name, *cells(change, multiples, "+")] for name, change in changes.items()]
    return Exhibit(
        "decay_ends",
        "What another end of the decay changes",
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else the same; below zero, the second is better. First seed.",
        table,
        report_figures.draw_floors(results.clock, changes),
        notes(results, Reading(), {}, ["cosine", "wsd"]),
    )
