"""Benchmark of a short real run: how its records are compared and summarized."""

import math

import pytest

from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.errors import RunError
from benchmarks import short_run


def records_of(losses):
    """A row for each update, with speeds 101, 102, ..."""
    return [
        Row(i, 8 * i, {"train/loss": loss, "eval/f25/loss": loss, "tokens_per_s": 100.0 + i})
        for i, loss in enumerate(losses, start=1)
    ]


def test_largest_difference_ignores_timings():
    first = records_of([5.0, 4.0, 3.0])
    second = [Row(row.step, row.tokens, {**row.values, "tokens_per_s": 1.0}) for row in first]
    assert short_run.largest_difference(first, second) == 0
    assert short_run.largest_difference(first, records_of([5.0, 4.25, 3.0])) == 0.25
    assert math.isnan(short_run.largest_difference(first, records_of([5.0, math.nan, 3.0])))
    with pytest.raises(RunError):
        short_run.largest_difference(first, first[:2])


def test_make_rows_summarizes_a_run():
    rows = short_run.make_rows(records_of([5.0, *[4.0] * 8, 1.0, 2.0, 3.0]), 1e-3, saved=6)
    table = {row["what"]: (row["value"], row["met"]) for row in rows}
    assert table["train/loss of the last 3"] == (2.0, "yes")
    assert table["largest difference, resumed"] == (1e-3, "no")
    assert table["tokens/s before the save"] == (104.0, None)  # updates 3 to 5
    assert table["tokens/s while it is written"] == (109.0, None)  # updates 8 to 10
