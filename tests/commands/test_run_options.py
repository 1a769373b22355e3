"""Tests of the options that select a saved run, its weights and data."""

import argparse
import dataclasses

import pytest
import small_run

from anytime_jax.commands import evaluate, run_options
from anytime_jax.errors import InputError
from anytime_jax.weights import saved_run, saved_run_evaluators


def test_dataset_of_another_vocabulary_is_rejected(trained, dataset, monkeypatch, rejected):
    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    monkeypatch.setattr(saved_run_evaluators, "load_dataset", lambda path, hint: other)
    assert "vocabulary" in rejected(evaluate, f"--run={trained}", "--data=x")


def test_changed_dataset_needs_the_data_option(trained, dataset, monkeypatch, rejected, command):
    first, *rest = dataset.parts["train"]
    changed = (dataclasses.replace(first, sha256="0" * 64), *rest)
    other = dataclasses.replace(dataset, parts={**dataset.parts, "train": changed})
    assert other.fingerprint != dataset.fingerprint
    monkeypatch.setattr(saved_run_evaluators, "load_dataset", lambda path, hint: other)
    assert "data = " in rejected(evaluate, f"--run={trained}")
    assert command(evaluate, f"--run={trained}", "--data=x", "--weights", "last")[0] == 0


@pytest.mark.parametrize(
    ("tokens", "batch_size", "parts", "expected"),
    [(10, 1000, 1, 16), (10, 1000, 2, 8), (20, 8, 1, 8)],
)
def test_batches_are_not_padded_beyond_the_windows(
    trained, dataset, tokens, batch_size, parts, expected
):
    """There are eight devices: a batch is a multiple of eight."""
    arguments = argparse.Namespace(
        data=None, split="validation", tokens=tokens * small_run.LENGTH, batch_size=batch_size
    )
    evaluators = run_options.open_evaluators(
        saved_run.open_saved_run(trained), arguments, None, parts
    )
    (evaluator,) = evaluators.by_set.values()
    assert (evaluator.count, evaluator.batch_size) == (tokens, expected)


def test_data_are_found_from_another_directory(trained, dataset, tmp_path, monkeypatch):
    def recorded(path):
        return dataclasses.replace(saved.run_file, data_paths={"data": str(path)})

    monkeypatch.chdir(tmp_path)
    saved = saved_run.open_saved_run(trained)
    relative = dataclasses.replace(saved.config, sources={"data": "data"})
    moved = dataclasses.replace(saved, config=relative, run_file=recorded(dataset.path))
    assert moved.data_path == dataset.path
    assert saved_run.find_vocabulary(moved)[0] == dataset.vocabulary_path
    gone = dataclasses.replace(moved, run_file=recorded(tmp_path / "gone"))
    with pytest.raises(InputError, match=str(tmp_path / "gone")):
        saved_run.find_vocabulary(gone)
    (tmp_path / "data").mkdir()
    assert str(moved.data_path) == "data"
