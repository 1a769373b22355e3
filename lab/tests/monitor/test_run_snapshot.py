"""Snapshots of a run: its state in words, and what is read again."""

import dataclasses
import itertools
import os

import pytest
import synthetic_study
from synthetic_run import RecordedRun

from anytime_jax.checkpoints import metric_records, run_ownership
from anytime_jax.errors import InputError
from anytime_lab.monitor import run_snapshot


def test_process_that_trains_is_told_from_one_that_ended(tmp_path):
    RecordedRun(tmp_path).add(60)
    segment = metric_records.segments(tmp_path)[0]
    os.utime(segment, (1e9,) * 2)
    with run_ownership.lock(tmp_path):
        training = run_snapshot.take(tmp_path)
    assert training.is_training
    assert training.describe_process() == "training; last record at 2001-09-09 01:46 UTC"
    assert "1x in" in training.describe_training()
    ended = run_snapshot.take(tmp_path, training)
    assert not ended.is_training
    assert ended.describe_process().endswith("2001-09-09 01:46 UTC")
    assert " in " not in ended.describe_training()


def test_run_at_its_horizon_is_finished(tmp_path):
    run = RecordedRun(tmp_path, horizon="1x").add(479)
    assert "horizon" not in run_snapshot.take(tmp_path).describe_process()
    run.add(480)
    assert "horizon" in run_snapshot.take(tmp_path).describe_process()


def test_branch_has_the_records_of_its_trunk(tmp_path):
    """Up to where it leaves the trunk, and not those of another run in its place."""
    trunk, branch = "constant-peak=0.01", "wsd-peak=0.01-horizon=4x"
    for name in (trunk, branch):
        synthetic_study.write_run(synthetic_study.make_study().run(name), tmp_path / name)
    snapshot = run_snapshot.take(tmp_path / branch)
    step = snapshot.config.branch_step
    assert 0 < snapshot.trunk[-1].step <= step < snapshot.rows[0].step
    assert snapshot.trunk == [x for x in run_snapshot.take(tmp_path / trunk).rows if x.step <= step]


def test_records_are_read_again_only_if_they_changed(tmp_path, monkeypatch):
    def add(step):
        run.add(step)
        os.utime(metric_records.segments(tmp_path)[-1], (1000, 1000))  # clocks may not tell writes

    run = RecordedRun(tmp_path)
    empty = run_snapshot.take(tmp_path)
    assert empty.rows == []
    add(60)
    first = run_snapshot.take(tmp_path, empty)
    assert first.rows[-1].step == 60
    with monkeypatch.context() as patch:
        patch.setattr(metric_records, "read_records", None)
        assert run_snapshot.take(tmp_path, first).rows is first.rows
    add(120)
    assert run_snapshot.take(tmp_path, first).rows[-1].step == 120


def test_records_that_take_long_to_read_are_read_less_often(tmp_path, monkeypatch):
    run = RecordedRun(tmp_path).add(60)
    processor, clock = itertools.count(), [1e6]
    monkeypatch.setattr(run_snapshot.time, "thread_time", lambda: float(next(processor)))
    monkeypatch.setattr(run_snapshot.time, "monotonic", lambda: clock[0])
    first = run_snapshot.take(tmp_path)
    run.add(120)
    clock[0] += 20
    second = run_snapshot.take(tmp_path, first)
    assert second.rows is first.rows
    assert second.time > first.time
    clock[0] += 20
    assert run_snapshot.take(tmp_path, second).rows[-1].step == 120


@pytest.mark.parametrize("speed", [-1.0, 1e-300, float("inf"), float("nan")])
def test_speed_of_a_clock_that_jumped_is_left_out(tmp_path, speed):
    RecordedRun(tmp_path).add(60)
    snapshot = run_snapshot.take(tmp_path)
    row = dataclasses.replace(snapshot.rows[0], values={"train/loss": 4.0, "tokens_per_s": speed})
    jumped = dataclasses.replace(snapshot, rows=[row], is_training=True)
    assert jumped.describe_training() == "training loss 4.0000"


def test_directory_without_a_run_is_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"--run = .*run\.json"):
        run_snapshot.take(tmp_path)
