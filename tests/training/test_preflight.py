"""Checks of a start that refuse a run."""

import dataclasses

import pytest
import small_run
from training_runs import start

from anytime_jax.commands import config_file
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.data.dataset_info import SplitInfo
from anytime_jax.errors import InputError
from anytime_jax.training import loop, preflight, run_data


def test_check_data_advises_what_fits(dataset):
    changes = {"model__vocab_size": 40, "model__embedding_rows": 40}
    settings = small_run.settings("run", dataset.path, **changes)
    with pytest.raises(InputError, match=r"config\.model\.vocab_size") as error:
        run_data.check_fit(run_config.build(settings.to_dict(), trust=NOBODY), dataset)
    advice = str(error.value).rpartition(": set ")[2].split()
    settings = config_file.override(settings.to_dict(), advice)
    run_data.check_fit(run_config.build(settings, trust=NOBODY), dataset)


def test_tokenizer_may_have_more_tokens_than_a_pretrained_model_if_no_text_has_them(dataset):
    rows = dataset.largest_id + 1
    changes = {"model__vocab_size": rows, "model__embedding_rows": rows, "initial_weights": "model"}
    config = small_run.config("run", dataset.path, **changes)
    larger = dataclasses.replace(dataset, vocab_size=rows + 3)
    run_data.check_fit(config, larger)
    for largest in (rows, None):  # None: a dataset that does not record it
        with pytest.raises(InputError, match=f"token {rows}|token {rows + 2}"):
            run_data.check_fit(config, dataclasses.replace(larger, largest_id=largest))


def test_too_few_tokens_for_an_evaluation_are_refused(dataset):
    splits = {**dataset.splits, "validation": SplitInfo(10, 801)}
    small = dataclasses.replace(dataset, splits=splits)
    with pytest.raises(InputError, match=r"config\.eval\.tokens"):
        run_data.check_evaluated(small_run.config("run", eval__tokens=808), small)
    run_data.check_evaluated(small_run.config("run", eval__tokens=800), small)


def test_training_split_shorter_than_a_window_is_refused(dataset):
    short = dataclasses.replace(dataset, splits={**dataset.splits, "train": SplitInfo(1, 8)})
    with pytest.raises(InputError, match=r'"train" .* model\.length'):
        run_data.check_fit(small_run.config("run", dataset.path), short)


def test_path_that_libraries_misread_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"config\.run_dir = .* misread"):
        preflight.check_paths(small_run.config(tmp_path / "a**b" / "run", "data"))


def test_rejects_state_too_large_for_device_or_disk(dataset, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "free_bytes", lambda path: 100_000)
        with pytest.raises(InputError, match=r"config\.run_dir = .* 100 kB"):
            start(run, dataset)
    monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 200_000)
    with pytest.raises(InputError, match=r"config\.model: .* 200 kB"):
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
