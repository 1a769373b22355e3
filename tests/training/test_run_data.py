"""Data of a run: which are opened, and when the built-in corpus is made."""

import dataclasses

import pytest
import small_run

from anytime_jax.corpus.installed_python import BuiltinSource
from anytime_jax.errors import InputError
from anytime_jax.training import loop, run_data


def test_builtin_corpus_is_made_only_at_a_place_named_so(tmp_path):
    config = small_run.config("run", tmp_path / "mispelt", data__builtin_megabytes=0.1)
    with pytest.raises(InputError, match=r"config\.data\.path = .*mispelt.* has no dataset"):
        loop.train(config, mesh=small_run.mesh())
    assert not list(tmp_path.iterdir())


def test_open_dataset_rejects_builtin_corpus_of_another_size(dataset, monkeypatch):
    prepared = dataclasses.replace(dataset, settings=BuiltinSource(0.4).settings())
    monkeypatch.setattr(run_data, "load_dataset", lambda path, hint: prepared)

    def open_dataset(megabytes):
        config = small_run.config("run", dataset.path, data__builtin_megabytes=megabytes)
        return run_data.open_datasets(config)

    assert open_dataset(0.4) == {
        next(iter(small_run.config("run", dataset.path).sources)): prepared
    }
    message = r"config\.data\.builtin_megabytes = 2, but .* has 0\.4: set that"
    with pytest.raises(InputError, match=message):
        open_dataset(2.0)
