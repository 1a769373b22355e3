"""launch/slurm.sbatch: exit status, requeueing before the time limit, cancellation, options."""

import re
import signal
import time

import pytest
from fake_commands import (
    LAUNCH,
    bin_path_fixture,  # noqa: F401
    end,
    read_calls,
    start_fixture,  # noqa: F401
    wait_for,
)

JOB = {"SLURM_JOB_ID": "77", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "8"}
LINE = (
    "srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster --config=c.py --config.stop=4x"
)


@pytest.fixture
def job(start):
    return lambda **variables: start("slurm.sbatch", *LINE.split()[-2:], **JOB, **variables)


@pytest.mark.parametrize(
    ("how", "status", "starts"), [("ends 2", 2, 1), ("ends 137", 137, 3), ("loses 75", 0, 2)]
)
def test_lost_process_starts_all_again(how, status, starts, job, tmp_path):
    assert end(job(HOW=how, RESTARTS="2"))[0] == status
    assert read_calls(tmp_path) == [LINE] * starts


@pytest.mark.parametrize(
    ("variables", "status", "name"),
    [
        ({"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "2"}, 0, "70_2"),
        ({"ANSWER": "75"}, 75, "77"),  # a process is lost meanwhile
        ({"ANSWER": "1"}, 1, "77"),  # it fails to save
    ],
    ids=["array", "lost", "fails"],
)
def test_saved_job_is_requeued_before_its_time_limit(variables, status, name, job, tmp_path):
    process = job(**variables)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == status
    requeued = [] if status == 1 else [f"scontrol requeue {name}"]
    assert read_calls(tmp_path) == [LINE, f"scancel --signal=TERM {name}", *requeued]


def test_cancelled_job_saves_and_is_not_started_again(job, tmp_path):
    process = job(ANSWER="75")
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    (tmp_path / "asked").touch()  # Slurm signals the tasks itself
    assert end(process)[0] == 75
    assert read_calls(tmp_path) == [LINE]


def test_task_uses_all_gpus_of_its_host(start, bin_path):
    (bin_path / "srun").write_text('#!/bin/sh\necho "${JAX_LOCAL_DEVICE_IDS-} $SRUN_CPUS_PER_TASK"')
    assert end(start("slurm.sbatch", **JOB)) == (0, "0,1,2,3 8\n")
    assert end(start("slurm.sbatch", **JOB, SLURM_NTASKS_PER_NODE="4")) == (0, " 8\n")


def test_options_are_on_lines_that_sbatch_reads():
    text = (LAUNCH / "slurm.sbatch").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+(?:=\S+)?)$", text, re.MULTILINE)
    assert {"--requeue", "--ntasks-per-node=1", "--signal=B:USR1@120"} <= set(options)
    assert len(options) == text.count("#SBATCH ")
    assert text.rindex("#SBATCH ") < text.index("\nset -")
