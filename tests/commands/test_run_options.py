"""Tests of the options that select a saved run, its weights and data."""

import dataclasses

import pytest

from anytime_jax.commands import evaluate, readout, run_options


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--tokens=0", "--tokens"),
        ("--tokens=7", "--tokens=7"),
        ("--tokens=99999999", "--tokens=99999999"),
        ("--batch-size=-1", "--batch-size"),
        ("--data=nowhere", "nowhere"),
        ("--split=test", "--split"),
        ("--max-error=nan", "--max-error=nan"),
        ("--max-error=-1", "--max-error=-1"),
        ("--checkpoints=0", "--checkpoints"),
        ("--step=11", "step 11"),
        ("--weights=f26", "f26"),
        ("--run=nowhere", "nowhere"),
    ],
)
@pytest.mark.parametrize("module", [evaluate, readout])
def test_invalid_option_is_one_line(trained, rejected, module, option, named):
    if module is readout and option == "--weights=f26":
        named = "unrecognized"
    assert named in rejected(module, f"--run={trained}", option)


def test_dataset_of_another_vocabulary_is_rejected(trained, dataset, monkeypatch, rejected):
    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    monkeypatch.setattr(run_options, "load_dataset", lambda path, hint: other)
    assert "vocabulary" in rejected(evaluate, f"--run={trained}", "--data=x")


def test_changed_dataset_needs_the_data_option(trained, dataset, monkeypatch, rejected, command):
    other = dataclasses.replace(dataset, fingerprint="0" * 64)
    monkeypatch.setattr(run_options, "load_dataset", lambda path, hint: other)
    assert "--data=" in rejected(evaluate, f"--run={trained}")
    assert command(evaluate, f"--run={trained}", "--data=x", "--weights", "last")[0] == 0
