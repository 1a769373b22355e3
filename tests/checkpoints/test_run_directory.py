"""Run directories: they belong to one run, and one process has the lock."""

import json
import subprocess
import sys

import pytest
import small_run

from anytime_jax.checkpoints import run_directory
from anytime_jax.errors import InputError


def test_initialize_writes_run_file_once(tmp_path):
    run = tmp_path / "a" / "run"
    run_directory.initialize(run, {"seed": 0, "schedule.peak": 1e-2}, {"version": "1"})
    content = (run / "run.json").read_bytes()
    assert json.loads(content) == {
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
    for part in ("b2 was 0.9, is 0.95", "seed was 0, is 1", "new was 'not set', is 2", "old was 1"):
        assert part in message
    assert "same" not in message
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


CHANGEABLE = {
    "name": "another",
    "stop": "never",
    "averages": (50.0, "uniform"),
    "average_every": 16,
    "average_memory": "host",
    "microbatches": 2,
    "model__remat": "full",
    "model__layer_loop": "unroll",
    "model__attention": "xla",
    "mesh__fsdp": 2,
    "guard__skip": "nonfinite",
    "eval__every": "7 steps",
    "eval__tokens": 80,
    "checkpoint__every": "3 steps",
    "checkpoint__keep_every": "6 steps",
    "log__every": "2 steps",
    "data__path": "elsewhere",
    "data__builtin_megabytes": 1.0,
    "data__repeat": True,
}
IDENTITY = {
    "seed": 1,
    "batch_size": 4,
    "chinchilla_tokens": 320,
    "model__width": 24,
    "model__dtype": "bfloat16",
    "data__seed": 1,
    "schedule__peak": 2e-2,
    "schedule__alpha": 8.0,
    "schedule__warmup": "4 steps",
    "optimizer__b2": 0.95,
    "optimizer__clip_norm": 2.0,
}


@pytest.mark.parametrize(("name", "value"), CHANGEABLE.items())
def test_changeable_setting_keeps_the_identity(name, value):
    assert small_run.config("run", **{name: value}).identity("x") == small_run.config(
        "run"
    ).identity("x")


@pytest.mark.parametrize(("name", "value"), IDENTITY.items())
def test_identity_setting_makes_another_run(tmp_path, name, value):
    run_directory.initialize(tmp_path, small_run.config("run").identity("x"), {})
    with pytest.raises(InputError, match=name.replace("__", r"\.")):
        run_directory.initialize(
            tmp_path, small_run.config("run", **{name: value}).identity("x"), {}
        )


def test_other_data_make_another_run(tmp_path):
    config = small_run.config("run")
    run_directory.initialize(tmp_path, config.identity("x"), {})
    with pytest.raises(InputError, match=r"data\.fingerprint was 'x', is 'y'"):
        run_directory.initialize(tmp_path, config.identity("y"), {})


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
