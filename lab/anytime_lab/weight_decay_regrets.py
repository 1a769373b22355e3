"""Compare the weight decays of a study by what one setting for all budgets gives away.

The regret of a run without a horizon at a budget is its loss minus the least that any such run of
its optimizer has there. Of each decay, the peak is the one whose largest regret is least. The first
seed selects, on the sets that select, and has these regrets. Decays that were repeated with other
seeds are compared, paired. The tables go between <!-- weight decay regrets --> and
<!-- end --> of the page.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.config.run_settings import OPTIMIZERS
from anytime_jax.errors import InputError
from anytime_jax.models import decoder
from anytime_jax.optimizers.weight_decay import parse_g
from anytime_jax.tables import Table, numbers
from anytime_lab import study_page
from anytime_lab.study.results import LossCurve, Results
from anytime_lab.study.selection import gap_at
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--study=decays --page=lab/evidence/decay.md",)

_UPDATE = "train/relative_update/blocks/"
_Regrets = Mapping[float, float]


def decay_of(results: Results, curve: LossCurve) -> float | str:
    """Returns the weight decay of a curve; 0 for an optimizer that has none."""
    return getattr(results.config_of(curve).optimizer, "weight_decay", 0.0)


def of_optimizers(results: Results) -> dict[str, list[LossCurve]]:
    """Returns the first seed's curves without a horizon that reach the last budget.

    Raises an InputError if the study has none.
    """
    found: dict[str, list[LossCurve]] = {}
    for curve in results.all_curves:
        whole = curve.losses.keys() >= {*results.multiples}
        if whole and not curve.has_horizon and curve.seed == results.runs[0].seed:
            name = OPTIMIZERS.name_of(type(results.config_of(curve).optimizer))
            found.setdefault(name, []).append(curve)
    if not found:
        raise InputError(
            f"study {results.study.name}: no run without a horizon has reached "
            f"{results.multiples[-1]:g}x: train them first (anytime sweep --run)"
        )
    return found


def regrets(curves: Sequence[LossCurve], multiples: Sequence[float]) -> list[_Regrets]:
    """Returns the regret of each curve at every multiple, in nats."""
    least = {m: min(x.losses[m] for x in curves) for m in multiples}
    return [{m: x.losses[m] - least[m] for m in multiples} for x in curves]


def relative_updates(results: Results, curve: LossCurve) -> dict[float, float]:
    """Returns |dw| / |w| of the matrices of the blocks at every multiple: geometric means.

    Each is over the rows of the last tenth before the multiple. Empty if they were not recorded.
    """
    config = results.config_of(curve)
    names = {_UPDATE + name for name in decoder.matrix_axes(config.model)}
    rows = [
        (row.step, [math.log(x) for k, x in row.values.items() if k in names and x > 0])
        for row in read_records(config.directory)
    ]
    found = {}
    for m in results.multiples:
        end = config.clock.step_at(f"{m:g}x", "multiple")
        near = [float(np.mean(logs)) for step, logs in rows if 0.9 * end < step <= end and logs]
        if near:
            found[m] = float(np.exp(np.mean(near)))
    return found


def power_of_time(values: Mapping[float, float]) -> float:
    """Returns the slope of the log of positive values against the log of their keys."""
    x, y = np.log([*values]), np.log([*values.values()])
    return float(np.polyfit(x, y, 1)[0])


def make_tables(results: Results) -> Iterator[Table]:
    """Yields the regrets of every decay, and the differences of those with fresh seeds."""
    at = [f"{m:g}x" for m in results.multiples]
    table = Table(
        "",
        [
            *("optimizer", "schedule", "decay", *numbers("peak", "peaks", *at, "worst")),
            *numbers("relative update at the end", "power of time"),
        ],
    )
    for optimizer, curves in of_optimizers(results).items():
        by_decay: dict[tuple[str, float | str], list[tuple[LossCurve, _Regrets]]] = {}
        for curve, of_curve in zip(curves, regrets(curves, results.multiples), strict=True):
            key = curve.kind, decay_of(results, curve)
            by_decay.setdefault(key, []).append((curve, of_curve))
        rows = []
        for (schedule, decay), tried in by_decay.items():
            curve, of_curve = min(tried, key=lambda x: max(x[1].values()))
            worst, updates = max(of_curve.values()), relative_updates(results, curve)
            later = {m: x for m, x in updates.items() if m > min(updates)}
            rows.append(
                (
                    *(optimizer, schedule, decay, f"{curve.settings['peak']:g}", len(tried)),
                    *(f"{of_curve[m]:.4f}" for m in results.multiples),
                    f"{worst:.4f}",
                    f"{updates[max(updates)]:.2g}" if updates else "",
                    f"{power_of_time(later):+.2f}" if len(later) > 1 else "",
                )
            )
        for row in sorted(rows, key=lambda x: float(x[-3])):
            table.add_row(*row)
    yield table
    yield from _pairs(results, at)


def _pairs(results: Results, at: Sequence[str]) -> Iterator[Table]:
    """Yields the differences to the largest fixed decay that was repeated at the same peak."""
    table = Table("", ["optimizer", "schedule", "peak", "decay", "minus", *numbers("seeds", *at)])
    for optimizer, curves in of_optimizers(results).items():
        groups: dict[tuple[str, float], list[LossCurve]] = {}
        for curve in curves:
            groups.setdefault((curve.kind, curve.settings["peak"]), []).append(curve)
        for (schedule, peak), group in groups.items():
            repeated = [x for x in group if len(results.replicates(x)) > 1]
            fixed = [x for x in repeated if parse_g(decay_of(results, x)) is None]
            if not fixed:
                continue
            base = max(fixed, key=lambda x: float(decay_of(results, x)))
            for curve in repeated:
                gaps = [gap_at(results, curve, m, {m: base}) for m in results.multiples]
                seeds = min(gap.reported_seeds for gap in gaps)
                if curve is not base and seeds > 1:
                    table.add_row(
                        *(optimizer, schedule, f"{peak:g}"),
                        *(decay_of(results, curve), decay_of(results, base), seeds),
                        *(f"{gap.mean:+.4f} ± {gap.half_width:.4f}" for gap in gaps),
                    )
    if table.rows:
        yield table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the tables; returns the exit status."""
    return study_page.write(arguments, "weight decay regrets", "Weight decay", _make_text)


def _make_text(results: Results, _: study_page.Warn) -> tuple[list[str], str]:
    first, *pairs = make_tables(results)
    parts = [
        "Regrets are in nats per token, above the least loss that any run without a horizon of the "
        "optimizer has at a budget, read out through f25, for the seed and the sets that select. "
        "*Peaks* is the number that were tried. The relative update is |dw| / |w| of the matrices "
        "of the blocks over the last tenth; its power of time is fitted from the second budget on.",
        to_markdown(first),
    ]
    for table in pairs:
        parts += [
            "Differences of losses at the same peak, paired: from the same initial weights, on the "
            "same data, ± half the 95% interval by Student's t over the seeds or over the sets, "
            "whichever is wider. They are of the sets that are reported, and of the seeds that did "
            "not select, if the study has such sets.",
            to_markdown(table),
        ]
    return parts, f"{len(first.rows)} weight decays"
