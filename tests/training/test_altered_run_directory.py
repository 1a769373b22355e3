"""Run directories that lost files, or hold those of another run or another step."""

import dataclasses
import json
import os
import shutil

import pytest
from training_runs import bits, start

from anytime_jax.checkpoints import run_json, run_ownership
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.checkpoint_reader import verify_checkpoint
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.json_files import json_digest
from anytime_jax.training.loop import Outcome

STOP = "2x"  # of the run `whole`, which keeps the checkpoints 9, 10, 18 and 20


@pytest.fixture(name="run")
def run_fixture(whole, tmp_path):
    """A copy of the run, which a test may change."""
    return shutil.copytree(whole, tmp_path / "run")


def test_checkpoint_on_other_data_is_named(run):
    content = run_json.read_run_file(run)
    identity = {**content.identity, "data.fingerprint": "another"}
    run_json.write_run_file(run, dataclasses.replace(content, identity=identity))
    with pytest.raises(RunError, match=r"checkpoints/20: .*data\.fingerprint"):
        verify_checkpoint(run / "checkpoints" / "20")


def test_run_does_not_resume_from_checkpoint_of_another_run(run, dataset):
    file = run / "checkpoints" / "10" / "meta" / "metadata"
    meta = json.loads(file.read_text())
    meta["config"]["seed"] = 1
    del meta["digest"]
    file.write_text(json.dumps({**meta, "digest": json_digest(meta)}))
    for step in (18, 20):
        shutil.rmtree(run / "checkpoints" / str(step))
    with pytest.raises(RunError, match=r"checkpoints/10: .*seed"):
        start(run, dataset, stop=STOP)
    assert start(run, dataset, stop=STOP, fall_back=True)[0] == Outcome(20, "stop")


def test_copy_under_another_step_is_no_finished_run(run, dataset):
    shutil.rmtree(run / "checkpoints" / "20")
    shutil.copytree(run / "checkpoints" / "18", run / "checkpoints" / "20")
    with pytest.raises(RunError, match=r"checkpoints/20: .* belongs to step 18"):
        start(run, dataset, stop=STOP)


def test_run_that_lost_its_checkpoints_is_not_begun_again(run, dataset, whole):
    for checkpoint in (run / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    with pytest.raises(InputError, match=r"config\.run_dir .* checkpoints are gone"):
        start(run, dataset, stop=STOP)
    assert start(run, dataset, stop=STOP, fall_back=True)[0] == Outcome(20, "stop")
    assert bits(run, 20) == bits(whole, 20)


@pytest.mark.slow
def test_linked_checkpoint_is_neither_followed_nor_deleted(run, dataset, tmp_path):
    moved = shutil.move(run / "checkpoints" / "20", tmp_path / "elsewhere")
    (run / "checkpoints" / "20").symlink_to(moved)
    assert start(run, dataset, stop="22 steps", checkpoint__keep=1)[0] == Outcome(22, "stop")
    rolling = shutil.move(run / "checkpoints" / "22", tmp_path / "rolling")
    (run / "checkpoints" / "22").symlink_to(rolling)
    assert start(run, dataset, stop="26 steps", checkpoint__keep=1)[0] == Outcome(26, "stop")
    for step in (20, 22):
        assert (run / "checkpoints" / str(step)).is_symlink()
        assert verify_checkpoint(run / "checkpoints" / str(step)).step == step


def test_removed_directory_ends_the_run(dataset, tmp_path):
    run, calls = tmp_path / "run", []

    def interrupted():
        calls.append(None)
        if len(calls) == 3:
            shutil.rmtree(run)
        return False

    with pytest.raises(RunError, match="the directory was removed while the run trained"):
        start(run, dataset, interrupted, stop="1x")


def test_start_that_was_overtaken_saves_nothing_more(dataset, tmp_path):
    """As on a file system without locks, where a second start is not refused."""
    run, calls = tmp_path / "run", []

    def interrupted():
        calls.append(None)
        if len(calls) == 6:
            content = run_json.read_run_file(run)
            start = run_ownership.new_start("another")
            run_json.write_run_file(run, dataclasses.replace(content, start=start))
        return False

    with pytest.raises(RunError, match="another start has taken over"):
        start(run, dataset, interrupted, stop="1x")
    assert saved_steps(run) == [4]


@pytest.mark.parametrize("name", ["records", "lock"])
def test_what_is_no_part_of_a_run_is_refused_at_once(run, dataset, name):
    path = run / name
    if name == "records":
        shutil.rmtree(path)
        path.write_text("mine")
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises(InputError, match=rf"^config\.run_dir = .*/{name} "):
        start(run, dataset, stop="22 steps")


@pytest.mark.parametrize(
    "name", ["run.json", "checkpoints/20/meta/metadata", "checkpoints/20/params"]
)
def test_pipe_in_the_run_is_not_waited_for(run, dataset, name):
    file = run / name
    if file.is_dir():
        file = next(x for x in sorted(file.rglob("*")) if x.is_file())
    file.unlink()
    os.mkfifo(file)
    with pytest.raises((InputError, RunError), match=str(run)):
        start(run, dataset, stop="22 steps")


def test_pipe_in_place_of_records_is_not_waited_for(run):
    file = run / "records" / "0000.jsonl"
    file.unlink()
    os.mkfifo(file)
    warnings = []
    read_records(run, warnings.append)
    assert str(file) in warnings[0]
