"""Tests of the list of runs: every checkpoint and other entry is listed, damage is found."""

import json
import pathlib
import shutil

import pytest

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
    assert f"{run}: tiny, 2 layers of width 16, inverse_sqrt at 0.01, stop 2x" in out
    for step, multiple in ((9, "0.9x"), (10, "1x"), (18, "1.8x"), (20, "2x")):
        words = row(out, step)
        assert f" {multiple} " in words
        assert words.endswith("kB params, opt, f25, f6.25 no")
    assert row(out, 20).startswith("20 1.28K 2x")
    assert "rows of records, the last of step 20" in out


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


DAMAGE = {
    "a flipped bit in an average": (lambda c: flip(largest(c / "averages")), "averages"),
    "a flipped bit in meta": (lambda c: flip(c / "meta" / "metadata"), "meta"),
    "a truncated file": (lambda c: largest(c / "params").write_bytes(b"\x28\xb5\x2f"), "params"),
    "a missing item": (lambda c: shutil.rmtree(c / "opt"), "opt"),
    "another step's": (lambda c: (shutil.rmtree(c), shutil.copytree(c.parent / "9", c)), "step 9"),
    "an empty directory": (lambda c: (shutil.rmtree(c), c.mkdir()), "empty"),
    "no file of completion": (lambda c: (c / "_CHECKPOINT_METADATA").unlink(), "incomplete"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_fails(run, command, kind):
    damage, part = DAMAGE[kind]
    damage(run / "checkpoints" / "10")
    status, out, err = command(runs, f"--run={run}", "--verify")
    assert status == 1
    assert "Traceback" not in out + err
    cell = out[out.index("DAMAGED: ") :]
    assert part in " ".join(cell[: cell.index("\n   18")].split())
    assert row(out, 9).endswith(" UTC")
    assert row(out, 20).endswith(" UTC")
    assert "DAMAGED" in row(out, 10)


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
    assert "notes.txt not a checkpoint: ignored" in " ".join(out.split())
    assert "backup not a checkpoint: ignored" in " ".join(out.split())


def test_torn_records_and_a_damaged_run_file_are_listed(run, command):
    with (run / "records" / "0000.jsonl").open("a") as file:
        file.write('{"step": 21')
    (run / "run.json").write_text("{")
    status, out, _ = command(runs, f"--run={run}")
    assert status == 0
    assert "its last line is torn" in out
    assert "run.json is damaged" in out


def test_run_without_checkpoints_is_listed(tmp_path, command):
    (tmp_path / "run.json").write_text(json.dumps({"identity": {}}))
    status, out, _ = command(runs, f"--run={tmp_path}")
    assert status == 0
    assert "no checkpoint yet" in out


@pytest.mark.parametrize("word", ["--run=none", "--run=.", "--run=run.txt", "none", "--verify=1"])
def test_invalid_option_is_one_line(tmp_path, monkeypatch, rejected, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.txt").write_text("")
    assert word.removesuffix("=1") in rejected(runs, word)
