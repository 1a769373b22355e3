"""The exhibits of a study: each figure and table of the paper, made from the study's results.

An exhibit whose runs are not there yet is left out and says why; one that lacks some of them is
drawn from the rest and names what is missing.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax.clock import human
from anytime_jax.study import figures, published, style
from anytime_jax.study.figures import Curve
from anytime_jax.study.results import LIVE, Line, Results
from anytime_jax.study.select import (
    HORIZON_FREE,
    Gap,
    Reading,
    best_at,
    closest,
    differences,
    envelope,
    gaps,
    on_edge,
)

SELECT_AT = 3  # the paper selects at the first three multiples: 1x, 2x, 4x
Table = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """A figure or a table, or both.

    Attributes:
      stem: of its files' names.
      title: one line.
      caption: what is shown, and from which runs.
      table: rows of cells, the head first; what the figure draws, or the table itself.
      figure: the picture; None for a table alone.
      notes: what a reader must know besides: what is missing, what lies on the edge of a grid.
    """

    stem: str
    title: str
    caption: str
    table: Table
    figure: Figure | None = None
    notes: Sequence[str] = ()


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
        "the settings of single trajectories": lambda: _single_settings(results, reading),
        "the settings at each budget": lambda: _each_settings(results, reading),
        "all runs": lambda: _all_runs(results, reading),
    }
    made, left_out = [], []
    for what, maker in makers.items():
        exhibit = maker()
        if exhibit is None:
            left_out.append(f"{what}: its runs are not in the study, or have no evaluation yet")
        else:
            made.append(exhibit)
    return made, left_out


def _kinds(results: Results) -> list[str]:
    """The kinds that are compared with the envelope, in the order of the legend."""
    there = {line.kind for line in results.lines}
    return [kind for kind in style.STYLES if kind in there and kind != "cosine"]


def _selected(results: Results, reading: Reading) -> dict[str, Line]:
    """For each kind the single line that is closest to the envelope on average."""
    of = envelope(results)
    found = {k: closest(results.main(k), reading.label(k), of) for k in _kinds(results)}
    return {kind: line for kind, line in found.items() if line is not None}


def _notes(results: Results, kinds: Sequence[str], lines: Sequence[Line] = ()) -> list[str]:
    """What is missing of some kinds, and which lines lie on the edge of the grid they are from."""
    notes = []
    if missing := results.missing(kinds):
        shown = "; ".join(missing[:6]) + (f"; and {len(missing) - 6} more" if missing[6:] else "")
        notes.append(f"Missing, and left out: {shown}.")
    edges = [
        f"{style.PLAIN_NAMES.get(x.kind, x.kind)} ({x.text}: {', '.join(found)})"
        for x in dict.fromkeys(lines)
        if (found := on_edge(results, x))
    ] if lines else []  # fmt: skip
    if edges:
        notes.append(f"On the edge of the grid, which ought to be widened: {'; '.join(edges)}.")
    return notes


def _times(multiples: Sequence[float]) -> list[str]:
    return [f"{m:g}x" for m in multiples]


def _cells(losses: Mapping[float, float], multiples: Sequence[float], sign: str = "") -> list[str]:
    return [f"{losses[m]:{sign}.4f}" if m in losses else "" for m in multiples]


def _gap_cells(found: Mapping[float, Gap], multiples: Sequence[float]) -> list[str]:
    """Differences in nats, with their standard error where there is more than one seed."""
    cells = []
    for m in multiples:
        gap = found.get(m)
        noise = "" if gap is None or math.isnan(gap.noise) else f" ± {gap.noise:.4f}"
        cells.append("" if gap is None else f"{gap.mean:+.4f}{noise}")
    return cells


def _compared(
    results: Results, curves: Sequence[Curve], multiples: Sequence[float]
) -> list[list[str]]:
    """Losses, differences, and the paper's own differences at the same multiples."""
    head = ["", *_times(multiples), "mean"]
    rows = [head]
    for curve in curves:
        rows.append([f"{_plain(curve)}: loss", *_cells(curve.losses, multiples), ""])
    for curve in curves[1:]:
        mean = statistics.fmean(x.mean for x in curve.gaps.values())
        cells = _gap_cells(curve.gaps, multiples)
        rows.append([f"{_plain(curve)}: minus cosine", *cells, f"{mean:+.4f}"])
    for model in ("150M", "300M"):
        for kind, found in published.differences(model).items():
            there = [found[m] for m in multiples if m in found]
            mean = f"{statistics.fmean(there):+.4f}" if there else ""
            name = style.PLAIN_NAMES[kind]
            cells = _cells(found, multiples, "+")
            rows.append([f"the paper, {model}, {name}: minus cosine", *cells, mean])
    return rows


def _plain(curve: Curve) -> str:
    return curve.name.replace(style.NAMES["inverse_sqrt"], style.PLAIN_NAMES["inverse_sqrt"])


def _comparison(results: Results, reading: Reading, model: str) -> Exhibit | None:
    of, chosen = envelope(results), _selected(results, reading)
    if not of or not chosen:
        return None
    losses = {m: line.at(LIVE)[m] for m, line in of.items()}
    curves = [Curve("cosine", "cosine envelope", losses, {})]
    for kind, line in chosen.items():
        label = reading.label(kind)
        there = {m: x for m, x in line.at(label).items() if m in of}
        name = style.name(kind, label)
        curves.append(Curve(kind, name, there, gaps(results, line, label, of)))
    figure = figures.draw_comparison(results.clock, curves, _longest_cosine(results, of), model)
    told = "; ".join(f"{style.PLAIN_NAMES.get(k, k)}: {x.text}" for k, x in chosen.items())
    return Exhibit(
        "comparison",
        "Horizon-free runs against cosines tuned for every budget",
        "Left: validation loss. Every point of the cosine envelope is the best of the cosines "
        "trained to that budget; every other line is one choice of settings, the one whose mean "
        f"difference to the envelope is least ({told}); WSD has a decay branch for each budget. "
        "Right: difference to the envelope, below zero is better than the cosine. "
        f"{_about_noise(curves)}",
        _compared(results, curves, sorted(of)),
        figure,
        _notes(results, ["cosine", *chosen], [*of.values(), *chosen.values()]),
    )


def _about_noise(curves: Sequence[Curve]) -> str:
    counts = {gap.seeds for curve in curves for gap in curve.gaps.values()}
    if counts <= {1}:
        return "One seed: differences come without noise."
    return (
        f"Differences are means over {'/'.join(map(str, sorted(counts)))} seeds of weights and "
        "data with their standard error; the first seed alone has chosen the settings."
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
    of = envelope(results)
    curves = [Curve("cosine", "cosine envelope", {m: x.at(LIVE)[m] for m, x in of.items()}, {})]
    used = list(of.values())
    for kind in _kinds(results):
        label = reading.label(kind)
        best = {m: best_at(results.main(kind), m, label) for m in of}
        there = {m: x for m, x in best.items() if x is not None}
        if there:
            losses = {m: x.at(label)[m] for m, x in there.items()}
            found = {m: gaps(results, x, label, of)[m] for m, x in there.items()}
            curves.append(Curve(kind, style.name(kind, label), losses, found))
            used += there.values()
    if not of or len(curves) < 2:
        return None
    return Exhibit(
        "best_at_each_budget",
        "The best settings at each budget",
        "As above, with every schedule at the settings that are best at that very budget: these "
        f"are not single runs. {_about_noise(curves)}",
        _compared(results, curves, sorted(of)),
        figures.draw_comparison(results.clock, curves, None, model),
        _notes(results, ["cosine", *_kinds(results)], used),
    )


def _cosines(results: Results) -> Exhibit | None:
    of = envelope(results)
    runs = _cosine_runs(results, of)
    if len(runs) < 2:
        return None
    losses = {m: line.at(LIVE)[m] for m, line in of.items()}
    rows = [["cosine tuned for", *_times(sorted(of))]]
    rows += [[f"{m:g}x", *_cells(runs[m], sorted(of))] for m in sorted(runs)]
    return Exhibit(
        "cosine_transfer",
        "Cosines do not transfer across budgets",
        "The envelope joins the best cosine of each horizon; in grey, each of those cosines "
        "evaluated on its way to its own horizon.",
        rows,
        figures.draw_transfer_of_cosines(results.clock, losses, runs),
        _notes(results, ["cosine"], list(of.values())),
    )


def _heatmaps(results: Results, reading: Reading) -> Exhibit | None:
    of = envelope(results)
    multiples = sorted(of)
    rows: dict[str, dict[float, tuple[str, dict[float, Gap]]]] = {}
    for kind in [x for x in _kinds(results) if x in HORIZON_FREE]:
        label = reading.label(kind)
        for m in multiples[:SELECT_AT]:
            line = best_at(results.main(kind), m, label)
            if line is not None:
                found = {k: x for k, x in gaps(results, line, label, of).items() if k >= m}
                rows.setdefault(kind, {})[m] = (line.text, found)
    if not rows:
        return None
    table = [["schedule", "selected at", "settings", *_times(multiples)]]
    for kind, picked in rows.items():
        for m, (text, found) in picked.items():
            first = {k: gap.first for k, gap in found.items()}
            name = style.PLAIN_NAMES.get(kind, kind)
            table.append([name, f"{m:g}x", text, *_cells(first, multiples, "+")])
    return Exhibit(
        "transfer",
        "Settings selected early, evaluated later",
        f"Each row selects the settings with the lowest loss of {reading.average} at one budget "
        "and shows what the same runs come to later, relative to the cosine envelope, in nats; "
        "below zero is better than the cosine. First seed.",
        table,
        figures.draw_heatmaps(multiples, rows),
        _notes(results, ["cosine", *rows]),
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
    table = [["alpha", *_times(multiples)]]
    table += [[f"{a:g}", *_cells(losses, multiples)] for a, losses in sorted(same.items())]
    losses = {m: line.at(LIVE)[m] for m, line in of.items()}
    return Exhibit(
        "alpha",
        "How much the offset alpha matters",
        f"The inverse square root read out through {reading.average}, every other setting as "
        f"selected at {at:g}x ({', '.join(f'{k} {v:g}' for k, v in rest.items())}).",
        table,
        figures.draw_alphas(results.clock, same, losses),
        _notes(results, ["inverse_sqrt"], [chosen]),
    )


def _averages(results: Results, reading: Reading) -> Exhibit | None:
    chosen = _selected(results, reading)
    of = envelope(results)
    if of:
        longest = of[max(of)]
        chosen = {**chosen, "cosine": longest}
    lines = [
        dataclasses.replace(x, losses={m: y for m, y in x.losses.items() if m in results.multiples})
        for x in chosen.values()
    ]
    lines = [x for x in lines if any(len(losses) > 1 for losses in x.losses.values())]
    if not lines:
        return None
    order = [*[x for x in results.labels if x != LIVE], LIVE]
    table = [["schedule", "budget", *order]]
    for line in lines:
        name = f"{style.PLAIN_NAMES.get(line.kind, line.kind)} ({line.text})"
        for m, losses in sorted(line.losses.items()):
            cells = [f"{losses[x]:.4f}" if x in losses else "" for x in order]
            table.append([name, f"{m:g}x", *cells])
    return Exhibit(
        "averages",
        "Loss against the factor f of the average",
        "What each average gains over the live weights of the same run, below zero is better. "
        "f100 covers about the last 1% of a run, f6.25 the last 16%. First seed; each schedule at "
        "the settings of the comparison, the cosine at those of its longest horizon.",
        table,
        figures.draw_averages(lines, results.labels),
        _notes(results, list(chosen)),
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
    table = [["decay", *_times(multiples)]]
    table += [[name, *_cells(change, multiples, "+")] for name, change in changes.items()]
    return Exhibit(
        "decay_ends",
        "What another end of the decay changes",
        "Validation loss of the live weights with the second decay minus that with the first, all "
        "else the same; below zero, the second is better. First seed.",
        table,
        figures.draw_floors(results.clock, changes),
        _notes(results, ["cosine", "wsd"]),
    )


def _names(results: Results, kinds: Sequence[str]) -> list[str]:
    """The short names of the settings that any line of some kinds has, without those of a decay."""
    names = [name for x in results.lines if x.kind in kinds for name in x.settings]
    return [x for x in dict.fromkeys(names) if x not in ("floor", "shape")]


def _values(line: Line, names: Sequence[str]) -> list[str]:
    return [f"{line.settings[k]:g}" if k in line.settings else "-" for k in names]


def _single_settings(results: Results, reading: Reading) -> Exhibit | None:
    chosen, of = _selected(results, reading), envelope(results)
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
        _notes(results, list(chosen), list(chosen.values())),
    )


def _each_settings(results: Results, reading: Reading) -> Exhibit | None:
    kinds = ["cosine", *_kinds(results)]
    names = _names(results, kinds)
    table = [["schedule", "budget", "read out", *names, "loss", "on the edge"]]
    used = []
    for kind in kinds:
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
        _notes(results, kinds, used),
    )


def _all_runs(results: Results, reading: Reading) -> Exhibit:
    multiples = results.multiples
    table = [["run", "state", "read out", *_times(multiples)]]
    for run in results.results:
        label = reading.label(run.kind)
        state = "finished" if run.is_finished else f"at {run.at:.3g}x" if run.at else "missing"
        losses = {m: x[label] for m, x in run.losses.items() if label in x}
        table.append([run.name, state, label, *_cells(losses, multiples)])
    finished = sum(run.is_finished for run in results.results)
    tokens = human(results.clock.tokens(results.clock.chinchilla_steps))
    return Exhibit(
        "runs",
        "All runs",
        f"{finished} of {len(results.results)} runs are finished; 1x is {tokens} tokens, "
        f"{results.clock.chinchilla_steps:,} updates. Validation loss in nats per token.",
        table,
    )
