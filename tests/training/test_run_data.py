"""Data of a run: which are opened, and when the built-in corpus is made."""

import dataclasses

import pytest
import small_run

from anytime_jax.corpus.builtin_source import BuiltinSource
from anytime_jax.corpus.source_interface import SOURCES
from anytime_jax.errors import InputError
from anytime_jax.storage import locks
from anytime_jax.training import loop, run_data


def test_builtin_corpus_is_made_only_at_a_place_named_so(tmp_path):
    config = small_run.config("run", tmp_path / "mispelt", data__builtin_megabytes=0.1)
    with pytest.raises(InputError, match=r"config\.data\.path = .*mispelt.* has no dataset"):
        loop.train(config, mesh=small_run.mesh())
    assert not list(tmp_path.iterdir())


def test_builtin_corpus_that_another_process_prepares_is_waited_for(tmp_path, monkeypatch):
    path, lines = tmp_path / "builtin", []
    (path / ".preparing").mkdir(parents=True)
    lock = locks.hold(path / ".preparing" / "lock", "it")
    lock.__enter__()
    monkeypatch.setattr(run_data, "_POLL_SECONDS", 0.01)

    def say(text):
        lines.append(text)
        if "waiting for" in text:
            lock.__exit__(None, None, None)

    config = small_run.config("run", path, data__builtin_megabytes=0.3, model__vocab_size=300)
    run_data.make_builtin(config, say)
    (dataset,) = run_data.open_datasets(config).values()
    assert dataset.vocab_size == 300
    assert sum("waiting for" in line for line in lines) == 1


def test_open_dataset_rejects_builtin_corpus_of_another_size(dataset, monkeypatch):
    prepared = dataclasses.replace(dataset, settings=SOURCES.to_dict(BuiltinSource(0.4)))
    monkeypatch.setattr(run_data, "load_dataset", lambda path, hint: prepared)

    def open_dataset(megabytes):
        config = small_run.config("run", dataset.path, data__builtin_megabytes=megabytes)
        return run_data.open_datasets(config)

    assert list(open_dataset(0.4).values()) == [prepared]
    with pytest.raises(InputError, match=r"config\.data\.builtin_megabytes"):
        open_dataset(2.0)
