"""Tests of the evaluation of any weights, against the records of training."""

import math
import re

import pytest

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import evaluate


def test_losses_equal_those_of_training(trained, command):
    status, out, _ = command(evaluate, f"--run={trained}")
    assert status == 0
    (row,) = [row for row in read_records(trained) if row.step == 40]
    for label in ("last", "f6.25", "f12.5", "f25", "f50", "f100"):
        printed = re.search(rf"^{re.escape(label)} +([0-9.]+) +([0-9.]+)", out, re.MULTILINE)
        loss = row.values[f"eval/{label}/loss"]
        assert float(printed[1]) == pytest.approx(loss, abs=6e-5)
        assert float(printed[2]) == pytest.approx(math.exp(loss), rel=2e-4)
