"""Local execution: order, failures, interrupts, shares of the machine."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from run_command import run_command
from run_files import run_file
from small_study import (
    REPOSITORY,
    fake_training_fixture,  # noqa: F401
    read_order,
    started,
    study_fixture,  # noqa: F401
)

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.data.dataset_info import METADATA_NAME
from anytime_jax.errors import InputError
from anytime_lab.study import local_executor, study_files, tasks
from anytime_lab.study import sweep_command as sweep

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def run(file, *arguments):
    return run_command(sweep, [f"--study={file}", "--run", *arguments])


def test_branches_start_after_their_trunk_and_finished_study_stays(study, fake_training):
    file, root = study()
    fake_training()
    assert run(file) == 0
    order = [(event, name) for event, name, _ in read_order(root)]
    assert len(order) == 12
    for seed in (0, 1):
        end = order.index(("end", f"constant-seed={seed}"))
        for m in (1, 2):
            assert order.index(("start", f"wsd-seed={seed}-horizon={m}x")) > end
    assert json.loads((root / "study.json").read_text())["name"] == "tiny"
    assert run(file) == 0
    assert len(read_order(root)) == 12


@TWO_CORES
def test_processes_have_separate_cores_and_one_prepares_the_data(study, fake_training, tmp_path):
    file, root = study("[]", data=tmp_path)
    fake_training()
    assert run(file, "--jobs=2") == 0
    assert [event for event, *_ in read_order(root)] == ["start", "end", "start", "end"]
    shutil.rmtree(root)
    (tmp_path / METADATA_NAME).touch()
    assert run(file, "--jobs=2") == 0
    first, second = (cores for event, _, cores in read_order(root) if event == "start")
    assert first != second


def test_failed_run_fails_its_branches_only(study, fake_training, capsys):
    file, root = study()
    fake_training(constant_seed_0="fails")
    assert run(file) == 1
    printed = capsys.readouterr().out
    assert "error: it broke" in printed
    assert "3 of 6 runs are finished" in printed
    assert "wsd-seed=0-horizon=1x: its trunk constant-seed=0" in printed
    assert "some output" in (root / "logs" / "constant-seed=0.log").read_text()
    fake_training()
    assert run(file) == 0
    assert started(root).count("constant-seed=1") == 1


def test_last_line_of_a_killed_run_is_not_the_reason(study, fake_training, capsys):
    file, _ = study("[]")
    fake_training(constant_seed_0="is killed")
    assert run(file) == 1
    printed = capsys.readouterr().out
    assert "it was killed (signal 9; log: " in printed
    assert "step 5" not in printed


def test_same_configuration_error_twice_ends_the_sweep(study, fake_training, capsys):
    file, root = study()
    fake_training(constant_seed_0="rejects its configuration")
    assert run(file) == 1
    printed = capsys.readouterr().out
    assert "error: invalid setting" in printed
    assert "3 of 6 runs are finished" in printed
    shutil.rmtree(root)
    file, root = study(f"plan.runs('more', config, plan.values('seed', 2), {str(root)!r})")
    how = "rejects its configuration"
    fake_training(constant_seed_0=how, constant_seed_1=how)
    assert run(file) == 1
    assert "skipped 1 runs" in capsys.readouterr().out
    assert started(root) == ["constant-seed=0", "constant-seed=1"]


def test_locked_run_starts_after_the_others_once_it_is_unlocked(study, fake_training):
    file, root = study("[]")
    fake_training()
    config = tasks.make_tasks(study_files.load_file(file))[0].config
    run_dir = root / "constant-seed=0"
    run_json.write_run_file(run_dir, run_file(identity=config.identity("abc")))
    ended = threading.Event()
    with (run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def unlock():
            for _ in range(300):  # half a minute, where nothing else starts
                if (root / "order.txt").exists() or ended.wait(0.1):
                    break
            fcntl.flock(lock, fcntl.LOCK_UN)

        thread = threading.Thread(target=unlock)
        thread.start()
        try:
            assert run(file) == 0
        finally:
            ended.set()
            thread.join()
    assert started(root) == ["constant-seed=1", "constant-seed=0"]


def test_exception_leaves_no_process_running(study, fake_training, monkeypatch):
    file, root = study("[]")
    fake_training(constant_seed_0="waits")
    monkeypatch.setattr(local_executor.LocalExecutor, "_fail_orphans", lambda self: 1 / 0)
    assert run(file) == 1
    assert not (root / "constant-seed=0" / "checkpoints").exists()


def test_interrupt_reaches_every_run(study, fake_training, capsys):
    file, root = study()
    fake_training(constant_seed_0="waits")

    ended = threading.Event()  # after that, the signal would abort the tests

    def interrupt():
        while not (root / "order.txt").exists() and not ended.wait(0.1):
            pass
        if not ended.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert run(file) == 130
    finally:
        ended.set()
        thread.join()
    assert "interrupted after" in capsys.readouterr().out
    assert started(root) == ["constant-seed=0"]
    assert not (root / "constant-seed=0" / "checkpoints").exists()


@TWO_CORES
def test_split_machine_shares_out_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert [slot.gpus for slot in local_executor.split_machine(2)] == ["3,7", "5"]
    assert local_executor.split_machine(1)[0].gpus is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert [slot.gpus for slot in local_executor.split_machine(2)] == [None] * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(InputError, match="--jobs=2"):
        local_executor.split_machine(2)


@pytest.mark.slow
def test_study_is_trained_killed_and_resumed(study, dataset, capsys):
    """Real training: two trunks with a branch each, the sweep killed on the way."""
    file, root = study("plan.decays('wsd', trunks, [2])", data=dataset.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "anytime_jax", "sweep", f"--study={file}", "--run"], cwd=REPOSITORY
    )
    deadline = time.monotonic() + 120
    while not saved_steps(root / "constant-seed=0") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()  # its run survives: the next sweep waits for that
    process.wait()
    assert run(file) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert saved_steps(root / "wsd-seed=1-horizon=2x")[-1] == 20
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = [(path, path.stat().st_mtime_ns) for path in files]
    assert run(file) == 0
    assert [(path, path.stat().st_mtime_ns) for path in files] == before
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files
