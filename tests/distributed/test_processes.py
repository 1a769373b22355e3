"""Processes of a run: real ones, with four fake devices each, killed and signalled for real."""

import os
import signal
import time

import pytest
import small_run
from run_processes import Processes
from small_run import write_config

from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError

STEPS = 50
TOLERANCE = 2e-5  # nats: float32 sums in another order, over 50 updates
CHANGES = {
    "checkpoint__every": "10 steps",
    "eval__every": "25 steps",
    "log__every": "1 steps",
    "guard__skip": "nothing",
}


def write(folder, dataset, **changes):
    settings = {**CHANGES, "stop": f"{STEPS} steps", **changes}
    return write_config(folder / "run.py", folder / "run", dataset.path, **settings)


def start_run(folder, dataset, count=2, devices=4, flags=(), **changes):
    return Processes(write(folder, dataset, **changes), flags, count, devices)


def losses(run_dir, name="train/loss"):
    return {x.step: x.values[name] for x in read_records(run_dir) if name in x.values}


def checkpoint_metadata(run_dir, step):
    return checkpoint_reader.verify_checkpoint(run_dir / "checkpoints" / str(step))


def test_two_processes_write_one_run(dataset, tmp_path):
    sets = {"a": str(dataset.path), "b": str(dataset.path)}
    changes = {"stop": "6 steps", "mesh__fsdp": 2, "eval__sets": sets}
    both = start_run(tmp_path, dataset, devices=2, **changes)
    both.succeed()
    one, *others = (losses(tmp_path / "run", f"eval/{x}last/loss") for x in ("", "a/", "b/"))
    assert list(one) == [6]
    assert all(x == pytest.approx(one) for x in others)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))
    assert len(list((tmp_path / "run" / "records").iterdir())) == 1
    assert checkpoint_metadata(tmp_path / "run", 6).samples == 6 * small_run.BATCH
    assert both.output(1) == ""


def test_processes_with_other_settings_are_refused(dataset, tmp_path):
    file = write(tmp_path, dataset, stop="6 steps")
    both = Processes(file, devices=1, own_flags={1: ["--config.stop=5x", "--fall-back"]})
    assert both.wait() == [2, 2]
    assert "stop was '6 steps', is '5x'" in both.output(1)
    assert "process 1 of 2 could not start" in both.output(0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_cluster_reads_slurm_variables(dataset, tmp_path):
    both = Processes(write(tmp_path, dataset, stop="6 steps"), devices=2, slurm=True)
    both.succeed()
    assert "on 4 x cpu" in both.output(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))


def test_cluster_is_refused_outside_of_one(dataset, tmp_path):
    single = start_run(tmp_path, dataset, 1, 1, flags=["--cluster"])
    assert single.wait() == [2]
    assert "connect" not in single.output(0)


@pytest.mark.slow
def test_two_processes_train_the_single_process_run(dataset, tmp_path):
    """Same losses and data position, one set of records; then resumed on one device."""
    (tmp_path / "single").mkdir()
    start_run(tmp_path / "single", dataset, 1, 1).succeed()
    both = start_run(tmp_path, dataset, stop="40 steps", mesh__fsdp=2, mesh__tensor=2)
    both.succeed()
    start_run(tmp_path, dataset, 1, 1).succeed()
    run, single = tmp_path / "run", tmp_path / "single" / "run"
    assert sorted(losses(run)) == list(range(1, STEPS + 1))
    for name in ("train/loss", *(f"eval/{x}/loss" for x in ("last", *small_run.AVERAGES))):
        assert losses(run, name) == pytest.approx(losses(single, name), abs=TOLERANCE)
    samples = [checkpoint_metadata(x, STEPS).samples for x in (run, single)]
    assert samples == [STEPS * small_run.BATCH] * 2
    assert len(list((run / "records").iterdir())) == 2  # one a start
    assert both.output(1) == ""


def wait_for_checkpoint(start, run_dir, step):
    limit = time.monotonic() + 120
    while step not in checkpoint_listing.saved_steps(run_dir):
        assert time.monotonic() < limit
        assert all(x.poll() is None for x in start.processes), start.output(0)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "index"), [("SIGTERM", 0), ("SIGINT", 1)])
def test_signal_to_one_process_saves_once_on_all(name, index, dataset, tmp_path):
    both = start_run(tmp_path, dataset, stop="100000 steps", data__repeat=True)
    wait_for_checkpoint(both, tmp_path / "run", 20)
    both.processes[index].send_signal(getattr(signal, name))
    both.succeed()
    last = checkpoint_listing.saved_steps(tmp_path / "run")[-1]
    assert f"saved at {last:,} steps" in both.output(0)
    assert checkpoint_metadata(tmp_path / "run", last).samples == last * small_run.BATCH


@pytest.mark.slow
def test_damage_read_by_one_process_is_skipped_by_both(dataset, tmp_path):
    """Each reads half of every array; what one cannot read is set aside for both."""
    split = {"mesh__data": 1, "mesh__fsdp": 8}
    start_run(tmp_path, dataset, stop="20 steps", **split).succeed()
    files = tmp_path / "run" / "checkpoints" / "20" / "params" / "ocdbt.process_1"
    for file in (x for x in files.rglob("*") if x.is_file()):
        os.truncate(file, 0)
    refused = start_run(tmp_path, dataset, stop="30 steps", **split)
    assert refused.wait() == [1, 1]
    assert "--fall-back" in refused.output(0)
    again = start_run(tmp_path, dataset, stop="30 steps", flags=["--fall-back"], **split)
    again.succeed()
    assert "set aside as 20.damaged" in again.output(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 31))


@pytest.mark.parametrize(
    ("coordinator", "count", "process", "cluster", "named"),
    [
        ("a:1", None, None, False, "--processes"),
        (None, 2, 0, False, "--coordinator"),
        ("a:99999", 2, 0, False, "--coordinator=a:99999"),
        ("a:1", 2, 2, False, "--process=2"),
        ("a:1", 2, 0, True, "--cluster"),
    ],
)
def test_initialize_rejects_bad_options(coordinator, count, process, cluster, named):
    with pytest.raises(InputError, match=named):
        processes.initialize(coordinator, count, process, cluster)
