"""Benchmark of a start: its phases, a start that fails, and a real one."""

import sys

import pytest

from benchmarks import harness, startup


def test_phases_of_a_start_add_up(dataset, read_record, monkeypatch):
    lines = ("run x", "other", "from 0", "step 1 a", "step 1 b")
    program = f"import time\nfor line in {lines}: time.sleep(0.05); print(line)"
    monkeypatch.setattr(harness, "train_command", lambda *_: [sys.executable, "-c", program])
    assert startup.main([f"--data={dataset.path}", "--rounds=1"]) == 0
    cold, cached = read_record()["rows"]
    assert (cold["start"], cold["target"], cached["target"]) == ("cold", 15.0, 5.0)
    for row in (cold, cached):
        phases = ("imports, data", "checks", "compiling, first update")
        assert all(row[phase] > 0 for phase in phases)
        assert row["seconds"] == pytest.approx(sum(row[phase] for phase in phases), rel=0.01)
