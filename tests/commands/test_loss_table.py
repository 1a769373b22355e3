"""Validation losses of one run: reading and printing."""

import io

from rich.console import Console

from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands.loss_table import (
    curve_name,
    evaluated_rows,
    gain_limits,
    loss_table,
    name_at,
    set_table,
    validation_sets,
)
from anytime_jax.config.clock import Clock


def test_table_of_the_rows_with_losses_marks_the_best():
    row = Row(2, 20, {"train/loss": 1.0, "eval/last/loss": 2.0, "eval/f6.25/loss": 3.0})
    evaluated = evaluated_rows(
        [Row(1, 10, {"train/loss": 1.0}), row, Row(3, 30, {"eval_seconds": 1})]
    )
    assert evaluated == [(row, {"last": 2.0, "f6.25": 3.0})]
    console = Console(file=io.StringIO(), width=100)
    console.print(loss_table(Clock(1, 10, 20), evaluated))
    assert console.file.getvalue().split()[-5:] == ["1x", "2", "20", "2.0000*", "3.0000"]


def test_limits_of_gains_include_every_gain_but_no_early_loss():
    """The first two evaluations have the largest gain and the largest loss."""
    gains = [(5.0, -0.3), (2.0, 0.1), (-0.1, -0.2), (0.05, -0.1)]
    rows = [
        Row(i, i, {"eval/last/loss": 3.0, "eval/f6.25/loss": 3.0 + a, "eval/f25/loss": 3.0 + b})
        for i, (a, b) in enumerate(gains, 1)
    ]
    low, high = gain_limits(evaluated_rows(rows))
    assert -0.4 < low < -0.3
    assert 0.05 < high < 0.1


def test_table_of_sets_has_the_last_losses_of_each():
    rows = [
        Row(1, 10, {"eval/last/loss": 3.0, "eval/a/last/loss": 4.0, "eval/b.c/last/loss": 2.0}),
        Row(2, 20, {
            "eval/last/loss": 2.0, "eval/a/last/loss": 3.0, "eval/b.c/last/loss": 1.0,
            "eval/f25/loss": 1.9, "eval/a/f25/loss": 2.75, "eval/b.c/f25/loss": 1.5,
            "eval/a@16/last/loss": 2.5,
        }),
    ]  # fmt: skip
    assert validation_sets(rows) == ["a", "b.c", "a@16"]
    # What reads the mean does not see the sets.
    assert evaluated_rows(rows)[-1] == (rows[-1], {"last": 2.0, "f25": 1.9})
    assert evaluated_rows(rows, "a")[-1] == (rows[-1], {"last": 3.0, "f25": 2.75})
    console = Console(file=io.StringIO(), width=80)
    one = [Row(1, 10, {"eval/last/loss": 3.0})]
    console.print(set_table(Clock(1, 10, 20), {"one": one, "mine": rows}))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[5:7] == [
        ["mean", "one", "0.5x", "3.0000*"],
        ["mean", "mine", "1x", "2.0000", "1.9000*"],
    ]
    assert ["a", "mine", "1x", "3.0000", "2.7500*"] in lines
    assert ["b.c", "mine", "1x", "1.0000*", "1.5000"] in lines
    assert ["a@16", "mine", "1x", "2.5000*"] in lines
    assert set_table(Clock(1, 10, 20), {"one": one}) is None


def test_average_that_began_late_has_its_kernel_error():
    """Beside its loss in a table, and with its name elsewhere; an error of 0.00% is not shown."""
    losses = {"eval/last/loss": 3.0, "eval/f2/loss": 2.0, "eval/f25/loss": 2.5}
    errors = {"eval/f2/kernel_error": 3.562, "eval/f25/kernel_error": 1e-9}
    rows = [Row(1, 10, losses), Row(2, 20, losses | errors)]
    evaluated = evaluated_rows(rows)
    text = loss_table(Clock(1, 10, 20), evaluated).text()
    assert text[0][3:] == ["last", "f2", "f2 kernel error", "f25"]
    assert [row[4:6] for row in text[1:]] == [["2.0000*", ""], ["2.0000*", "356.20%"]]
    assert name_at(rows[1], "f2") == "f2 (kernel error 356.20%)"
    assert name_at(rows[1], "f25") == "f25"
    assert curve_name(evaluated, "f2") == "f2 (kernel error 356.20%)"
    later = evaluated_rows([*rows, Row(3, 30, losses | {"eval/f2/kernel_error": 0.0})])
    assert curve_name(later, "f2") == "f2 (kernel error 356.20% to 0.00%)"
