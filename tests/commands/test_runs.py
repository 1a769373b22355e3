"""The list of runs: every checkpoint and what else lies there, named; damage found and told."""

import json
import pathlib
import shutil

import pytest
from run_command import run_command
from small_run import dataset_fixture  # noqa: F401
from training_runs import whole_fixture  # noqa: F401

from anytime_jax.commands import runs


@pytest.fixture
def run(whole, tmp_path):
    """A run to 2x: checkpoints of 9, 10, 18, 20."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "runs" / "one"))


def show(capsys, *arguments):
    status = run_command(runs, [*arguments[:-1], f"--run={arguments[-1]}"])
    out, err = capsys.readouterr()
    return status, out, err


def line(out, step):
    """The words of a checkpoint's line, and what follows on lines of its own."""
    rows = [row for row in out.split("\n") if "rows of records" not in row]
    (found,) = [row for row in rows if row.split()[:1] == [str(step)] and len(row.split()) > 3]
    return " ".join(found.split())


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_checkpoint_is_listed_and_nothing_is_touched(run, capsys):
    before = contents(run)
    status, out, err = show(capsys, run.parent)
    assert (status, err) == (0, "")
    assert contents(run) == before
    assert f"{run}: tiny, 2 layers of width 16, inverse_sqrt at 0.01, stop 2x" in out
    for step, multiple in ((9, "0.9x"), (10, "1x"), (18, "1.8x"), (20, "2x")):
        words = line(out, step)
        assert f" {multiple} " in words
        assert words.endswith("kB params, opt, f25, f6.25 no")
    assert line(out, 20).startswith("20 1.28K 2x")
    assert "rows of records, the last of step 20" in out


@pytest.mark.slow
def test_what_was_verified_is_remembered_until_its_files_change(run, capsys):
    status, out, _ = show(capsys, "--verify", run)
    assert status == 0
    assert all(line(out, step).endswith(" UTC") for step in (9, 10, 18, 20))
    (run / "checkpoints" / "10" / "params" / "_METADATA").touch()
    status, out, _ = show(capsys, run)
    assert line(out, 9).endswith(" UTC")
    assert "no: changed since" in line(out, 10)


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def largest(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


DAMAGE = {
    "a flipped bit in an array": (lambda c: flip(largest(c / "params")), "params"),
    "a flipped bit in the moments": (lambda c: flip(largest(c / "opt")), "opt"),
    "a flipped bit in an average": (lambda c: flip(largest(c / "averages")), "averages"),
    "a flipped bit in meta": (lambda c: flip(c / "meta" / "metadata"), "meta"),
    "a truncated file": (lambda c: largest(c / "params").write_bytes(b"\x28\xb5\x2f"), "params"),
    "a missing file": (lambda c: (c / "averages" / "manifest.ocdbt").unlink(), "averages"),
    "a missing item": (lambda c: shutil.rmtree(c / "opt"), "opt"),
    "no meta": (lambda c: shutil.rmtree(c / "meta"), "meta"),
    "another step's": (lambda c: (shutil.rmtree(c), shutil.copytree(c.parent / "9", c)), "step 9"),
    "nothing in it": (lambda c: (shutil.rmtree(c), c.mkdir()), "empty"),
    "no seal": (lambda c: (c / "_CHECKPOINT_METADATA").unlink(), "incomplete"),
}
# Alike to the others in kind: left to the longer tests.
LONGER = {"a flipped bit in an array", "a flipped bit in the moments", "a missing file", "no meta"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in LONGER else ()) for k in DAMAGE]
)
def test_damage_is_named_and_the_exit_status_is_1(run, capfd, kind):
    damage, part = DAMAGE[kind]
    damage(run / "checkpoints" / "10")
    status, out, err = show(capfd, "--verify", run)
    assert status == 1
    assert "Traceback" not in out + err
    told = out[out.index("DAMAGED: ") :]
    assert part in " ".join(told[: told.index("\n   18")].split())
    assert line(out, 9).endswith(" UTC")
    assert line(out, 20).endswith(" UTC")
    assert "DAMAGED" in line(out, 10)


def test_all_else_that_lies_there_is_named(run, capsys):
    folder = run / "checkpoints"
    shutil.copytree(folder / "20", folder / "24.orbax-checkpoint-tmp")
    shutil.copytree(folder / "9", folder / "8.damaged")
    (folder / "notes.txt").write_text("mine")
    (folder / "backup").mkdir()
    status, out, _ = show(capsys, run)
    assert status == 0
    assert "half-written" in line(out, 24)
    assert line(out, 8).endswith("8.damaged set aside as damaged")
    assert "notes.txt not a checkpoint: ignored" in " ".join(out.split())
    assert "backup not a checkpoint: ignored" in " ".join(out.split())


def test_torn_records_and_a_damaged_run_file_are_told(run, capsys):
    with (run / "records" / "0000.jsonl").open("a") as file:
        file.write('{"step": 21')
    (run / "run.json").write_text("{")
    status, out, _ = show(capsys, run)
    assert status == 0
    assert "its last line is torn" in out
    assert "run.json is damaged" in out


def test_a_run_without_checkpoints(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"identity": {}}))
    status, out, _ = show(capsys, tmp_path)
    assert status == 0
    assert "no checkpoint yet" in out


@pytest.mark.parametrize("word", ["--run=none", "--run=.", "--run=run.txt", "none", "--verify=1"])
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.txt").write_text("")
    status = run_command(runs, [word])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
