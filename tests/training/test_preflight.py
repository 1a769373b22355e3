"""Checks of a start that refuse a run."""

import dataclasses
import pathlib

import pytest
import small_run
from training_runs import start

from anytime_jax.commands import config_file
from anytime_jax.config import schema
from anytime_jax.data.dataset_info import SplitInfo
from anytime_jax.errors import InputError
from anytime_jax.training import loop, preflight
from anytime_jax.weights.saved_run import open_run


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"model__vocab_size": 290}, ["config.model.vocab_size = 290, but it has 300"]),
        (
            {"model__vocab_size": 40, "model__embedding_rows": 40},
            ["vocab_size = 40", "--config.model.embedding_rows=300"],
        ),
    ],
)
def test_check_data_names_all_that_does_not_fit_and_what_does(dataset, changes, messages):
    settings = small_run.settings("run", dataset.path, **changes)
    with pytest.raises(InputError) as error:
        preflight.check_data(schema.build(settings.to_dict()), dataset)
    assert all(message in str(error.value) for message in messages)
    advice = str(error.value).rpartition(": set ")[2].split()
    settings = config_file.override(settings.to_dict(), advice)
    preflight.check_data(schema.build(settings), dataset)


def test_too_few_tokens_for_an_evaluation_are_refused(dataset):
    splits = {**dataset.splits, "validation": SplitInfo(10, 801)}
    small = dataclasses.replace(dataset, splits=splits)
    with pytest.raises(InputError, match=r"eval\.tokens = 808, but it has 800 .*eval\.tokens=all"):
        preflight.check_evaluated(small_run.config("run", eval__tokens=808), small)
    preflight.check_evaluated(small_run.config("run", eval__tokens=800), small)


@pytest.mark.parametrize(
    ("split", "check"),
    [("train", preflight.check_data), ("validation", preflight.check_evaluated)],
)
def test_split_shorter_than_a_window_is_refused(dataset, split, check):
    short = dataclasses.replace(dataset, splits={**dataset.splits, split: SplitInfo(1, 8)})
    message = f'"{split}" of .* has 8 tokens, fewer than the 9 of a window of model.length = 8'
    with pytest.raises(InputError, match=message):
        check(small_run.config("run", dataset.path, eval__tokens="all"), short)


@pytest.mark.parametrize("name", ["[a]", "a\\b", "a**b"])
def test_path_that_libraries_misread_is_rejected(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for run_dir in (name, f"{name}/run"):
        with pytest.raises(InputError, match=r"config\.run_dir = .* misread"):
            preflight.check_paths(small_run.config(run_dir, "data"))
        with pytest.raises(InputError, match=r"misread: choose another, or rename it"):
            open_run(pathlib.Path(run_dir))


def test_rejects_state_too_large_for_device_or_disk(dataset, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "free_bytes", lambda path: 100_000)
        with pytest.raises(InputError, match=r"config\.run_dir = .* 547 kB .* 100 kB"):
            start(run, dataset)
    monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 200_000)
    with pytest.raises(InputError, match=r"config\.model: .* 335 kB .* 200 kB"):
        start(run, dataset)
    assert not run.exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mesh__data": 3}, r"config\.mesh"),
        ({"batch_size": 12}, r"config\.batch_size"),
        ({"eval__batch_size": 6}, r"config\.eval\.batch_size"),
        ({"mesh__tensor": 8}, r"config\.model\.heads"),
        ({"mesh__tensor": 2, "model__kv_heads": 1}, r"config\.model\.kv_heads = 1"),
        ({"mesh__fsdp": 8, "model__width": 20, "model__heads": 2}, "fsdp = 8"),
    ],
)
def test_what_eight_devices_cannot_split_is_rejected(changes, named, dataset, tmp_path):
    run = tmp_path / "runs" / "run"
    with pytest.raises(InputError, match=named):
        loop.train(small_run.config(run, dataset.path, **changes))
    assert not run.parent.exists()


def test_run_directory_inside_a_file_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"config\.run_dir"):
        preflight.check_paths(small_run.config(tmp_path / "file" / "run", "data"))
