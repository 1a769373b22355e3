"""Saved runs: their stored weights, and what happens to missing and damaged ones."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
import tensorstore
from small_run import same_bits
from training_runs import start

from anytime_jax.averaging import Late
from anytime_jax.checkpoints import checkpoint_reader, run_json
from anytime_jax.checkpoints.checkpoint_reader import read_arrays, read_meta
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage import json_files
from anytime_jax.storage.json_files import json_digest
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import load_weights, open_saved_run, read_layers


def test_stored_weights_load_bitwise(trained):
    saved = open_saved_run(trained)
    assert saved.step == 40
    assert list(saved.weights) == ["last", "f6.25", "f12.5", "f25", "f50", "f100"]
    path = trained / "checkpoints" / "40"
    for label, item, prefix in (("last", "params", ""), ("f25", "averages", "f25/")):
        names = [name for name in read_meta(path).checksums[item] if name.startswith(prefix)]
        arrays = read_arrays(path, item, dict.fromkeys(names))
        params = load_weights(saved, WeightedSum((saved.weights[label],)))
        expected = {name.removeprefix(prefix): array for name, array in arrays.items()}
        assert same_bits(flatten_by_name(params), expected)


@pytest.mark.slow
def test_weights_are_read_and_mixed_without_a_device(trained):
    """Threads read them, and jaxlib 0.11.2 has crashed where several first ran a program."""
    code = f"""
import pathlib
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import load_weights, open_saved_run
saved = open_saved_run(pathlib.Path({str(trained)!r}))
load_weights(saved, WeightedSum((saved.weights["f25"], saved.weights["last"]), (0.5, 0.5)))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "none"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]


def test_layers_are_read_one_by_one(trained):
    """Of an array that is stacked over two layers; of another one, as a whole."""
    saved = open_saved_run(trained)
    weighted_sum = WeightedSum((saved.weights["f25"],))
    expected = flatten_by_name(load_weights(saved, weighted_sum))
    layers = {name: [*parts] for name, parts in read_layers(saved, weighted_sum).items()}
    assert layers.keys() == expected.keys()
    assert {name: len(parts) for name, parts in layers.items()} == {
        name: 2 if name.startswith("blocks/") else 1 for name in expected
    }
    stored = tensorstore.open(
        {
            "driver": "auto",
            "kvstore": f"file://{trained}/checkpoints/40/params/|ocdbt:blocks.mlp_in/",
        }
    ).result()
    assert stored.chunk_layout.read_chunk.shape == (1, *stored.shape[1:])


def test_open_run_accepts_steps_and_milestones(trained):
    assert open_saved_run(trained, "2x").step == open_saved_run(trained, "20").step == 20


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("41", r"step = 41.* 36, 40"),
        ("soon", "step = 'soon'"),
    ],
)
def test_open_run_rejects_steps_without_checkpoint(trained, step, message):
    with pytest.raises(InputError, match=message):
        open_saved_run(trained, step)


def test_open_run_rejects_directory_without_run_or_checkpoint(trained, tmp_path):
    with pytest.raises(InputError, match=r"run\.json"):
        open_saved_run(tmp_path)
    shutil.copy(trained / "run.json", tmp_path)
    with pytest.raises(InputError, match="checkpoint"):
        open_saved_run(tmp_path)


def test_run_file_without_settings_is_rejected(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "run")
    content = json.loads((copied / "run.json").read_text("utf-8"))
    del content["config"]
    (copied / "run.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"run\.json is damaged .*config"):
        open_saved_run(copied)


def test_average_added_later_has_its_first_step(trained, whole, dataset, tmp_path):
    """To a run with two of the averages of the other one."""
    copied = shutil.copytree(whole, tmp_path / "late")
    start(copied, dataset, averages=open_saved_run(trained).config.averages, stop="22 steps")
    rules = {x.label: x.rule for x in open_saved_run(copied).history if x.step == 22}
    late = {label: x.since for label, x in rules.items() if isinstance(x, Late)}
    assert late == {"f12.5": 20, "f50": 20, "f100": 20}
    assert rules.keys() - late.keys() == {"last", "f6.25", "f25"}


def test_earlier_checkpoints_are_read_when_they_are_needed(trained, monkeypatch):
    """And the run file once."""
    files, read = [], json_files.parse_json
    for module in (run_json, checkpoint_reader):
        load = lambda path: files.append(path.name) or read(path.read_bytes())  # noqa: E731
        monkeypatch.setattr(module, "load_json", load)
    saved = open_saved_run(trained)
    load_weights(saved, WeightedSum((saved.weights["f25"],)))
    assert files == ["run.json", "metadata", "metadata"]
    steps = {x.step for x in saved.history}
    assert files == ["run.json", *["metadata"] * (1 + len(steps))]
    assert len(steps) > 2


@pytest.mark.slow
def test_checkpoint_deleted_after_open_is_reported(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "run")
    saved = open_saved_run(copied)
    weighted_sum = WeightedSum((saved.weights["f25"],))
    layers = read_layers(saved, weighted_sum)
    shutil.rmtree(copied)
    with pytest.raises(RunError, match="has deleted the checkpoint of step 40"):
        load_weights(saved, weighted_sum)
    for array in layers.values():
        with pytest.raises(RunError, match="has deleted the checkpoint of step 40"):
            next(array)


def test_damaged_metadata_is_reported_or_skipped(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "run")
    meta = copied / "checkpoints" / "20" / "meta" / "metadata"
    meta.write_text(meta.read_text("utf-8").replace('"tokens": 1280', '"tokens": 1281'))
    assert 20 not in {x.step for x in open_saved_run(copied).history}
    with pytest.raises(RunError, match=r"checkpoint .*20: meta "):
        open_saved_run(copied, "20")


def test_array_with_another_checksum_is_reported(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "run")
    saved = open_saved_run(copied)
    file = copied / "checkpoints" / "40" / "meta" / "metadata"
    meta = json.loads(file.read_text("utf-8"))
    meta["checksums"]["averages"]["f50/head"] = "float32[16,304] 1"
    meta["digest"] = json_digest({k: v for k, v in meta.items() if k != "digest"})
    file.write_text(json.dumps(meta), encoding="utf-8")
    part = dataclasses.replace(saved.weights["f25"], label="f50")
    with pytest.raises(RunError, match="averages/f50/head"):
        load_weights(saved, WeightedSum((part,)))
    with pytest.raises(RunError, match="averages/f50/head"):
        next(read_layers(saved, WeightedSum((part,)))["head"])  # before the last layer is given
