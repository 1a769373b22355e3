"""Tests of exported weights: what is written, and that a failure leaves nothing."""

import functools
import json
import os
import select

import jax
import numpy as np
import pytest
import safetensors.numpy
import small_run
from reference_decoders import from_olmo
from training_runs import start

from anytime_jax import __version__
from anytime_jax.checkpoints import checkpoint_reader, tree_names
from anytime_jax.commands import export
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.errors import RunError
from anytime_jax.formats import model_reader
from anytime_jax.formats.model_reader import PARITY, PROVENANCE, WEIGHTS
from anytime_jax.models import decoder

FILES = {
    *(WEIGHTS, PARITY, PROVENANCE, "config.json", "config.yaml", "vocabulary.model"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
}
EQUAL = {"logits": {"one way": 1e-7, "another": 2e-6}}


@pytest.fixture(name="output")
def output_fixture(tmp_path):
    return tmp_path / "out"


@pytest.fixture(name="run_export")
def run_export_fixture(command, trained, output):
    """Exports to `output`; returns exit status, output and error output."""
    return lambda *options: command(export, f"--run={trained}", f"--output={output}", *options)


@pytest.fixture(name="export_rejected")
def export_rejected_fixture(rejected, trained, output):
    """Exports with bad input; returns the line of error output."""
    return lambda *options: rejected(export, f"--run={trained}", f"--output={output}", *options)


def stored(run, label, step=40):
    """The arrays of a checkpoint by name, read without the code under test."""
    path = run / "checkpoints" / str(step)
    item, prefix = ("params", "") if label == "last" else ("averages", f"{label}/")
    meta = checkpoint_reader.read_meta(path)
    names = [name for name in meta.checksums[item] if name.startswith(prefix)]
    arrays = checkpoint_reader.read_arrays(path, item, dict.fromkeys(names))
    return {name.removeprefix(prefix): array for name, array in arrays.items()}


def read_export(output, monkeypatch):
    """The weights of an export under our names, by the tests' own table."""
    monkeypatch.setattr("reference_decoders.LAYERS", 2)
    monkeypatch.setattr("reference_decoders.WIDTH", 16)
    tensors = safetensors.numpy.load_file(output / WEIGHTS)
    return from_olmo({f"x/{name}": array for name, array in tensors.items()}, "x")


def provenance(output):
    return json.loads((output / PROVENANCE).read_text())


# Written files


@pytest.mark.parametrize("label", ["f25", "last"])
def test_stored_weights_are_exported_bit_for_bit(label, trained, run_export, output, monkeypatch):
    status, out, err = run_export(f"--weights={label}")
    assert (status, err) == (0, "")
    assert f"{label} of {trained} at step 40" in out
    assert {x.name for x in output.iterdir()} == FILES
    assert (output / WEIGHTS).stat().st_mode & 0o777 == 0o644
    arrays = stored(trained, label)
    exported = read_export(output, monkeypatch)
    assert tree_names.flatten_by_name(exported).keys() == arrays.keys()
    for name, array in tree_names.flatten_by_name(exported).items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)
    parity = safetensors.numpy.load_file(output / PARITY)
    apply = jax.jit(functools.partial(decoder.apply, small_run.config(trained).model))
    logits = apply(exported, parity["tokens"][None])[0]
    np.testing.assert_allclose(parity["logits"], logits, rtol=0, atol=1e-5)


def test_mixture_is_exported_with_its_parts(trained, run_export, output, monkeypatch):
    before = {x: x.stat().st_mtime_ns for x in trained.rglob("*")}
    status, out, _ = run_export("--weights=f=12", "--max-error=1", "--step=2x")
    assert status == 0
    assert "kernel error" in out
    about = provenance(output)
    assert about["weights"] == "f=12"
    assert 0 < about["kernel_error"] < 1
    assert len(about["mix"]) > 1
    total = 0
    for name, coefficient in about["mix"].items():
        label, step = name.split("@")
        total += coefficient * np.float64(stored(trained, label, int(step))["head"])
    np.testing.assert_allclose(read_export(output, monkeypatch)["head"], total, atol=1e-7)
    assert {x: x.stat().st_mtime_ns for x in trained.rglob("*")} == before


def test_provenance_names_run_step_and_data(run_export, dataset, output):
    words = ("--step=10", "--dtype=bfloat16", f"--vocabulary={dataset.vocabulary_path}")
    assert run_export(*words)[0] == 0
    about = provenance(output)
    digests = {file: model_reader.file_digest(output / file) for file in FILES - {PROVENANCE}}
    assert about.pop("sha256") == digests
    vocabulary = load_vocabulary(dataset.vocabulary_path)
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
        "text_begins": {"tokenizer": [], "data": []},
    }
    assert load_vocabulary(output / "vocabulary.model").sha256 == dataset.vocabulary_sha256
    settings = json.loads((output / "config.json").read_text())
    assert (settings["torch_dtype"], settings["eos_token_id"]) == ("bfloat16", vocabulary.eos_id)
    assert "BF16" in (output / WEIGHTS).read_bytes()[:1000].decode("utf-8", "replace")
    tokenizer = json.loads((output / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == small_run.LENGTH


# Bad input


def test_other_vocabulary_is_rejected(export_rejected, tmp_path):
    other = tmp_path / "other.model"
    words = (f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "klmnopqr")
    train_vocabulary(words, 290, other)
    assert "--vocabulary" in export_rejected(f"--vocabulary={other}")
    assert list(tmp_path.iterdir()) == [other]


def test_earlier_export_is_overwritten_on_request(run_export, export_rejected, output, tmp_path):
    assert run_export("--weights=last")[0] == 0
    assert "--overwrite" in export_rejected()
    python = fake_python(tmp_path, err="KeyError: 'no such weight'", status=1)
    assert run_export("--overwrite", "--verify", f"--verify-python={python}")[0] == 1
    assert provenance(output)["weights"] == "last"
    assert {*tmp_path.iterdir()} == {output, python}
    assert run_export("--overwrite")[0] == 0
    assert provenance(output)["weights"] == "f25"


# Verification, with fake interpreters


def fake_python(folder, out="", err="", status=0):
    """An interpreter that takes a script and an exported model."""
    path = folder / "python"
    path.write_text(
        f'#!/bin/sh\ntest "$1" = -c && exit\ntest -f "$1" && test -f "$2/{WEIGHTS}" || exit 9\n'
        f"cat <<'E'\n{out}\nE\ncat >&2 <<'E'\n{err}\nE\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_equal_model_is_verified(run_export, output, tmp_path):
    python = fake_python(tmp_path, "a warning\n" + json.dumps(EQUAL), "a warning")
    status, out, err = run_export("--verify", f"--verify-python={python}")
    assert (status, err) == (0, "")
    assert "one way: 1.0e-07" in out
    assert "another: 2.0e-06" in out
    assert {x.name for x in output.iterdir()} == FILES


def test_other_beginning_of_texts_is_said(run_export, output, tmp_path):
    assert run_export()[0] == 0
    report = {**EQUAL, "ids": [[7, 8]], "around": [[1, 7, 2], [7]]}
    python = fake_python(tmp_path, json.dumps(report))

    def lines(begin):
        return export.verify(output, "olmo", str(python), {"x": (7, 8)}, begin)

    assert lines((1,)) == lines(None)  # as the data; unknown
    (note,) = {*lines(())} - {*lines(None)}
    assert "token 1 before" in note


def test_silent_interpreter_is_stopped(run_export, tmp_path, monkeypatch):
    """Together with its children, which have a pipe open."""
    python, pipe = tmp_path / "python", tmp_path / "pipe"
    os.mkfifo(pipe)
    reader, writer = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), os.open(pipe, os.O_WRONLY)
    python.write_text(f'#!/bin/sh\ntest "$1" = -c && exit\nsleep 600 3>{pipe} &\nwait\n')
    python.chmod(0o755)
    monkeypatch.setattr(export, "_VERIFY_SECONDS", 0.5)
    status, _, err = run_export("--verify", f"--verify-python={python}")
    assert status == 2
    assert "--verify-python" in err
    os.close(writer)
    assert select.select([reader], [], [], 60)[0]  # no writer is left
    os.close(reader)
    assert {x.name for x in tmp_path.iterdir()} == {"python", "pipe"}


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ({"out": json.dumps({**EQUAL, "logits": {"a": 0.0, "one way": 2e-4}})}, 1, "one way"),
        ({"out": json.dumps({**EQUAL, "ids": [[7]]})}, 1, "ai2-olmo"),
        ({"err": "Traceback:\n  line 3\nKeyError: 'no such weight'", "status": 1}, 1, "KeyError"),
        ({"err": "ModuleNotFoundError: No module named 'hf_olmo'", "status": 1}, 2, "hf_olmo"),
        ({}, 2, "--verify-python"),
    ],
)
def test_unverified_model_is_not_left(answer, status, named, run_export, tmp_path):
    python = fake_python(tmp_path, **answer)
    exit_status, out, err = run_export("--verify", f"--verify-python={python}")
    assert exit_status == status
    assert "wrote" not in out
    assert named in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [python]


# Verification by the libraries


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "variable"),
    [("olmo", "ANYTIME_JAX_OLMO_PYTHON"), ("olmo2", "ANYTIME_JAX_OLMO2_PYTHON")],
)
def test_library_agrees(name, variable, dtype, dataset, output, tmp_path, command):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter (see tests/oracles/README.md)")
    run = tmp_path / name
    start(run, dataset, model__kind=name)
    words = ("--verify", f"--verify-python={python}", f"--dtype={dtype}")
    status, out, err = command(export, f"--run={run}", f"--output={output}", *words)
    assert (status, err) == (0, "")
    assert out.count("verified: ") == {"olmo": 3, "olmo2": 2}[name]
    # It does not agree with another model.
    file = output / WEIGHTS
    tensors = safetensors.numpy.load_file(file)
    changed = next(x for x in tensors if x.endswith(("ff_proj.weight", "up_proj.weight")))
    safetensors.numpy.save_file({**tensors, changed: tensors[changed] * 2}, file, {"format": "pt"})
    with pytest.raises(RunError, match="other logits"):
        export.verify(output, name, python, {})
