"""Tests of the options that select a saved run, its weights and data."""

import argparse
import dataclasses
import json
import shutil

import pytest
import small_run

from anytime_jax.commands import evaluate, run_options
from anytime_jax.weights import evaluation, saved_run


def test_dataset_of_another_vocabulary_is_rejected(trained, dataset, monkeypatch, rejected):
    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    monkeypatch.setattr(evaluation, "load_dataset", lambda path, hint: other)
    assert "vocabulary" in rejected(evaluate, f"--run={trained}", "--data=x")


def test_changed_dataset_needs_the_data_option(trained, dataset, monkeypatch, rejected, command):
    first, *rest = dataset.parts["train"]
    changed = (dataclasses.replace(first, sha256="0" * 64), *rest)
    other = dataclasses.replace(dataset, parts={**dataset.parts, "train": changed})
    assert other.fingerprint != dataset.fingerprint
    monkeypatch.setattr(evaluation, "load_dataset", lambda path, hint: other)
    assert "data = " in rejected(evaluate, f"--run={trained}")
    assert command(evaluate, f"--run={trained}", "--data=x", "--weights", "last")[0] == 0


@pytest.mark.parametrize(
    ("tokens", "batch_size", "parts", "expected"),
    [(10, 1000, 1, 16), (10, 1000, 2, 8), (10, 8, 1, 8), (10, 9, 1, 8), (9, 1000, 1, 16)],
)
def test_batches_are_not_padded_beyond_the_windows(
    trained, dataset, tokens, batch_size, parts, expected
):
    """There are eight devices: a batch is a multiple of eight."""
    arguments = argparse.Namespace(
        data=None, split="validation", tokens=tokens * small_run.LENGTH, batch_size=batch_size
    )
    evaluators = run_options.open_evaluators(saved_run.open_run(trained), arguments, None, parts)
    (evaluator,) = evaluators.by_set.values()
    assert (evaluator.count, evaluator.batch_size) == (tokens, expected)


def test_data_are_found_from_another_directory(trained, dataset, tmp_path, monkeypatch, rejected):
    run = shutil.copytree(trained, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    relative = dataclasses.replace(saved_run.open_run(trained).config, sources={"data": "data"})
    monkeypatch.setattr(saved_run, "build_saved", lambda settings, where, trust: relative)
    monkeypatch.setattr(saved_run, "_stored", lambda meta, config: [])
    about = json.loads((run / "run.json").read_text())

    def record(path):
        paths = {"data": str(path)}
        recorded = {**about, "data_paths": paths, "set_paths": paths}
        (run / "run.json").write_text(json.dumps(recorded))
        return saved_run.open_run(run)

    saved = record(dataset.path)
    assert saved.data_path == dataset.path
    assert evaluation.find_vocabulary(saved, None)[0] == dataset.vocabulary_path
    for option in (["--data=none"], []):
        record(tmp_path / "gone")
        message = rejected(evaluate, f"--run={run}", *option)
        assert option or all(name in message for name in ("data", str(tmp_path / "gone")))
    (tmp_path / "data").mkdir()
    assert str(record(dataset.path).data_path) == "data"
    message = rejected(evaluate, f"--run={run}")
    assert message.startswith("error: data is not")
    assert str(dataset.path) in message
