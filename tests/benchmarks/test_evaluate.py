"""Benchmarks of an evaluation and of a save."""

import pytest
import small_run

from benchmarks import checkpoint, evaluate, harness


@pytest.mark.slow
def test_evaluate_times_one_tree_and_all(dataset, read_record):
    arguments = [f"--data={dataset.path}", "--windows=16", "--batch-size=8", "--rounds=1"]
    assert evaluate.main(arguments) == 0
    assert [row["trees"] for row in read_record()["rows"]] == [1, 6]


def test_evaluate_compares_neighbors_in_time():
    seconds = {1: [1.0, 2.0, 4.0], 6: [6.0, 14.0, 20.0]}  # ratios 6, 7, 5
    row = evaluate.make_row(6, seconds, tokens=100)
    assert (row["times_one_tree"], row["times_by_fastest"], row["met"]) == (6.0, 6.0, "yes")
    assert evaluate.make_row(6, {1: [1.0], 6: [6.3]}, tokens=100)["met"] == "no"


@pytest.mark.slow
def test_checkpoint_times_a_save(tmp_path, read_record, monkeypatch):
    config = small_run.config("run", model__layers=1, averages=())
    monkeypatch.setattr(harness, "load_config", lambda name, model: config)
    arguments = ["--width=16", "--layers=1", "--rounds=1", f"--scratch={tmp_path}"]
    assert checkpoint.main(arguments) == 0
    rows = {row["what"]: row["seconds"] for row in read_record()["rows"]}
    assert rows["on disk"] >= rows["save returns"] > 0
