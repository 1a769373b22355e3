"""The doors that read a run out, on a tiny run; against the trainer's own records, and by hand."""

import json
import math
import re

import numpy as np
import pytest
from run_command import run_command
from small_run import dataset_fixture  # noqa: F401
from training_runs import shared_programs_fixture, start  # noqa: F401

from anytime_jax.checkpoints.records import read_records
from anytime_jax.commands import evaluate, generate, readout
from anytime_jax.models import decoder
from anytime_jax.models.loss import token_losses
from anytime_jax.weights import readout_search, saved_run, weight_names
from anytime_jax.weights.post_hoc import Mixture
from anytime_jax.weights.scoring import Scorer, mean_and_standard_error
from anytime_jax.weights.weight_names import MixtureLimits

STORED = (6.25, 12.5, 25.0, 50.0, 100.0)


@pytest.fixture(scope="module", name="folder")
def folder_fixture(tmp_path_factory):
    return tmp_path_factory.mktemp("readout")


@pytest.fixture(name="run")
def run_fixture(folder, dataset):
    """40 updates with five averages."""
    path = folder / "run"
    if not path.exists():
        start(path, dataset, averages=STORED, stop="4x")
    return path


def door(capsys, command, *arguments):
    """The status of a door, and what it said."""
    status = run_command(command, arguments)
    said = capsys.readouterr()
    return status, said.out, said.err


def refused(capsys, command, *arguments):
    """The one line that a door answers bad input with."""
    status, out, err = door(capsys, command, *arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    return line


def test_losses_are_those_of_training(run, capsys):
    status, out, _ = door(capsys, evaluate, f"--run={run}")
    assert status == 0
    (last,) = [row for row in read_records(run) if row.step == 40]
    for label in ("last", "f6.25", "f12.5", "f25", "f50", "f100"):
        said = re.search(rf"^{re.escape(label)} +([0-9.]+) +([0-9.]+)", out, re.MULTILINE)
        loss = last.values[f"eval/{label}/loss"]
        assert float(said[1]) == pytest.approx(loss, abs=6e-5)
        assert float(said[2]) == pytest.approx(math.exp(loss), rel=2e-4)


def test_differences_are_paired(run, dataset, capsys):
    _, out, _ = door(capsys, evaluate, f"--run={run}", "--weights", "f25", "last")
    saved = saved_run.open_run(run)
    tokens = Scorer(saved.config.model, dataset, "validation", 8)._windows.batch(0, 10)
    losses = []
    for label in ("f25", "last"):
        params = saved_run.load_weights(saved, Mixture((saved.weights[label],), (1.0,)))
        logits = decoder.apply(saved.config.model, params, tokens[:, :-1])
        losses.append(np.asarray(token_losses(logits, tokens[:, 1:]).mean(axis=1), np.float64))
    gap = losses[1] - losses[0]
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    assert f"{gap.mean():+.4f} ± {error:.4f}" in out


def test_a_mix_tells_its_kernel_error(run, capsys):
    _, out, _ = door(capsys, evaluate, f"--run={run}", "--weights", "f=35")
    saved = saved_run.open_run(run)
    assert f"{weight_names.resolve(saved, 'f=35', MixtureLimits()).kernel_error:.2%}" in out


def test_batches_of_any_size_give_the_same(run, dataset):
    saved = saved_run.open_run(run)
    params = saved_run.load_weights(saved, Mixture((saved.weights["f25"],), (1.0,)))
    found = []
    for size in (1, 8, 24):
        scorer = Scorer(saved.config.model, dataset, "validation", size)
        found.append(scorer.losses(scorer.put(params), 2, 11))
    assert all(len(x) == 11 for x in found)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-5)


def test_a_standard_error_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=400)
    mean, error = mean_and_standard_error(values)
    assert (mean, error) == (pytest.approx(values.mean()), pytest.approx(1 / 20, rel=0.1))
    assert math.isnan(mean_and_standard_error(np.ones(1))[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "f26"], "are not stored at step 40"),
        (["--tokens=0"], "--tokens=0: give a number from 1"),
        (["--tokens=7"], "--tokens=7: the validation split of .* give a number from one window"),
        (["--tokens=99999999"], "--tokens=99999999: the validation split"),
        (["--batch-size=-1"], "--batch-size=-1: give a number from 1"),
        (["--data=nowhere"], "nowhere is not a prepared dataset"),
        (["--split=test"], "invalid choice: 'test'"),
        (["--max-error=nan"], "--max-error=nan: give a number from 0"),
        (["--checkpoints=0"], "--checkpoints=0: give a number from 1"),
    ],
)
@pytest.mark.parametrize("command", [evaluate, readout])
def test_bad_input_is_one_line(run, capsys, command, arguments, message):
    if command is readout and arguments[0] == "--weights":
        message = "unrecognized arguments"
    assert re.search(message, refused(capsys, command, f"--run={run}", *arguments))


def test_data_of_another_vocabulary_are_refused(run, dataset, tmp_path, monkeypatch, capsys):
    import dataclasses

    from anytime_jax.commands import run_options

    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    monkeypatch.setattr(run_options, "load_dataset", lambda path, hint: other)
    line = refused(capsys, evaluate, f"--run={run}", f"--data={tmp_path}")
    assert "was made with another vocabulary" in line


def test_data_that_changed_since_are_refused(run, dataset, tmp_path, monkeypatch, capsys):
    import dataclasses

    from anytime_jax.commands import run_options

    other = dataclasses.replace(dataset, fingerprint="0" * 64)
    monkeypatch.setattr(run_options, "load_dataset", lambda path, hint: other)
    line = refused(capsys, evaluate, f"--run={run}")
    assert "is not the one that" in line
    assert door(capsys, evaluate, f"--run={run}", "--data=x", "--weights", "last")[0] == 0


def test_a_picture_that_cannot_be_written_is_told_first(run, capsys, tmp_path):
    (tmp_path / "file").touch()
    for there in (tmp_path / "file", "/proc"):  # which no one can write a file into
        line = refused(capsys, readout, f"--run={run}", f"--output={there}")
        assert "cannot be written" in line


def test_windows_longer_than_those_of_training_are_refused(run, dataset):
    import dataclasses

    from anytime_jax.errors import InputError

    config = dataclasses.replace(saved_run.open_run(run).config.model, length=4)
    with pytest.raises(InputError, match="has windows of 8 tokens, longer than the 4"):
        Scorer(config, dataset, "validation", 8)


# Text.


def test_text_is_what_the_decoder_says(run, capsys):
    arguments = [f"--run={run}", "--prompt=the ", "--tokens=3", "--temperature=0"]
    status, out, err = door(capsys, generate, *arguments)
    assert (status, out[:4]) == (0, "the ")
    assert err.startswith("f25@40 of ")
    from anytime_jax.data.vocabulary import load_vocabulary

    saved = saved_run.open_run(run)
    vocabulary = load_vocabulary(f"{saved.config.data.path}/vocabulary.model")
    params = saved_run.load_weights(saved, Mixture((saved.weights["f25"],), (1.0,)))
    ids = vocabulary.encode(["the "])[0].tolist()
    count = len(ids)
    while len(ids) < min(count + 3, saved.config.model.length):
        logits = decoder.apply(saved.config.model, params, np.array([ids]))
        ids.append(int(logits[0, -1, : vocabulary.size].argmax()))
        if ids[-1] == vocabulary.eos_id:
            break
    assert out.startswith(vocabulary.decode(ids).rstrip("\ufffd"))
    assert door(capsys, generate, *arguments)[1] == out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--temperature=-1", "--temperature = -1.0 is not allowed"),
        ("--top-p=2", "--top-p = 2.0 is not allowed"),
        ("--top-k=-1", "--top-k = -1 is not allowed"),
        ("--seed=-1", "--seed = -1 is not allowed"),
        ("--tokens=0", "--tokens=0: give a number from 1"),
        ("--weights=f26", "'f26' are not stored"),
        ("--vocabulary=nowhere", "vocabulary nowhere"),
        ("--prompt=\udcff", "--prompt is not text in UTF-8"),
        ("--step=7", "no checkpoint of step 7"),
    ],
)
def test_bad_input_for_text_is_one_line(run, capsys, argument, message):
    assert message in refused(capsys, generate, f"--run={run}", argument)


# The best read-out.


def test_the_best_read_out_is_told_and_drawn(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(readout, "_POINTS", 4)
    monkeypatch.setattr(readout_search, "_MAX_ITERATIONS", 6)
    arguments = [f"--run={run}", f"--output={tmp_path}", "--checkpoints=2"]
    status, out, err = door(capsys, readout, *arguments)
    assert (status, err) == (0, "")
    assert {x.name for x in tmp_path.iterdir()} == {"readout_40.png", "readout_40.pdf"}
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    lines = {cells[0]: cells for cells in rows if cells}
    assert {"last", "f6.25", "f100", "best"} <= set(lines)
    chosen = {name: float(cells[1]) for name, cells in lines.items() if name[0] in "lf"}
    mixed = re.findall(r"best mix of [0-9]+ +([0-9.]+)", out)
    assert len(mixed) == 2
    assert max(map(float, mixed)) <= min(chosen.values()) + 1e-4
    # What is printed can be used as it is.
    name = re.search(r"--weights='(mix:.*)'", out)[1]
    assert sum(json.loads(name.removeprefix("mix:")).values()) == pytest.approx(1, abs=1e-6)
    assert door(capsys, evaluate, f"--run={run}", "--weights", name)[0] == 0


def test_a_run_without_windows_is_told(dataset, folder, capsys):
    path = folder / "bare"
    start(path, dataset, averages=("uniform",), stop="5 steps", eval__every="5 steps")
    line = refused(capsys, readout, f"--run={path}")
    assert "keeps no average of a growing window at step 5" in line
