"""The benchmarks of data, starts, evaluation and checkpoints: each runs, and divides as it says."""

import json
import sys

import jax
import numpy as np
import pytest
import small_run
from run_command import run_command
from small_run import dataset_fixture  # noqa: F401

from anytime_jax.commands import prepare
from anytime_jax.distributed import sharding
from benchmarks import checkpoint, data, evaluate, measure, record, startup


@pytest.fixture(autouse=True)
def one_device(monkeypatch, tmp_path):
    """And no record among those of the repository."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "out")
    mesh = small_run.mesh()
    monkeypatch.setattr(sharding, "make_mesh", lambda config: mesh)


def written(folder):
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_data_of_documents(tmp_path, capsys):
    documents = tmp_path / "documents.jsonl"
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * 20}) for i in range(300)]
    documents.write_text("\n".join(lines) + "\n")
    source = ["--source=json", f"--input={documents}", "--validation-fraction=0.2"]
    there = tmp_path / "there"
    line = [*source, "--train-vocabulary=300", "--length=8", f"--output={there}"]
    assert run_command(prepare, line) == 0
    capsys.readouterr()
    given = [f"--documents={documents}", f"--vocabulary={there / 'vocabulary.model'}"]
    given += ["--megabytes=0.5", "--length=8", "--batches", "4", "--seconds=0.01"]
    assert data.main(given) == 0
    found = written(tmp_path / "out")
    assert found["command"].startswith("python -m benchmarks.data --documents=")
    assert {"cpu", "cores", "load"} <= set(found["machine"])
    names = [row["what"] for row in found["rows"]]
    assert names[:3] == ["preparing: tokenising", "preparing: writing", "preparing: all"]
    assert names[3:] == ["reading: batch, 4 windows", "reading: stream, 4 windows"]
    assert all(row["tokens_per_s"] > 0 for row in found["rows"])
    # Both stages take longer than either.
    first, second, both = (row["tokens_per_s"] for row in found["rows"][:3])
    assert 1 / both == pytest.approx(1 / first + 1 / second, rel=0.05)


def test_rates_are_quotients():
    row = data._row("x", 3e6, 2.0, 4.0, data.PREPARATION_TARGET)
    assert (row["tokens_per_s"], row["tokens_per_cpu_s"], row["met"]) == (0.75e6, 1.5e6, "yes")
    row = data._row("x", 3e7, 2.0, 4.0, data.READING_TARGET)  # in one process: by the clock
    assert row["met"] == "no"


def test_documents_need_a_vocabulary(tmp_path, capsys):
    assert data.main([f"--documents={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_evaluation(dataset, tmp_path):
    given = [f"--data={dataset.path}", "--windows=16", "--batch-size=8", "--rounds=1"]
    assert evaluate.main(given) == 0
    assert [row["trees"] for row in written(tmp_path / "out")["rows"]] == [1, 6]


def test_evaluation_compares_neighbours_in_time():
    seconds = {1: [1.0, 2.0, 4.0], 6: [6.0, 14.0, 20.0]}  # ratios 6, 7, 5
    row = evaluate._row(6, seconds, tokens=100)
    assert (row["times_one_tree"], row["times_by_fastest"], row["met"]) == (6.0, 6.0, "yes")
    assert evaluate._row(6, {1: [1.0], 6: [6.3]}, tokens=100)["met"] == "no"


def test_checkpoint(tmp_path, monkeypatch):
    saved, save = [], checkpoint._save
    monkeypatch.setattr(
        checkpoint, "_save", lambda where, state: saved.append(state) or save(where, state)
    )
    monkeypatch.setattr(
        checkpoint, "checksums_and_nonfinite", lambda state: None
    )  # a save compiles it anyway
    small = small_run.config("run", model__layers=1, averages=())
    monkeypatch.setattr(measure, "load_config", lambda name, model: small)
    given = ["--width=16", "--layers=1", "--rounds=1", f"--scratch={tmp_path}"]
    assert checkpoint.main(given) == 0
    rows = {row["what"]: row["seconds"] for row in written(tmp_path / "out")["rows"]}
    assert rows["on disk"] >= rows["save returns"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # Zeros would be compressed away.
    assert all(leaf.ndim == 0 or np.std(leaf) > 0.5 for leaf in jax.tree.leaves(saved[0]))


def test_parts_of_a_start(dataset, tmp_path, monkeypatch):
    lines = ("run x", "other", "from 0", "step 1 a", "step 1 b")
    slow = f"import time\nfor line in {lines}: time.sleep(0.05); print(line)"
    monkeypatch.setattr(startup, "_PROGRAM", (sys.executable, "-c", slow))
    assert startup.main([f"--data={dataset.path}", "--rounds=1"]) == 0
    cold, cached = written(tmp_path / "out")["rows"]
    assert (cold["start"], cold["target"], cached["target"]) == ("cold", 15.0, 5.0)
    for row in (cold, cached):
        assert row["seconds"] >= 0.2
        assert row["checks"] >= 0.08
        assert row["compiling, first update"] >= 0.03
        parts = ("imports, data", "checks", "compiling, first update")
        assert row["seconds"] == pytest.approx(sum(row[part] for part in parts), rel=0.01)


def test_a_start_that_fails_is_said(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(startup, "_PROGRAM", (sys.executable, "-c", "raise SystemExit('no')"))
    assert startup.main([f"--data={dataset.path}"]) == 1
    assert "status 1: no" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_start(dataset, tmp_path):
    assert startup.main([f"--data={dataset.path}", "--rounds=1"]) == 0
    cold, cached = written(tmp_path / "out")["rows"]
    assert 0 < cached["cpu_seconds"] < cold["cpu_seconds"]


def test_a_record_names_its_date_and_versions_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=/home/someone/dump --xla_b=2")
    for _ in range(2):  # a record of the same day stays
        record.leave("x", ["--a=/home/someone/b c", "runs/data"], "title", [{"n": 1}])
    second, first = sorted((tmp_path / "out").iterdir())
    found = json.loads(first.read_text())
    assert first.name == f"{found['date'][:10]}-x.json"
    assert second.name == f"{found['date'][:10]}-x-2.json"
    assert found["command"] == "python -m benchmarks.x '--a=b c' runs/data"
    assert found["machine"]["environment"]["XLA_FLAGS"] == "--xla_a=dump --xla_b=2"
    assert found["versions"]["jax"] == jax.__version__
