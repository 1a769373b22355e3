"""The door that writes weights for other libraries: what it writes, and all of it or nothing."""

import dataclasses
import json
import os
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
import small_run
from byte_level_tokenizer import write_byte_level
from reference_decoders import from_olmo
from run_command import run_command
from small_run import dataset_fixture  # noqa: F401
from training_runs import shared_programs_fixture, start  # noqa: F401

from anytime_jax import __version__
from anytime_jax.checkpoints import checkpoint_reader, tree_names
from anytime_jax.commands import export
from anytime_jax.data.vocabulary import load_vocabulary, train_vocabulary
from anytime_jax.formats import model_reader
from anytime_jax.formats.model_reader import PARITY, PROVENANCE, WEIGHTS
from anytime_jax.models import decoder
from anytime_jax.weights import saved_run

FILES = {
    *(WEIGHTS, PARITY, PROVENANCE, "config.json", "config.yaml", "vocabulary.model"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
}
ALIKE = {"logits": {"one way": 1e-7, "another": 2e-6}, "same_tokens": True}


@pytest.fixture(scope="module", name="folder")
def folder_fixture(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(name="run")
def run_fixture(folder, dataset):
    """20 updates; a run that no test changes."""
    if not (folder / "run").exists():
        start(folder / "run", dataset, stop="2x", checkpoint__keep_every="5 steps")
    return folder / "run"


def door(capsys, run, output, *arguments):
    """The exit status of a command line, and what it said."""
    given = [f"--run={run}", f"--output={output}", *arguments]
    try:
        status = run_command(export, given)
    except SystemExit as left:
        status = left.code
    out, err = capsys.readouterr()
    return status, out, err


def kept(run, label, step=20):
    """A tree of a checkpoint, read without the code under test."""
    path = run / "checkpoints" / str(step)
    item, prefix = ("params", "") if label == "last" else ("averages", f"{label}/")
    names = [
        x for x in checkpoint_reader.read_meta(path)["checksums"][item] if x.startswith(prefix)
    ]
    arrays = checkpoint_reader.read_arrays(path, item, dict.fromkeys(names))
    return tree_names.unflatten_by_name({x.removeprefix(prefix): y for x, y in arrays.items()})


def written(output, monkeypatch):
    """The weights in an export under our names, by the tests' own table."""
    monkeypatch.setattr("reference_decoders.LAYERS", 2)
    monkeypatch.setattr("reference_decoders.WIDTH", 16)
    found = safetensors.numpy.load_file(output / WEIGHTS)
    return from_olmo({f"x/{name}": array for name, array in found.items()}, "x")


# What is written


@pytest.mark.parametrize("label", ["f25", "last"])
def test_what_is_kept_goes_out_as_it_is(label, run, tmp_path, capsys, monkeypatch):
    status, out, err = door(capsys, run, tmp_path / "out", f"--weights={label}")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"{label} of {run} at step 20 (1.28K tokens)"
    assert out.splitlines()[1].startswith(f"wrote {tmp_path / 'out'} (")
    assert {x.name for x in (tmp_path / "out").iterdir()} == FILES
    params = kept(run, label)
    found = written(tmp_path / "out", monkeypatch)
    assert small_run.leaves(found).keys() == small_run.leaves(params).keys()
    for name, array in small_run.leaves(found).items():
        np.testing.assert_array_equal(array, small_run.leaves(params)[name], err_msg=name)
    record = safetensors.numpy.load_file(tmp_path / "out" / PARITY)
    logits = decoder.apply(small_run.config(run).model, params, record["tokens"][None])[0]
    np.testing.assert_allclose(record["logits"], logits, rtol=0, atol=1e-5)


def test_a_mix_goes_out_with_what_it_is_made_of(run, tmp_path, capsys, monkeypatch):
    given = ("--weights=f=12", "--max-error=1", "--step=2x")
    status, out, _ = door(capsys, run, tmp_path / "out", *given)
    assert status == 0
    assert "\nmixed: " in out
    assert "\nkernel error " in out
    about = json.loads((tmp_path / "out" / PROVENANCE).read_text())
    assert about["weights"] == "f=12"
    assert 0 < about["kernel_error"] < 1
    assert len(about["mix"]) > 1
    total = 0
    for name, coefficient in about["mix"].items():
        label, step = name.split("@")
        total += coefficient * np.float64(kept(run, label, int(step))["head"])
    np.testing.assert_allclose(written(tmp_path / "out", monkeypatch)["head"], total, atol=1e-7)


def test_it_says_where_the_weights_come_from(run, dataset, tmp_path, capsys):
    assert door(capsys, run, tmp_path / "out", "--step=10", "--dtype=bfloat16")[0] == 0
    about = json.loads((tmp_path / "out" / PROVENANCE).read_text())
    prompt = about.pop("prompt")
    vocabulary = load_vocabulary(dataset.vocabulary_path)
    assert vocabulary.decode(prompt["ids"]) == prompt["text"]
    assert about.pop("config")["model"]["width"] == 16
    assert about == {
        "written_by": f"anytime_jax {__version__}",
        "run": "tiny",
        "step": 10,
        "tokens": 10 * small_run.BATCH * small_run.LENGTH,
        "weights": "f25",
        "mix": {"f25@10": 1.0},
        "kernel_error": 0.0,
        "vocab_size": small_run.VOCABULARY,
        "vocabulary": vocabulary.sha256,
        "fingerprint": dataset.fingerprint,
    }
    copied = load_vocabulary(tmp_path / "out" / "vocabulary.model")
    assert copied.sha256 == dataset.vocabulary_sha256
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (said["torch_dtype"], said["eos_token_id"]) == ("bfloat16", vocabulary.eos_id)
    assert "BF16" in (tmp_path / "out" / WEIGHTS).read_bytes()[:1000].decode("utf-8", "replace")
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == small_run.LENGTH


def test_what_was_written_can_be_read(run, dataset, tmp_path, capsys):
    door(capsys, run, tmp_path / "out")
    described = model_reader.describe(tmp_path / "out")
    config = small_run.config(run).model
    assert described.shape == {x: getattr(config, x) for x in described.shape}
    params = model_reader.read_params(described, config)
    np.testing.assert_array_equal(params["head"], kept(run, "f25")["head"])
    assert os.access(tmp_path / "out" / WEIGHTS, os.R_OK)
    assert (tmp_path / "out" / WEIGHTS).stat().st_mode & 0o777 == 0o644


def test_the_run_is_left_as_it_was(run, tmp_path, capsys):
    before = {x: x.stat().st_mtime_ns for x in run.rglob("*")}
    door(capsys, run, tmp_path / "out", "--weights=f=12", "--max-error=1")
    assert {x: x.stat().st_mtime_ns for x in run.rglob("*")} == before


def test_a_tokenizer_of_others_goes_out_whole(run, tmp_path, capsys, monkeypatch):
    """Given as a file beside others: what is kept as the vocabulary holds all of them."""
    path = write_byte_level(tmp_path / "theirs", ["def f(x): return x"] * 9, 270)
    vocabulary = load_vocabulary(path)
    opened = saved_run.open_run
    monkeypatch.setattr(
        saved_run, "open_run", lambda *given: _with(opened(*given), vocabulary.sha256)
    )
    status, _, err = door(capsys, run, tmp_path / "out", f"--vocabulary={path}")
    assert (status, err) == (0, "")
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "out" / "vocabulary.model", tmp_path / "alone")
    assert load_vocabulary(tmp_path / "alone" / "vocabulary.model").sha256 == vocabulary.sha256


def _with(saved, vocabulary):
    return dataclasses.replace(saved, vocabulary=vocabulary)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights=f30"], "weights 'f30' are not stored .* last, f6.25, f25"),
        (["--weights=f=0"], "f=0.* is not allowed"),
        (["--weights=f=1"], "kernel error of .* closer to"),
        (["--format=olmo2"], "architecture = 'olmo' cannot .* give --format=olmo"),
        (["--format=gguf"], "invalid choice: 'gguf'"),
        (["--dtype=float16"], "invalid choice: 'float16'"),
        (["--max-error=-1"], "--max-error=-1.0: give a number from 0"),
        (["--max-error=nan"], "--max-error=nan: give a number from 0"),
        (["--max-error=few"], "invalid float value: 'few'"),
        (["--checkpoints=0"], "--checkpoints=0: give a number from 1"),
        (["--step=11"], "has no checkpoint of step 11; it has those of"),
        (["--vocabulary=nowhere.model"], "vocabulary nowhere.model: No such file"),
        (["--verify", "--verify-python=/nowhere/python"], "/nowhere/python is no interpreter"),
        (["--verify", "--verify-python=/tmp"], "--verify-python=/tmp is no interpreter"),
        (["--overwrit"], "unrecognized arguments: --overwrit"),
    ],
)
def test_bad_input_is_one_line(arguments, message, run, tmp_path, capsys):
    status, out, err = door(capsys, run, tmp_path / "out", *arguments)
    assert (status, out) == (2, "")
    _is_one_line(err, message)
    assert list(tmp_path.iterdir()) == []


def _is_one_line(err, message):
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.search(message, err), err


def test_what_is_no_run_is_told(run, tmp_path, capsys):
    status, _, err = door(capsys, tmp_path, tmp_path / "out")
    assert status == 2
    _is_one_line(err, "no run\\.json")
    assert list(tmp_path.iterdir()) == []


def test_the_vocabulary_of_another_run_is_told(run, tmp_path, capsys):
    other = tmp_path / "other.model"
    words = (f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "klmnopqr")
    train_vocabulary(words, 290, other)
    status, _, err = door(capsys, run, tmp_path / "out", f"--vocabulary={other}")
    assert status == 2
    _is_one_line(err, "is not the one that .* was trained with: its SHA-256 begins with")
    assert list(tmp_path.iterdir()) == [other]


def test_without_its_data_a_run_needs_a_vocabulary(run, dataset, tmp_path, capsys, monkeypatch):
    opened = saved_run.open_run

    def gone(*given):
        saved = opened(*given)
        return _moved(saved, tmp_path / "gone")

    monkeypatch.setattr(saved_run, "open_run", gone)
    status, _, err = door(capsys, run, tmp_path / "out")
    assert status == 2
    _is_one_line(err, "the data of the run, .*gone, are not here.* give its file with --vocabulary")
    assert list(tmp_path.iterdir()) == []
    given = f"--vocabulary={dataset.vocabulary_path}"
    assert door(capsys, run, tmp_path / "out", given)[0] == 0


def _moved(saved, path):
    data = dataclasses.replace(saved.config.data, path=str(path))
    return dataclasses.replace(saved, config=dataclasses.replace(saved.config, data=data))


def test_what_is_there_is_left_there(run, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    for arguments, message in (
        ([], "exists: choose another, or --overwrite"),
        (["--overwrite"], "is not an exported model"),
    ):
        status, _, err = door(capsys, run, tmp_path / "out", *arguments)
        assert status == 2
        _is_one_line(err, message)
    (tmp_path / "out").rmdir()
    assert door(capsys, run, tmp_path / "out", "--weights=last")[0] == 0
    assert door(capsys, run, tmp_path / "out")[0] == 2
    assert json.loads((tmp_path / "out" / PROVENANCE).read_text())["weights"] == "last"
    assert door(capsys, run, tmp_path / "out", "--overwrite")[0] == 0
    assert json.loads((tmp_path / "out" / PROVENANCE).read_text())["weights"] == "f25"
    assert [x.name for x in tmp_path.iterdir()] == ["out"]


def test_a_damaged_checkpoint_is_told(run, folder, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    for file in (copied / "checkpoints" / "20" / "averages").rglob("*"):
        if file.is_file() and file.stat().st_size > 2000:
            file.write_bytes(file.read_bytes()[:-100])
    status, _, err = door(capsys, copied, tmp_path / "out")
    assert status == 1
    _is_one_line(err, "averages")
    assert not (tmp_path / "out").exists()


# The verification, with interpreters that only say what they are told to


def says(folder, text="", error="", status=0):
    """An interpreter that takes a script and a directory."""
    path = folder / "python"
    path.write_text(
        f'#!/bin/sh\ntest -f "$1" && test -f "$2/{WEIGHTS}" || exit 9\n'
        f"cat <<'E'\n{text}\nE\ncat >&2 <<'E'\n{error}\nE\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_what_is_alike_is_verified(run, tmp_path, capsys):
    python = says(tmp_path, "a warning\n" + json.dumps(ALIKE), "a warning")
    given = ("--verify", f"--verify-python={python}")
    status, out, err = door(capsys, run, tmp_path / "out", *given)
    assert (status, err) == (0, "")
    assert "verified: one way: 1.0e-07 between logits\n" in out
    assert "verified: another: 2.0e-06 between logits\n" in out
    assert {x.name for x in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize(
    ("said", "status", "message"),
    [
        (
            {"text": json.dumps({**ALIKE, "logits": {"fine": 0.0, "one way": 2e-4}})},
            1,
            "one way gives other logits: they differ by 0.0002, more than 0.0001",
        ),
        (
            {"text": json.dumps({**ALIKE, "logits": {"one way": float("nan")}})},
            1,
            "one way gives other logits: they differ by nan",
        ),
        (
            {"text": json.dumps({**ALIKE, "same_tokens": False})},
            1,
            "ai2-olmo gives other tokens for 'def mean",
        ),
        (
            {"error": "Traceback:\n  line 3\nKeyError: 'no such weight'", "status": 1},
            1,
            "ai2-olmo does not load the model: KeyError: 'no such weight'",
        ),
        ({"status": 3}, 1, "does not load the model: it says nothing"),
        (
            {"error": "ModuleNotFoundError: No module named 'hf_olmo'", "status": 1},
            2,
            "lacks a library .ModuleNotFoundError: .*give an interpreter that has ai2-olmo, torch",
        ),
        ({}, 2, "does not say how the model compares, so it is no Python"),
        ({"text": "hello"}, 2, "does not say how the model compares"),
        ({"text": '{"logits": 3}'}, 2, "does not say how the model compares"),
        ({"text": '{"logits": {"a": "b"}, "same_tokens": true}'}, 2, "does not say how"),
    ],
)
def test_what_is_not_verified_is_not_left(said, status, message, run, tmp_path, capsys):
    python = says(tmp_path, **said)
    given = ("--verify", f"--verify-python={python}")
    found, out, err = door(capsys, run, tmp_path / "out", *given)
    assert found == status
    assert "wrote" not in out
    _is_one_line(err, message)
    assert list(tmp_path.iterdir()) == [python]


def test_an_earlier_export_outlives_one_that_fails(run, tmp_path, capsys):
    assert door(capsys, run, tmp_path / "out", "--weights=last")[0] == 0
    python = says(tmp_path, status=1)
    given = ("--overwrite", "--verify", f"--verify-python={python}")
    assert door(capsys, run, tmp_path / "out", *given)[0] == 1
    assert json.loads((tmp_path / "out" / PROVENANCE).read_text())["weights"] == "last"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["out", "python"]


def test_a_program_without_an_interpreter_is_told(run, tmp_path, capsys):
    python = tmp_path / "python"
    python.write_bytes(b"\x00\x01")
    python.chmod(0o755)
    given = ("--verify", f"--verify-python={python}")
    status, _, err = door(capsys, run, tmp_path / "out", *given)
    assert status == 2
    _is_one_line(err, r"python is no interpreter \(Exec format error\)")
    assert list(tmp_path.iterdir()) == [python]


# The verification itself


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "variable"),
    [("olmo", "ANYTIME_JAX_OLMO_PYTHON"), ("olmo2", "ANYTIME_JAX_OLMO2_PYTHON")],
)
def test_the_library_agrees(name, variable, dtype, folder, dataset, tmp_path, capsys):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(
            f"{variable} names no interpreter (tests/oracles/README.md says how to make it)"
        )
    run = folder / name
    if not run.exists():
        start(run, dataset, model__architecture=name)
    given = ("--verify", f"--verify-python={python}", f"--dtype={dtype}")
    status, out, err = door(capsys, run, tmp_path / "out", *given)
    assert (status, err) == (0, "")
    assert out.count("verified: ") == {"olmo": 2, "olmo2": 1}[name]
    # It does not agree with another model.
    file = tmp_path / "out" / WEIGHTS
    held = safetensors.numpy.load_file(file)
    odd = next(x for x in held if x.endswith(("ff_proj.weight", "up_proj.weight")))
    safetensors.numpy.save_file({**held, odd: held[odd] * 2}, file, {"format": "pt"})
    with pytest.raises(export.RunError, match="gives other logits"):
        export.verify(tmp_path / "out", name, python)
