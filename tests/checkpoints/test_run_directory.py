"""A directory belongs to one run."""

import json
import subprocess
import sys

import pytest
import small_run

from anytime_jax.checkpoints import run_directory
from anytime_jax.errors import InputError


def test_a_directory_is_claimed_once_and_known_again(tmp_path):
    run = tmp_path / "a" / "run"
    run_directory.initialize(run, {"seed": 0, "schedule.peak": 1e-2}, {"version": "1"})
    before = (run / "run.json").read_bytes()
    assert json.loads(before) == {
        "identity": {"seed": 0, "schedule.peak": 1e-2},
        "version": "1",
    }
    run_directory.initialize(run, {"schedule.peak": 1e-2, "seed": 0}, {"version": "2"})
    assert (run / "run.json").read_bytes() == before
    assert [path.name for path in run.iterdir()] == ["run.json"]


def test_another_run_is_refused_and_every_difference_named(tmp_path):
    run_directory.initialize(tmp_path, {"seed": 0, "b2": 0.9, "old": 1, "same": "x"}, {})
    with pytest.raises(InputError) as caught:
        run_directory.initialize(tmp_path, {"seed": 1, "b2": 0.95, "new": 2, "same": "x"}, {})
    message = str(caught.value)
    for part in ("b2 was 0.9, is 0.95", "seed was 0, is 1", "new was 'not set', is 2", "old was 1"):
        assert part in message
    assert "same" not in message
    assert "\n" not in message


def test_a_directory_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds files but is no run"):
        run_directory.initialize(tmp_path, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"run"', "\0"])
def test_a_damaged_file_is_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        run_directory.initialize(tmp_path, {"seed": 0}, {})


def test_a_claim_cut_short_by_a_kill_does_not_lock_its_own_run_out(tmp_path):
    (tmp_path / ".run.json.part").write_text('{"ident')
    run_directory.initialize(tmp_path, {"seed": 0}, {})
    run_directory.initialize(tmp_path, {"seed": 0}, {})


MAY_CHANGE = {
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
MAKES_ANOTHER_RUN = {
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


@pytest.mark.parametrize(("name", "value"), MAY_CHANGE.items())
def test_what_may_change_between_starts(tmp_path, name, value):
    ours, theirs = (
        small_run.config("run", **change).identity("x") for change in ({}, {name: value})
    )
    run_directory.initialize(tmp_path, ours, {})
    run_directory.initialize(tmp_path, theirs, {})


@pytest.mark.parametrize(("name", "value"), MAKES_ANOTHER_RUN.items())
def test_what_makes_another_run(tmp_path, name, value):
    ours, theirs = (
        small_run.config("run", **change).identity("x") for change in ({}, {name: value})
    )
    run_directory.initialize(tmp_path, ours, {})
    with pytest.raises(InputError, match=name.replace("__", r"\.")):
        run_directory.initialize(tmp_path, theirs, {})


def test_other_data_make_another_run(tmp_path):
    config = small_run.config("run")
    run_directory.initialize(tmp_path, config.identity("x"), {})
    with pytest.raises(InputError, match=r"data\.fingerprint was 'x', is 'y'"):
        run_directory.initialize(tmp_path, config.identity("y"), {})


def test_a_second_process_is_refused(tmp_path):
    run_directory.initialize(tmp_path, {"seed": 0}, {})
    code = (
        "import pathlib, sys; from anytime_jax.checkpoints import run_directory\n"
        "with run_directory.lock(pathlib.Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with run_directory.lock(tmp_path):
        second = subprocess.run(command, capture_output=True, text=True)
    assert "is in use by another process" in second.stderr
    assert subprocess.run(command).returncode == 0  # the lock went with its holder
