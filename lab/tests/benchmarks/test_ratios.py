"""Ratios of this tree's parts to a product: what has moved, and a measurement that is accepted."""

import json
import os
import sys

import pytest

from benchmarks import record
from lab.benchmarks import ratios


def test_a_part_moves_by_more_than_its_processes_differ():
    accepted = {"slow": [1.0, 1.1, 1.02], "noisy": [1.0, 1.2, 1.02], "small": [1.0, 1.01, 1.0]}
    found = {"slow": [1.3, 1.12, 1.2], "noisy": [1.4, 1.19, 1.3], "small": [1.02, 1.03, 1.04]}
    rows = {row["what"]: row for row in ratios.compare({**found, "fast": [0.5]}, accepted)}
    assert {part: row["moved"] for part, row in rows.items()} == {
        "slow": "slower",
        "noisy": "no",
        "small": "no",
        "fast": None,
    }
    assert rows["slow"]["change"] == "+17.6%"
    assert rows["fast"]["accepted"] is None
    assert ratios.compare({"fast": [0.5]}, {"fast": [0.6]})[0]["moved"] == "faster"


@pytest.mark.slow
def test_accepted_ratios_are_those_of_the_machine(model, read_record, tmp_path, monkeypatch):
    accepted = tmp_path / "accepted.json"
    kind = ratios.machine_kind(record.describe_machine())
    of_others = {"update": [9.0], "reading": [9.0]}
    accepted.write_text(json.dumps({kind: {"date": "", "jax": "", "ratios": of_others}}))
    monkeypatch.setattr(ratios, "ACCEPTED", accepted)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the model is a helper's
    parts = ("update", "reading", "save", "theory")  # starts have a test of their own
    options = [f"--model={model}", "--processes=1", "--rounds=1", "--accept", "--parts", *parts]
    assert ratios.main(options) == 0
    result = read_record()
    assert kind == ratios.machine_kind(result["machine"])
    expected = {"update": [9.0], **result["details"]["ratios"]}
    assert json.loads(accepted.read_text())[kind]["ratios"] == expected
    rows = {row["what"]: row for row in result["rows"]}
    assert tuple(rows) == (f"update of {model}", *parts[1:])
    assert all(row["ratio"] > 0 for row in rows.values())
