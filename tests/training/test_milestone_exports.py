"""Exports that a run makes of its milestones, beside the training."""

import pathlib
import shutil
import time

import pytest
import safetensors.numpy
import small_run
from reference_decoders import from_olmo
from training_runs import after, bits, finished, saved, start

from anytime_jax import averaging
from anytime_jax.checkpoints.metric_records import read_starts
from anytime_jax.formats.model_reader import WEIGHTS
from anytime_jax.training import milestone_exports
from anytime_jax.training.loop import Outcome

EXPORT = {"stop": "1x", "checkpoint__export": "f25"}


@pytest.fixture(scope="module")
def exported(dataset, tmp_path_factory):
    """A run to 1x, 10 updates: milestones 9 and 10."""
    return finished(tmp_path_factory, "exported", dataset, **EXPORT)


@pytest.fixture(name="command")
def command_fixture(tmp_path, monkeypatch):
    """Replaces the command by a shell script of these lines."""

    def replace(*lines):
        script = tmp_path / "command"
        script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        script.chmod(0o755)
        monkeypatch.setattr(milestone_exports.sys, "executable", str(script))

    return replace


def test_milestones_are_exported(exported, monkeypatch):
    """The tensors are the stored average, by the tests' own table of names."""
    monkeypatch.setattr("reference_decoders.LAYERS", 2)
    monkeypatch.setattr("reference_decoders.WIDTH", 16)
    folders = sorted((exported / "exports").iterdir())
    assert [x.name for x in folders] == ["f25-10", "f25-9"]
    for step in (9, 10):
        tensors = safetensors.numpy.load_file(exported / "exports" / f"f25-{step}" / WEIGHTS)
        ours = from_olmo({f"x/{name}": x for name, x in tensors.items()}, "x")
        stored = averaging.averages(saved(exported, step).state.opt_state)["f25"]
        assert small_run.same_bits(small_run.leaves(ours), small_run.leaves(stored))


def test_a_run_without_exports_has_the_same_bits(exported, dataset, tmp_path):
    start(tmp_path, dataset, stop="1x")
    assert bits(tmp_path, 10) == bits(exported, 10)


def test_a_start_makes_up_for_a_missing_export(exported, dataset, tmp_path):
    """Also of a run that is at its stop, and of no other step."""
    run = shutil.copytree(exported, tmp_path / "run")
    shutil.rmtree(run / "exports" / "f25-9")
    kept = (run / "exports" / "f25-10" / WEIGHTS).stat().st_mtime_ns
    outcome, output = start(run, dataset, **EXPORT)
    assert outcome == Outcome(10, "stop")
    assert output.count("export   ") == 1
    mine, theirs = (x / "exports" / "f25-9" / WEIGHTS for x in (run, exported))
    assert mine.read_bytes() == theirs.read_bytes()
    assert (run / "exports" / "f25-10" / WEIGHTS).stat().st_mtime_ns == kept
    seconds = read_starts(run)[-1]["seconds"][-1][1]
    assert seconds["waiting for exports"] > seconds["updates"]


def test_a_failed_export_does_not_end_the_run(dataset, tmp_path, command):
    command("echo started", "echo 'error: the disk is full' >&2", "exit 1")
    outcome, output = start(tmp_path / "run", dataset, **EXPORT)
    assert outcome == Outcome(10, "stop")
    for step in (9, 10):
        assert f"none of step {step}; the next start tries again: error: the disk is full" in output
    assert not (tmp_path / "run" / "exports").exists()


def test_an_interrupted_run_does_not_wait_for_its_export(dataset, tmp_path, command):
    command(f"echo $$ > {tmp_path}/started", "exec sleep 600")
    begin, updates = time.monotonic(), after(10)

    def interrupted():
        return updates() and (tmp_path / "started").exists()

    outcome, _ = start(tmp_path / "run", dataset, interrupted=interrupted, **EXPORT)
    assert outcome.step == 10
    assert time.monotonic() - begin < 300
    (pid,) = (tmp_path / "started").read_text().split()
    assert not pathlib.Path("/proc", pid).exists()
