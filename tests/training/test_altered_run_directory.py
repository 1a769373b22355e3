"""Run directories that lost files, or hold those of another run or another step."""

import json
import os
import re
import shutil

import pytest
from training_runs import bits, start

from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.checkpoint_listing import list_entries
from anytime_jax.checkpoints.checkpoint_reader import verify_checkpoint
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.json_files import json_digest
from anytime_jax.training import preflight
from anytime_jax.training.loop import Outcome

STOP = "2x"  # of the run `whole`, which keeps the checkpoints 9, 10, 18 and 20


@pytest.fixture(name="run")
def run_fixture(whole, tmp_path):
    """A copy of the run, which a test may change."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.mark.parametrize("name", ["seed", "data.fingerprint"])
def test_checkpoint_of_another_run_is_named(run, name):
    file = run / run_directory.RUN_FILE
    content = json.loads(file.read_text())
    content["identity"][name] = "another"
    file.write_text(json.dumps(content))
    with pytest.raises(RunError, match=f"checkpoints/20 belongs to another run .*{name} was"):
        verify_checkpoint(run / "checkpoints" / "20")


def test_run_does_not_resume_from_checkpoint_of_another_run(run, dataset):
    file = run / "checkpoints" / "10" / "meta" / "metadata"
    meta = json.loads(file.read_text())
    meta["config"]["seed"] = 1
    del meta["digest"]
    file.write_text(json.dumps({**meta, "digest": json_digest(meta)}))
    for step in (18, 20):
        shutil.rmtree(run / "checkpoints" / str(step))
    before = bits(run, 9)
    for stop in ("1x", STOP):
        with pytest.raises(RunError, match=r"checkpoints/10 belongs to another run \(seed was 0"):
            start(run, dataset, stop=stop)
    assert start(run, dataset, stop=STOP, fall_back=True)[0] == Outcome(20, "stop")
    assert bits(run, 9) == before


def test_copy_under_another_step_is_no_finished_run(run, dataset):
    shutil.rmtree(run / "checkpoints" / "20")
    shutil.copytree(run / "checkpoints" / "18", run / "checkpoints" / "20")
    with pytest.raises(RunError, match=r"checkpoints/20: .* belongs to step 18"):
        start(run, dataset, stop=STOP)


def test_step_with_leading_zeros_is_foreign(run, dataset):
    shutil.copytree(run / "checkpoints" / "18", run / "checkpoints" / "0040")
    kinds = {entry.path.name: entry.kind for entry in list_entries(run)}
    assert kinds["0040"] == "foreign"
    outcome, output = start(run, dataset, stop="22 steps")
    assert outcome == Outcome(22, "stop")
    assert re.search("ignored .*0040: it is not a checkpoint", output)


def test_run_that_lost_its_checkpoints_is_not_begun_again(run, dataset, whole):
    directory = run / "checkpoints"
    before = sorted((run / "records").iterdir())
    for lose in (lambda: [shutil.rmtree(x) for x in directory.iterdir()], directory.rmdir):
        lose()
        with pytest.raises(InputError, match="records to step 20, but its checkpoints are gone"):
            start(run, dataset, stop=STOP)
    assert sorted((run / "records").iterdir()) == before
    assert start(run, dataset, stop=STOP, fall_back=True)[0] == Outcome(20, "stop")
    assert bits(run, 20) == bits(whole, 20)


def test_lost_rows_are_counted(run, dataset):
    (segment,) = (run / "records").iterdir()
    lines = segment.read_text().splitlines(keepends=True)
    segment.write_text("".join(lines[: len(lines) // 2]))
    _, output = start(run, dataset, stop="22 steps")
    lost = re.search(r"records  (\d+) of the (\d+) rows of records before step 20 are lost", output)
    assert 0 < int(lost[1]) < int(lost[2])
    _, output = start(run, dataset, stop="24 steps")
    assert "are lost" not in output


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
        assert verify_checkpoint(run / "checkpoints" / str(step))["step"] == step


def test_removed_directory_ends_the_run(dataset, tmp_path):
    run, calls = tmp_path / "run", []

    def interrupted():
        calls.append(None)
        if len(calls) == 3:
            shutil.rmtree(run)
        return False

    with pytest.raises(RunError, match="the directory was removed while the run trained"):
        start(run, dataset, interrupted, stop="1x")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("records", "file"), ("checkpoints", "pipe"), ("tensorboard", "dangling link"), ("lock", "")],
)
def test_what_is_no_part_of_a_run_is_refused_at_once(run, dataset, monkeypatch, name, kind):
    path = run / name
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to("gone")
    elif name == "lock":
        path.mkdir()
    else:
        path.write_text("mine")
    monkeypatch.setattr(preflight, "make_mesh", None)  # all that takes time comes later
    with pytest.raises(InputError, match=rf"^config\.run_dir = .*/{name} "):
        start(run, dataset, stop="22 steps", log__tensorboard=True)


@pytest.mark.parametrize("name", ["run.json", "records/0000.jsonl", "checkpoints/20/meta/metadata"])
def test_pipe_in_the_run_is_not_waited_for(run, dataset, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    if name.startswith("records"):
        warnings = []
        read_records(run, warnings.append)
        assert "not a regular file" in warnings[0]
        return
    with pytest.raises((InputError, RunError), match="not a regular file"):
        start(run, dataset, stop="22 steps")
