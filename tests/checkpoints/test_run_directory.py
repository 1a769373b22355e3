"""Run directories: they belong to one run, and one process has the lock."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

from anytime_jax.checkpoints import run_directory
from anytime_jax.errors import InputError


def test_initialize_writes_run_file_once(tmp_path):
    run = tmp_path / "a" / "run"
    run_directory.initialize(run, {"seed": 0, "schedule.peak": 1e-2}, {"version": "1"})
    content = (run / "run.json").read_bytes()
    assert json.loads(content) == {
        "id": run_directory.run_id(run),
        "identity": {"seed": 0, "schedule.peak": 1e-2},
        "version": "1",
    }
    run_directory.initialize(run, {"schedule.peak": 1e-2, "seed": 0}, {"version": "2"})
    assert (run / "run.json").read_bytes() == content
    assert [path.name for path in run.iterdir()] == ["run.json"]


def test_initialize_names_every_different_setting(tmp_path):
    run_directory.initialize(tmp_path, {"seed": 0, "b2": 0.9, "old": 1, "same": "x"}, {})
    with pytest.raises(InputError) as error:
        run_directory.initialize(tmp_path, {"seed": 1, "b2": 0.95, "new": 2, "same": "x"}, {})
    message = str(error.value)
    changes = (
        "b2 was 0.9, is 0.95; new was 'not set', is 2; old was 1, is 'not set'; seed was 0, is 1"
    )
    assert f"({changes})" in message
    assert "\n" not in message


def test_initialize_rejects_directory_with_foreign_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"run\.json"):
        run_directory.initialize(tmp_path, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"run"', "\0"])
def test_initialize_rejects_damaged_run_file(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        run_directory.initialize(tmp_path, {"seed": 0}, {})


def test_initialize_succeeds_after_a_kill_while_writing(tmp_path):
    (tmp_path / ".run.json.part").write_text('{"ident')
    run_directory.initialize(tmp_path, {"seed": 0}, {})
    run_directory.initialize(tmp_path, {"seed": 0}, {})


def test_lock_rejects_a_second_process_until_the_first_ends(tmp_path):
    run_directory.initialize(tmp_path, {"seed": 0}, {})
    code = (
        "import pathlib, sys; from anytime_jax.checkpoints import run_directory\n"
        "with run_directory.lock(pathlib.Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with run_directory.lock(tmp_path):
        assert run_directory.is_locked(tmp_path)
        second = subprocess.run(command, capture_output=True, text=True)
        holder = run_directory.lock_holder(tmp_path).strip()
    assert "in use by another process" in second.stderr
    assert holder in second.stderr
    assert not run_directory.is_locked(tmp_path)
    assert subprocess.run(command).returncode == 0


def test_readers_may_ask_for_the_lock_at_the_same_time(tmp_path):
    run_directory.initialize(tmp_path, {"seed": 0}, {})
    with run_directory.lock(tmp_path):
        (tmp_path / "lock").chmod(0o444)  # as for other users
        assert run_directory.is_locked(tmp_path)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not run_directory.is_locked(tmp_path)


def test_pipe_in_place_of_the_lock_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "lock")
    assert not run_directory.is_locked(tmp_path)


@pytest.mark.parametrize("name", ["lock", ".run.json.part"])
def test_symbolic_links_are_not_written_through(tmp_path, name):
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    target.write_text("mine")
    (run / name).symlink_to(target)
    if name == "lock":
        with (
            pytest.raises(InputError, match="lock is not a file that can be locked"),
            run_directory.lock(run),
        ):
            pass
        assert not run_directory.is_locked(run)
    else:
        run_directory.initialize(run, {"seed": 0}, {})
        assert not (run / "run.json").is_symlink()
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        *(b"[" * 100_000, bytes(range(128, 256)) * 1000, b"{"),
        b'{"identity": {}, "evaluated": {"tokens": 8, "sits": {}}}',
        b'{"identity": {}, "evaluated": {"tokens": 8, "sets": [1]}}',
        b'{"identity": {}, "evaluation_changes": [{"step": "a", "now": {}}]}',
        b'{"identity": {}, "evaluation_changes": [{"now": {"tokens": 8, "sets": {}}}]}',
    ],
)
def test_damaged_run_file_is_one_short_line(content, tmp_path):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.json is damaged") as error:
        run_directory.read_identity(tmp_path)
    assert len(str(error.value)) < 500


def test_evaluations_are_compared_by_text_and_weight():
    one = {"tokens": 64, "sets": {"web": ["a", 0.5], "code": ["b", 0.5]}}
    renamed = {"tokens": 64, "sets": {"mine": ["b", 0.5], "other": ["a", 0.5]}}
    assert run_directory.is_same_evaluation([one, renamed])
    assert run_directory.is_same_evaluation([])
    for change in ({"tokens": "all"}, {"sets": {"web": ["a", 1.0]}}):
        assert not run_directory.is_same_evaluation([one, {**one, **change}])
