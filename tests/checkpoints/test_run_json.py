"""Run directories: they belong to one run, and one process has the lock."""

import dataclasses
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest
import small_run
from run_files import run_file

from anytime_jax.checkpoints import run_json, run_ownership
from anytime_jax.checkpoints.run_json import (
    BranchPoint,
    Evaluation,
    EvaluationChange,
    StageChange,
    StageEntry,
)
from anytime_jax.checkpoints.run_ownership import LostRunError
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.storage import locks


def test_run_file_is_written_alone_and_read_back(tmp_path):
    run = tmp_path / "a" / "run"
    stage = StageEntry(0, 8, 1e4, (8.0, 1.0, 4.0, 64.0), "web 1", (("a", 1),))
    change = EvaluationChange(4, Evaluation("all", {"web": ("b", 1.0)}))
    content = run_file(
        identity={"seed": 0, "schedule.peak": 1e-2},
        config={"model": {"layers": 2}},
        start=run_ownership.new_start("id"),
        evaluated=Evaluation(64, {"web": ("a", 0.5), "code": ("b", 0.5)}),
        evaluation_changes=(change,),
        stages=(stage,),
        stage_changes=(StageChange(4, (stage, stage)),),
        branch=BranchPoint("trunk", 9, "digest", "id"),
    )
    run_json.write_run_file(run, content)
    assert run_json.read_run_file(run) == content
    assert [path.name for path in run.iterdir()] == ["run.json"]


def test_every_setting_of_another_run_is_named(tmp_path):
    saved = run_file(identity={"seed": 0, "b2": 0.9, "old": 1, "same": "x"})
    with pytest.raises(InputError) as error:
        run_ownership.check_identity(
            tmp_path, saved, {"seed": 1, "b2": 0.95, "new": 2, "same": "x"}
        )
    for change in ("b2 was 0.9, is 0.95", "new was", "old was", "seed was"):
        assert change in str(error.value)
    assert "same was" not in str(error.value)


def test_lock_rejects_a_second_process_until_the_first_ends(tmp_path):
    code = (
        "import pathlib, sys; from anytime_jax.checkpoints import run_ownership\n"
        "with run_ownership.lock(pathlib.Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with run_ownership.lock(tmp_path):
        assert run_ownership.is_locked(tmp_path)
        second = subprocess.run(command, capture_output=True, text=True)
        holder = locks.holder(tmp_path / "lock")
    assert holder in second.stderr
    assert not run_ownership.is_locked(tmp_path)
    assert subprocess.run(command).returncode == 0


def test_readers_may_ask_for_the_lock_at_the_same_time(tmp_path):
    with run_ownership.lock(tmp_path):
        (tmp_path / "lock").chmod(0o444)  # as for other users
        assert run_ownership.is_locked(tmp_path)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not run_ownership.is_locked(tmp_path)


def test_pipe_in_place_of_the_lock_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "lock")
    assert not run_ownership.is_locked(tmp_path)


def test_link_in_place_of_the_lock_is_refused(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(InputError, match="lock"), run_ownership.lock(tmp_path):
        pass
    assert not run_ownership.is_locked(tmp_path)
    assert target.read_text() == "mine"


def test_start_is_confirmed_until_another_begins(tmp_path):
    first, second = (run_file(id=x, start=run_ownership.new_start(x)) for x in ("first", "second"))
    run_json.write_run_file(tmp_path, first)
    run_ownership.confirm(tmp_path, "first")
    run_json.write_run_file(tmp_path, first.resumed(second, 4))
    run_ownership.confirm(tmp_path, "second")
    assert (run_json.run_id(tmp_path), run_json.start_id(tmp_path)) == ("first", "second")
    with pytest.raises(RunError, match=rf"process {os.getpid()} on {socket.gethostname()}"):
        run_ownership.confirm(tmp_path, "first")
    for start, kind in (("first", LostRunError), ("second", BucketError)):
        with pytest.raises(kind), run_ownership.explain_lost_run(tmp_path, start):
            raise BucketError("a file of a save is gone")
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunError, match="removed"):
        run_ownership.confirm(tmp_path, "second")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[" * 100_000, bytes(range(128, 256)) * 1000),
        {"identity": [1] * 10_000},
        {"evaluated": {"tokens": 8, "sets": [1]}},
        {"evaluated": {"tokens": 8, "sets": {"web": ["a"]}}},
        {"evaluation_changes": [{"step": "a", "now": {}}]},
        {"start": "a"},
        {"branch": {"from_run": "trunk"}},
    ],
    ids=range(10),
)
def test_damaged_run_file_is_one_short_line(content, tmp_path):
    if isinstance(content, dict):
        content = json.dumps({**dataclasses.asdict(run_file()), **content}).encode()
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.json is damaged") as error:
        run_json.read_run_file(tmp_path)
    assert len(str(error.value)) < 500


def test_evaluations_are_compared_by_text_and_weight():
    one = Evaluation(64, {"web": ("a", 0.5), "code": ("b", 0.5)})
    renamed = Evaluation(64, {"mine": ("b", 0.5), "other": ("a", 0.5)})
    assert run_json.is_same_evaluation([one, renamed])
    assert run_json.is_same_evaluation([])
    for change in ({"tokens": "all"}, {"sets": {"web": ("a", 1.0)}}):
        assert not run_json.is_same_evaluation([one, dataclasses.replace(one, **change)])


def test_run_keeps_the_weights_that_it_began_with(tmp_path):
    """Whatever its last stage is now, unless `eval.weights` gives others."""
    sets = {name: name for name in ("web", "code", "new")}
    config = small_run.config(tmp_path, eval__sets=sets)
    other = small_run.config(tmp_path, eval__sets=sets, eval__weights={"web": 1.0})
    began = {"web": ("a", 0.3), "code": ("b", 0.3), "gone": ("c", 0.4)}
    saved = run_file(evaluated=Evaluation("all", began))
    assert saved.set_weights(config) == pytest.approx({"web": 0.5, "code": 0.5, "new": 0.0})
    assert saved.set_weights(other) == other.set_weights == {"web": 1.0, "code": 0.0, "new": 0.0}
    assert run_file().set_weights(config) == config.set_weights


def test_evaluation_is_that_of_the_last_change_before_it():
    first, second = Evaluation(64, {}), Evaluation("all", {})
    saved = run_file(evaluated=first, evaluation_changes=(EvaluationChange(4, second),))
    assert [saved.evaluation_at(step) for step in (4, 5)] == [first, second]


def test_data_are_where_they_are_configured_or_else_recorded(tmp_path):
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    saved = run_file(data_paths={"web": new})
    assert saved.find_source("web", old) == old  # nothing is at either
    (tmp_path / "new").mkdir()
    assert saved.find_source("web", old) == new
    assert saved.find_source("other", old) == saved.find_set("web", old) == old
    (tmp_path / "old").mkdir()
    assert saved.find_source("web", old) == old
