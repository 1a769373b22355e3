"""Runs with moments of either type, beside each other."""

import json
import os
import sys

import pytest

from benchmarks.device import moments


@pytest.mark.slow
def test_losses_of_both_types_are_compared(dataset, model, tmp_path, monkeypatch):
    output = tmp_path / "moments.json"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the model is a helper's
    size = ["--updates=8", "--seeds=1", "--batch=8", "--microbatches=1"]
    assert (
        moments.main([f"--data={dataset.path}", f"--model={model}", *size, f"--output={output}"])
        == 0
    )
    rows = json.loads(output.read_text())["rows"]
    assert [row["weights"] for row in rows] == ["last", "f25"]
    assert all(0 < abs(row["difference"]) < 0.01 for row in rows)
