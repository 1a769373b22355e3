"""A run in a bucket has the guarantees of one on a disk."""

import os
import signal
import subprocess
import sys
import threading
import time

import bucket_copies
import pytest
import small_run
from forked_starts import environment
from small_run import same_bits, write_config
from training_runs import bits, records, start, updates

from anytime_jax import api
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.metric_records import (
    RecordWriter,
    read_records,
    read_starts,
    segments,
)
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.files import file_sizes
from anytime_jax.training import preflight

MARK = "commit_success.txt"


def compare(run, whole, folder, steps=(18, 20)):
    """Compares checkpoints and records of a run in a bucket with those of one on a disk."""
    copy = bucket_copies.to_disk(run, folder / "compared")
    for step in steps:
        assert bits(copy, step) == bits(whole, step)
    assert records(run) == records(whole)


def test_run_in_a_bucket_has_the_records_of_one_on_a_disk(dataset, whole, bucket, tmp_path):
    outcome, output = start(bucket, dataset, stop="0.5x", checkpoint__every="9 steps")
    assert outcome.step == 5
    assert str(bucket) in output
    assert saved_steps(bucket) == [5]
    assert checkpoint_reader.is_intact(bucket / "checkpoints" / "5")
    assert records(bucket) == [row for row in records(whole) if row[0] <= 5]
    copy = bucket_copies.to_disk(bucket, tmp_path / "copy")
    assert same_bits(*(api.load(str(run), "f25") for run in (bucket, copy)))
    losses = api.evaluate(str(bucket), ["f25"])
    assert losses == {"f25": pytest.approx(records(bucket)[-1][2]["eval/f25/loss"])}


def test_records_are_a_file_for_each_save_and_evaluation(bucket):
    writer = RecordWriter(bucket, 0, {"start": "first"})
    for step in (2, 4, 6, 8):
        writer.write(step, step, {"lr": 0.1 * step})
        if step in (4, 6):
            writer.sync()
    writer.write(8, 8, {"eval/last/loss": 1.0})
    assert [row.step for row in read_records(bucket)] == [2, 4, 6]
    writer.sync()
    writer.close()
    names = [f"0000-first-00000{i}.jsonl" for i in range(3)]
    assert [path.name for path in segments(bucket)] == names
    RecordWriter(bucket, None, {}).amend(4, 4, {"tasks/last/one/acc": 1.0})  # it is not stored
    second = RecordWriter(bucket, 6, {"start": "second"})
    second.write(10, 10, {"lr": 1.0})
    second.close()
    amendment = RecordWriter(bucket, None, {})
    amendment.amend(4, 4, {"tasks/last/one/acc": 1.0})
    amendment.close()
    rows = {row.step: set(row.values) for row in read_records(bucket)}
    assert rows == {2: {"lr"}, 4: {"lr", "tasks/last/one/acc"}, 6: {"lr"}, 10: {"lr"}}
    assert [x["start"] for x in read_starts(bucket)] == ["first", "second"]


def test_start_that_was_overtaken_ends_at_its_next_save(dataset, whole, bucket):
    """It stores nothing more, and names the other, which trains as if it were alone."""
    first, files = len(updates), []

    def overtake():
        if len(updates) == first + 6:
            while not saved_steps(bucket):
                time.sleep(0.05)
            assert start(bucket, dataset, stop="1x")[0].step == 10
            files.append(file_sizes(bucket))
        return False

    with pytest.raises(RunError, match=rf"another start.*process {os.getpid()} on"):
        start(bucket, dataset, overtake, stop="2x")
    assert files == [file_sizes(bucket)]
    assert records(bucket) == [row for row in records(whole) if row[0] <= 10]


@pytest.mark.slow
def test_run_moves_from_a_disk_to_a_bucket_and_back(dataset, whole, bucket, tmp_path):
    disk, back = tmp_path / "disk", tmp_path / "back"
    start(disk, dataset, stop="1x")
    bucket_copies.to_bucket(disk, bucket)
    outcome, output = start(bucket, dataset, stop="1.5x", checkpoint__every="13 steps")
    assert outcome.step == 15
    assert str(bucket) in output
    assert saved_steps(bucket) == [9, 10, 13, 15]  # milestones, and the latest two
    bucket_copies.to_disk(bucket, back)
    start(back, dataset, stop="2x")
    assert bits(back, 20) == bits(whole, 20)
    assert records(back) == records(whole)


@pytest.mark.slow
def test_incomplete_checkpoint_is_invisible_and_removed(dataset, whole, bucket, tmp_path):
    start(bucket, dataset, stop="1.5x")
    (bucket / "checkpoints" / "15" / MARK).unlink()
    assert saved_steps(bucket)[-1] == 12
    outcome, output = start(bucket, dataset, stop="2x")
    assert outcome.step == 20
    assert "removed 15: an interrupted save" in output
    assert "from     12 steps" in output
    compare(bucket, whole, tmp_path)


@pytest.mark.slow
def test_damaged_checkpoint_is_set_aside(dataset, bucket):
    start(bucket, dataset, stop="1x")
    sizes = file_sizes(bucket / "checkpoints" / "10")
    largest = max(sizes, key=lambda name: sizes[name])
    (bucket / "checkpoints" / "10" / largest).write_bytes(os.urandom(sizes[largest]))
    with pytest.raises(RunError, match="--fall-back"):
        start(bucket, dataset, stop="1.5x")
    outcome, output = start(bucket, dataset, stop="1.5x", fall_back=True)
    assert outcome.step == 15
    assert "set aside as 10.damaged" in output
    states = {x.path.name: x.state for x in checkpoint_listing.list_entries(bucket)}
    assert states["10.damaged"] == "set aside"
    assert checkpoint_reader.is_intact(bucket / "checkpoints" / "15")


def test_missing_bucket_is_refused(dataset, bucket_server, small_config):
    with pytest.raises(InputError, match=r"config\.run_dir.*no-such-bucket"):
        preflight.check_paths(small_config("gs://no-such-bucket/run"))
    with pytest.raises(InputError, match=r"config\.run_dir.*mount"):
        preflight.check_paths(small_config("s3://bucket/run"))


@pytest.fixture
def small_config(dataset):
    return lambda run: small_run.config(run, dataset.path)


# Real processes


class Process:
    """`python -m anytime_jax.main` of the small run in a bucket."""

    def __init__(self, server, dataset, run, folder, stop="2x", arguments=()):
        folder.mkdir(exist_ok=True)
        config = write_config(folder / "config.py", str(run), str(dataset.path), stop=stop)
        command = [sys.executable, "-m", "anytime_jax.main", f"--config={config}", *arguments]
        self.log = folder / f"log-{time.monotonic_ns()}"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=environment() | server.environment, stdout=log, stderr=log
            )

    def kill(self, number=signal.SIGKILL):
        self._process.send_signal(number)

    def wait(self, seconds=300):
        return self._process.wait(seconds)

    @property
    def output(self):
        return self.log.read_text()


def once(server, pattern, count, action):
    """Calls `action` in a thread at the request number `count` that contains a pattern."""
    left = [count]

    def hook(request):
        if all(word in request for word in pattern):
            left[0] -= 1
            if left[0] == 0:
                threading.Thread(target=action).start()

    server.hook = hook
    return left


def finish(server, dataset, run, folder):
    """Starts the run until it has finished; returns the output of the last start."""
    server.hook = lambda request: None
    last = Process(server, dataset, run, folder)
    assert last.wait() == 0, last.output
    return last.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (("POST", "run.json"), 1),
        (("POST", "records"), 1),
        (("checkpoints%2F4%2F",), 40),
        (("checkpoints%2F9%2F", MARK), 1),
        (("checkpoints%2F12%2F", MARK), 4),
        (("DELETE", "checkpoints"), 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_killed_run_ends_as_an_unbroken_one(
    bucket_server, dataset, whole, bucket, tmp_path, pattern, count
):
    killed = Process(bucket_server, dataset, bucket, tmp_path / "run")
    left = once(bucket_server, pattern, count, killed.kill)
    assert killed.wait() == -9, killed.output
    assert left[0] <= 0
    finish(bucket_server, dataset, bucket, tmp_path / "run")
    compare(bucket, whole, tmp_path)
    for step in saved_steps(bucket):
        checkpoint_reader.verify_checkpoint(checkpoint_listing.checkpoint_path(bucket, step))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["503", "429", "silent", "stopped"])
def test_fault_in_the_middle_of_a_save_is_survived(
    bucket_server, dataset, whole, bucket, tmp_path, fault
):
    def act():
        if fault == "silent":
            bucket_server.be_silent(60)
        elif fault == "stopped":
            bucket_server.stop()
            time.sleep(10)
            bucket_server.start()
        else:
            bucket_server.fail(20, int(fault))

    left = once(bucket_server, ("checkpoints%2F8%2F", "POST"), 10, act)
    run = Process(bucket_server, dataset, bucket, tmp_path / "run")
    status = run.wait()
    assert left[0] <= 0
    if fault == "stopped" and status == os.EX_TEMPFAIL:  # the server forgot an upload it had begun
        finish(bucket_server, dataset, bucket, tmp_path / "run")
    else:
        assert status == 0, run.output
    compare(bucket, whole, tmp_path)


@pytest.mark.slow
def test_suspended_run_that_was_overtaken_saves_nothing_more(
    bucket_server, dataset, whole, bucket, tmp_path
):
    stopped = threading.Event()

    def suspend():
        suspended.kill(signal.SIGSTOP)
        stopped.set()

    once(bucket_server, ("checkpoints%2F8%2F", "POST"), 3, suspend)
    suspended = Process(bucket_server, dataset, bucket, tmp_path / "run")
    assert stopped.wait(600)
    other = Process(bucket_server, dataset, bucket, tmp_path / "other")
    outputs = []
    try:
        outputs = [other.wait(), other.output]
    finally:
        suspended.kill(signal.SIGCONT)
    assert outputs[0] == 0, outputs
    assert suspended.wait() == 1, suspended.output
    assert "another start has taken over" in suspended.output
    compare(bucket, whole, tmp_path)
