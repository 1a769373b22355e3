"""Validation losses of one run: reading them from its records, and a table for a terminal."""

from collections.abc import Mapping, Sequence

from anytime_jax.averaging import LIVE, label_order
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count
from anytime_jax.tables import Table


def evaluations(rows: Sequence[Row]) -> list[tuple[Row, dict[str, float]]]:
    """Returns the rows that hold an evaluation, each with its losses by weight label."""
    evaluated = []
    for row in rows:
        losses = {
            name.split("/")[1]: value
            for name, value in row.values.items()
            if name.startswith("eval/") and name.endswith("/loss")
        }
        if losses:
            evaluated.append((row, losses))
    return evaluated


def weight_labels(evaluated: Sequence[tuple[Row, Mapping[str, float]]], *without: str) -> list[str]:
    """Returns the weight labels of any of the `evaluations`, the live weights first."""
    labels = {label for _, losses in evaluated for label in losses} - {*without}
    return sorted(labels, key=lambda label: (label != LIVE, label_order(label)))


def loss_table(clock: Clock, evaluated: Sequence[tuple[Row, Mapping[str, float]]]) -> Table:
    """Returns a table of `evaluations` with the best loss of each row marked.

    The columns are all weight labels, also of averages that a resumed run added or dropped.
    """
    labels = weight_labels(evaluated)
    title = "validation loss (nats per token), * the best of each row"
    table = Table(title)
    table.add_numbers("budget", "steps", "tokens", *labels)
    for row, losses in evaluated:
        best = min(losses.values())
        marks = {label: "*" if loss == best else " " for label, loss in losses.items()}
        cells = [f"{losses[k]:.4f}{marks[k]}" if k in losses else "" for k in labels]
        budget = f"{clock.multiple(row.step):.4g}x"
        table.add_row(budget, f"{row.step:,}", format_count(row.tokens), *cells)
    return table
