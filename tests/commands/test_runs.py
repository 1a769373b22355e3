"""Tests of the list of runs: every checkpoint and other entry is listed, damage is found."""

import dataclasses
import pathlib
import shutil

import jax
import pytest
from run_files import run_file

from anytime_jax import __version__
from anytime_jax.checkpoints import checkpoint_reader, run_json
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import runs


@pytest.fixture
def run(whole, tmp_path):
    """A run to 2x: checkpoints of 9, 10, 18, 20."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "runs" / "one"))


def row(out, step):
    """The words of a checkpoint's row."""
    rows = [line for line in out.split("\n") if "rows of records" not in line]
    (words,) = [x for x in map(str.split, rows) if x[:1] == [str(step)] and len(x) > 3]
    return " ".join(words)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_checkpoint_is_listed_and_no_file_changes(run, command):
    before = contents(run)
    status, out, err = command(runs, f"--run={run.parent}")
    assert (status, err) == (0, "")
    assert contents(run) == before
    for step, multiple in ((9, "0.9x"), (10, "1x"), (18, "1.8x"), (20, "2x")):
        words = row(out, step)
        assert f" {multiple} " in words
        assert words.endswith("f6.25, f25 no")
    (evaluated,) = [x for x in read_records(run) if x.step == 20]
    live, wide, narrow = (evaluated.values[f"eval/{x}/loss"] for x in ("last", "f6.25", "f25"))
    loss, label = min((live, "last"), (wide, "f6.25"), (narrow, "f25"))
    assert f" {loss:.4f} {label} " in row(out, 20)
    assert "warning" not in out


def test_linked_runs_are_listed_once(run, command, tmp_path):
    (tmp_path / "linked").symlink_to(run)
    (tmp_path / "again").symlink_to(tmp_path)
    status, out, _ = command(runs, f"--run={tmp_path}")
    assert status == 0
    assert out.count(": tiny, 2 layers") == 1


@pytest.mark.slow
def test_verification_is_noted_until_files_change(run, command):
    status, out, _ = command(runs, f"--run={run}", "--verify")
    assert status == 0
    assert all(row(out, step).endswith(" UTC") for step in (9, 10, 18, 20))
    (run / "checkpoints" / "10" / "params" / "_METADATA").touch()
    status, out, _ = command(runs, f"--run={run}")
    assert row(out, 9).endswith(" UTC")
    assert "no: changed since" in row(out, 10)


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def largest(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_is_named_and_fails(run, command):
    """Each is done to another checkpoint; what else is damage is tested where they are read."""
    folder = run / "checkpoints"
    flip(largest(folder / "9" / "averages"))
    flip(folder / "10" / "meta" / "metadata")
    shutil.rmtree(folder / "18" / "opt")
    status, out, err = command(runs, f"--run={run}", "--verify")
    assert status == 1
    assert "Traceback" not in out + err
    cells = [" ".join(cell.split()) for cell in out.split("DAMAGED: ")[1:]]
    for cell, part in zip(cells, ("averages", "meta", "opt"), strict=True):
        assert part in cell
    assert row(out, 20).endswith(" UTC")


def test_other_entries_are_listed(run, command):
    folder = run / "checkpoints"
    shutil.copytree(folder / "20", folder / "24.orbax-checkpoint-tmp")
    shutil.copytree(folder / "9", folder / "8.damaged")
    (folder / "notes.txt").write_text("mine")
    (folder / "backup").mkdir()
    status, out, _ = command(runs, f"--run={run}")
    assert status == 0
    assert "half-written" in row(out, 24)
    assert row(out, 8).endswith("8.damaged set aside as damaged")
    assert "notes.txt not a checkpoint" in " ".join(out.split())
    assert "backup not a checkpoint" in " ".join(out.split())


def test_damaged_run_file_is_listed(run, command):
    (run / "run.json").write_text("{")
    status, out, _ = command(runs, f"--run={run}")
    assert status == 0
    assert "run.json is damaged" in out


def test_note_that_cannot_be_written_is_a_warning(run, command):
    (run / runs.NOTE).mkdir()
    status, out, err = command(runs, f"--run={run}", "--verify")
    assert (status, err) == (0, "")
    assert row(out, 20).endswith(" UTC")
    assert f"warning: {run / runs.NOTE} cannot be written" in out


def test_checkpoint_that_retention_removes_meanwhile_is_not_damaged(run, command, monkeypatch):
    verify = checkpoint_reader.verify_checkpoint

    def verify_removed(checkpoint, run_file):
        if checkpoint.name == "9":
            shutil.rmtree(checkpoint)
        return verify(checkpoint, run_file)

    monkeypatch.setattr(checkpoint_reader, "verify_checkpoint", verify_removed)
    status, out, err = command(runs, f"--run={run}", "--verify")
    assert (status, err) == (0, "")
    assert "DAMAGED" not in out
    assert row(out, 9).endswith("removed meanwhile by the run")


def test_run_without_checkpoints_is_listed(tmp_path, command):
    run_json.write_run_file(tmp_path, run_file())
    status, out, _ = command(runs, f"--run={tmp_path}")
    assert status == 0
    assert "no checkpoint yet" in out


def test_description_has_versions_changed_settings_and_the_last_records(run, command):
    before = contents(run)
    status, out, err = command(runs, f"--run={run}", "--describe")
    assert (status, err) == (0, "")
    assert contents(run) == before
    assert f"anytime_jax {__version__}, " in out
    assert f"devices 1 x cpu, version {__version__}, jax {jax.__version__}" in out
    assert "  model.width = 16\n" in out
    assert "optimizer.b1" not in out  # it is the default
    last = read_records(run)[-1]
    for name, value in last.values.items():
        assert f"{name} {value:.6g}" in out.partition("  step 20: ")[2]


def test_description_of_a_run_with_a_class_that_is_not_trusted_has_all_settings(run, command):
    content = run_json.read_run_file(run)
    optimizer = {**content.config["optimizer"], "kind": "package_of_mine:Descent"}
    config = {**content.config, "optimizer": optimizer}
    run_json.write_run_file(run, dataclasses.replace(content, config=config))
    status, out, _ = command(runs, f"--run={run}", "--describe")
    assert status == 0
    assert "all settings (config.optimizer.kind = 'package_of_mine:Descent': it is a class" in out
    assert "  optimizer.b1 = 0.9\n" in out
    assert "  step 20: " in out
