"""Validation losses of one run: reading and printing."""

import io

from rich.console import Console

from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.config.clock import Clock
from anytime_jax.study.run_losses import evaluations, loss_table


def test_table_of_the_rows_with_losses_marks_the_best():
    row = Row(2, 20, {"train/loss": 1.0, "eval/last/loss": 2.0, "eval/f6.25/loss": 3.0})
    evaluated = evaluations([Row(1, 10, {"train/loss": 1.0}), row, Row(3, 30, {"eval_seconds": 1})])
    assert evaluated == [(row, {"last": 2.0, "f6.25": 3.0})]
    console = Console(file=io.StringIO(), width=100)
    console.print(loss_table(Clock(1, 10, 20), evaluated))
    assert console.file.getvalue().split()[-5:] == ["1x", "2", "20", "2.0000*", "3.0000"]
