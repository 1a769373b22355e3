"""Validation losses of one run: reading them from its records, and a table for a terminal."""

import math
from collections.abc import Collection, Mapping, Sequence

from anytime_jax.averaging import LIVE, GrowingWindow, is_label, label_order, parse_rule
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_jax.tables import Table, numbers


def evaluated_rows(
    rows: Sequence[Row], validation_set: str = ""
) -> list[tuple[Row, dict[str, float]]]:
    """Returns the rows that hold an evaluation, each with its losses by weight label.

    The losses are those on one of several validation sets, or else the mean of the sets.
    """
    before = ["eval", validation_set] if validation_set else ["eval"]
    evaluated = []
    for row in rows:
        names = ((name.split("/"), value) for name, value in row.values.items())
        losses = {x[-2]: v for x, v in names if [*x[:-2], x[-1]] == [*before, "loss"]}
        if losses:
            evaluated.append((row, losses))
    return evaluated


def validation_sets(rows: Sequence[Row]) -> list[str]:
    """Returns the names of the validation sets, if there are several, in order."""
    names = (name.split("/") for row in rows for name in row.values)
    return list(dict.fromkeys(x[1] for x in names if x[0] == "eval" and len(x) == 4))


def set_table(clock: Clock, runs: Mapping[str, Sequence[Row]]) -> Table | None:
    """Returns a table of the last losses of runs by name, those on one validation set together.

    The first rows have the mean of the sets. Returns None for one run with one set.
    """
    sets = dict.fromkeys(name for rows in runs.values() for name in validation_sets(rows))
    lines = [
        (name or ("mean" if sets else "validation"), run, *evaluated[-1])
        for name in ("", *sets)
        for run, rows in runs.items()
        if (evaluated := evaluated_rows(rows, name))
    ]
    labels = weight_labels([(row, losses) for _, _, row, losses in lines])
    title = "validation loss (nats per token) at the end, by set, * the best of each row"
    table = Table(title, ["set", "run", *numbers("budget", *labels)])
    for name, run, row, losses in lines:
        table.add_row(name, run, f"{clock.multiple(row.step):.4g}x", *_marked(losses, labels))
    return table if len(lines) > 1 else None


def _marked(losses: Mapping[str, float], labels: Sequence[str]) -> list[str | None]:
    """Losses as the cells of a row, with the best one marked."""
    best = min(losses.values())
    marks = {label: "*" if loss == best else " " for label, loss in losses.items()}
    return [f"{losses[x]:.4f}{marks[x]}" if x in losses else None for x in labels]


def weight_labels(evaluated: Sequence[tuple[Row, Mapping[str, float]]], *without: str) -> list[str]:
    """Returns the weight labels of any of the `evaluated_rows`, the live weights first."""
    labels = {label for _, losses in evaluated for label in losses} - {*without}
    return sorted(labels, key=lambda label: (label != LIVE, label_order(label)))


def define(labels: Sequence[str]) -> str:
    """Says what the live weights are and what one of the growing windows is, f25 if it is there."""
    text = f"{LIVE}: the live weights, which the optimizer updates"
    for label in sorted(labels, key=lambda label: label != "f25"):
        rule = parse_rule(label) if is_label(label) else None
        if isinstance(rule, GrowingWindow):
            part = f"in the last 1/{rule.f:g} of the run"
            return f"{text}. {label}: an average with half of its weight {part}."
    return f"{text}."


def gains(
    evaluated: Sequence[tuple[Row, Mapping[str, float]]], label: str
) -> list[tuple[Row, float]]:
    """Returns an average's loss minus the live weights' loss, wherever it was evaluated."""
    return [
        (row, losses[label] - losses[LIVE])
        for row, losses in evaluated
        if {label, LIVE} <= losses.keys()
    ]


def gain_limits(evaluated: Sequence[tuple[Row, Mapping[str, float]]]) -> tuple[float, float]:
    """Returns the range in which to draw `gains`.

    Losses of the first two evaluations above the live weights' do not count: the widest averages
    still contain the initial weights.
    """
    labels = weight_labels(evaluated, LIVE)
    late = evaluated[2:] or evaluated
    low, high = (
        reach([x for label in labels for _, x in gains(rows, label) if math.isfinite(x)] + [0.0])
        for reach, rows in ((min, evaluated), (max, late))
    )
    margin = 0.1 * (high - low) or 0.01
    return low - margin, min(high, -2 * low if low < 0 else high) + margin


def loss_table(
    clock: Clock,
    evaluated: Sequence[tuple[Row, Mapping[str, float]]],
    labels: Collection[str] | None = None,
) -> Table:
    """Returns a table of `evaluated_rows` with the best loss of each row marked.

    The columns are `labels`, or all weight labels, including averages that a resumed run added or
    dropped.
    """
    labels = [x for x in weight_labels(evaluated) if labels is None or x in labels]
    columns = [*numbers("budget"), *numbers("steps", format=","), *numbers("tokens", *labels)]
    table = Table("validation loss (nats per token), * the best of each row", columns)
    for row, losses in evaluated:
        budget = f"{clock.multiple(row.step):.4g}x"
        cells = _marked(losses, labels)
        table.add_row(budget, row.step, format_count(row.tokens), *cells)
    return table
