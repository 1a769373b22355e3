"""Validation losses of one run: reading them from its records, and a table for a terminal."""

import math
from collections.abc import Collection, Mapping, Sequence

from anytime_jax.averaging import LIVE, GrowingWindow, is_label, label_order, parse_rule
from anytime_jax.checkpoints.metric_records import TASKS, Row, kernel_errors
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count, format_error, format_score, name_weights
from anytime_jax.tables import Column, Table, numbers

Evaluated = Sequence[tuple[Row, Mapping[str, float]]]  # `evaluated_rows`


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
    evaluated = [(row, losses) for _, _, row, losses in lines]
    names, cells = _columns(evaluated, weight_labels(evaluated))
    title = "validation loss (nats per token) at the end, by set, * the best of each row"
    table = Table(title, ["set", "run", *numbers("budget", *names)])
    for (name, run, row, _), of_row in zip(lines, cells, strict=True):
        table.add_row(name, run, f"{clock.multiple(row.step):.4g}x", *of_row)
    return table if len(lines) > 1 else None


def score_table(rows: Sequence[Row]) -> Table | None:
    """Returns a table of the last scores of tasks, by weights; None if there are none."""
    scored = [(row.step, x.split("/"), y) for row in rows for x, y in row.values.items()]
    scored = [x for x in scored if x[1][0] == TASKS.rstrip("/") and len(x[1]) > 3]
    if not scored:
        return None
    last = max(step for step, *_ in scored)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for step, (_, weights, *task, metric), value in scored:
        if step == last:
            cells.setdefault(("/".join(task), metric), {})[weights] = format_score(value)
    labels = list(dict.fromkeys(x for of_metric in cells.values() for x in of_metric))
    table = Table(f"scores at step {last:,}", ["task", Column("metric"), *numbers(*labels)])
    for names, of_metric in cells.items():
        table.add_row(*names, *(of_metric.get(x) for x in labels))
    return table


def _columns(
    evaluated: Evaluated, labels: Sequence[str]
) -> tuple[list[str], list[list[str | None]]]:
    """Returns the columns of losses, and their cells by row, with the best of each row marked.

    After an average that began late comes a column of its kernel error.
    """
    errors = [kernel_errors(row) for row, _ in evaluated]
    late = {x for each in errors for x, error in each.items() if format_error(error)}
    names = [name for x in labels for name in ([x, f"{x} kernel error"] if x in late else [x])]
    rows = []
    for (_, losses), of_row in zip(evaluated, errors, strict=True):
        best, cells = min(losses.values()), list[str | None]()
        for x in labels:
            mark = "*" if losses.get(x) == best else " "
            cells.append(f"{losses[x]:.4f}{mark}" if x in losses else None)
            cells += [format_error(of_row.get(x, 0.0))] if x in late else []
        rows.append(cells)
    return names, rows


def weight_labels(evaluated: Evaluated, *without: str) -> list[str]:
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


def name_at(row: Row, label: str) -> str:
    """Returns a label with the kernel error that its weights have at a row, if any."""
    return name_weights(label, kernel_errors(row).get(label, 0.0))


def curve_name(evaluated: Evaluated, label: str) -> str:
    """Returns the name of a curve: a label with the largest and the last kernel error, if any."""
    errors = [kernel_errors(row).get(label, 0.0) for row, losses in evaluated if label in losses]
    texts = dict.fromkeys(format_error(x) or "0.00%" for x in (max(errors), errors[-1]))
    is_late = format_error(max(errors))
    return f"{label} (kernel error {' to '.join(texts)})" if is_late else label


def gains(evaluated: Evaluated, label: str) -> list[tuple[Row, float]]:
    """Returns an average's loss minus the live weights' loss, wherever it was evaluated."""
    return [
        (row, losses[label] - losses[LIVE])
        for row, losses in evaluated
        if {label, LIVE} <= losses.keys()
    ]


def gain_limits(evaluated: Evaluated) -> tuple[float, float]:
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
    evaluated: Evaluated,
    labels: Collection[str] | None = None,
) -> Table:
    """Returns a table of `evaluated_rows` with the best loss of each row marked.

    The columns are `labels`, or all weight labels, including averages that a resumed run added or
    dropped.
    """
    labels = [x for x in weight_labels(evaluated) if labels is None or x in labels]
    names, cells = _columns(evaluated, labels)
    columns = [*numbers("budget"), *numbers("steps", format=","), *numbers("tokens", *names)]
    table = Table("validation loss (nats per token), * the best of each row", columns)
    for (row, _), of_row in zip(evaluated, cells, strict=True):
        budget = f"{clock.multiple(row.step):.4g}x"
        table.add_row(budget, row.step, format_count(row.tokens), *of_row)
    return table
