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


def test_time_of_a_training_is_divided(dataset, model, read_record):
    arguments = [f"--data={dataset.path}", f"--model={model}", "--updates=12", "--rounds=1"]
    assert startup.main(arguments) == 0
    rows = {row["what"]: row for row in read_record()["rows"]}
    whole, alone = rows.pop("all"), rows.pop("the updates by themselves")
    assert {"updates", "evaluation", "saving", "before and after the loop"} <= rows.keys()
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(whole["seconds"], rel=1e-3)
    assert min(row["seconds"] for row in rows.values()) >= 0
    assert 0 < whole["of_main_thread"] <= whole["cpu_seconds"]
    assert alone["ms_per_update"] == pytest.approx(1e3 * alone["seconds"] / 12, rel=1e-3)
    assert alone["seconds"] > 0
