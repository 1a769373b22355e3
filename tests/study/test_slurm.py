"""Slurm: what a job does when it ends, breaks or is told to go, and a study as job arrays."""

import re
import signal
import time
from types import SimpleNamespace

import pytest
from fake_commands import (
    LAUNCH,
    REPOSITORY,
    bin_path_fixture,  # noqa: F401
    end,
    start_fixture,  # noqa: F401
    told,
    wait_for,
)
from small_study import BRANCHES, study_fixture  # noqa: F401

from anytime_jax.commands import sweep
from anytime_jax.data.dataset import METADATA_NAME
from anytime_jax.study import slurm

# A Slurm job

JOB = {"SLURM_JOB_ID": "77", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "8"}
LINE = (
    "srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster --config=c.py --config.stop=4x"
)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_job_that_ends_by_itself_is_not_queued_again(status, start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], HOW=f"ends {status}", **JOB)
    assert end(process)[0] == status
    assert told(tmp_path) == [LINE]


@pytest.mark.parametrize("array", [False, True])
def test_before_the_time_limit_a_job_saves_and_is_queued_again(array, start, tmp_path):
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "2"} if array else {}
    process = start("slurm.sbatch", *LINE.split()[-2:], **JOB, **task)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == 0
    job = "70_2" if array else "77"
    assert told(tmp_path) == [LINE, f"scancel --signal=TERM {job}", f"scontrol requeue {job}"]


def test_a_job_that_breaks_while_it_saves_is_not_queued_again(start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], ANSWER="1", **JOB)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == 1
    assert told(tmp_path) == [LINE, "scancel --signal=TERM 77"]


def test_a_job_that_is_cancelled_waits_for_its_save_and_is_not_queued_again(start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], **JOB)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    (tmp_path / "asked").touch()  # as Slurm, which tells the tasks
    assert end(process)[0] == 0
    assert told(tmp_path) == [LINE]


def test_a_task_on_each_host_takes_all_of_its_gpus(start, bin_path, tmp_path):
    (bin_path / "srun").write_text('#!/bin/sh\necho "${JAX_LOCAL_DEVICE_IDS-} $SRUN_CPUS_PER_TASK"')
    assert end(start("slurm.sbatch", **JOB)) == (0, "0,1,2,3 8\n")
    assert end(start("slurm.sbatch", **JOB, SLURM_NTASKS_PER_NODE="4")) == (0, " 8\n")


def test_the_settings_of_a_job_are_on_lines_that_sbatch_reads():
    text = (LAUNCH / "slurm.sbatch").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+(?:=\S+)?)$", text, re.MULTILINE)
    assert {"--requeue", "--ntasks-per-node=1", "--signal=B:USR1@120"} <= set(options)
    assert len(options) == text.count("#SBATCH ")
    assert text.rindex("#SBATCH ") < text.index("\nset -")


# A study as job arrays


@pytest.fixture(name="arrays")
def arrays_fixture(study, monkeypatch, tmp_path):
    """Writes the arrays of a tiny study whose data are there."""
    monkeypatch.chdir(REPOSITORY)
    data = tmp_path / "prepared"
    data.mkdir()
    (data / METADATA_NAME).touch()

    def write(more, *arguments):
        file, _ = study(more, data=data)
        jobs = tmp_path / "jobs"
        return sweep.main([f"--study={file}", f"--slurm={jobs}", *arguments]), file, jobs

    return write


def submitted(start, jobs, tmp_path):
    """The array and the dependency of each call of sbatch."""
    status, said = end(start(jobs / "submit.sh", "--time=1:00:00"))
    assert status == 0, said
    found = []
    for line in told(tmp_path):
        assert line.endswith(f" --time=1:00:00 launch/slurm.sbatch @{jobs}/runs.txt")
        assert line.startswith("sbatch --parsable --job-name=tiny --nodes=1 ")
        after = re.search(r" --dependency=(\S+) --kill-on-invalid-dep=yes ", line)
        found.append((re.search(r" --array=(\S+) ", line)[1], after and after[1]))
    return found


def test_branches_wait_for_their_own_trunk(arrays, start, tmp_path, capsys):
    status, file, jobs = arrays(BRANCHES)
    assert status == 0
    assert "6 of 6 runs of tiny are missing; nothing is submitted yet" in capsys.readouterr().out
    assert sorted(x.name for x in jobs.iterdir()) == ["runs.txt", "submit.sh"]
    names = [f"constant-seed={seed}" for seed in (0, 1)]
    names += [f"wsd-seed={seed}-horizon={m}x" for seed in (0, 1) for m in (1, 2)]
    lines = [f"--config={file}:{name}" for name in names]
    assert (jobs / "runs.txt").read_text().splitlines() == lines
    assert submitted(start, jobs, tmp_path) == [
        ("1-2", None),
        ("3-4", "afterok:100_1"),
        ("5-6", "afterok:100_2"),
    ]
    assert (tmp_path / "runs" / "study.json").exists()


def test_only_missing_runs_are_submitted(arrays, start, monkeypatch, tmp_path):
    finished = {"constant-seed=0", "wsd-seed=1-horizon=1x"}
    is_finished = property(lambda task: task.run.name in finished)
    monkeypatch.setattr("anytime_jax.study.tasks.Task.is_finished", is_finished)
    status, file, jobs = arrays(BRANCHES)
    assert status == 0
    names = ["constant-seed=1", *(f"wsd-seed=0-horizon={m}x" for m in (1, 2))]
    lines = [f"--config={file}:{name}\n" for name in [*names, "wsd-seed=1-horizon=2x"]]
    assert (jobs / "runs.txt").read_text() == "".join(lines)
    assert submitted(start, jobs, tmp_path) == [("1-3", None), ("4", "afterok:100_1")]


def test_when_nothing_is_missing_nothing_is_written(arrays, monkeypatch, capsys):
    monkeypatch.setattr("anytime_jax.study.tasks.Task.is_finished", property(lambda job: True))
    status, _, jobs = arrays(BRANCHES)
    assert status == 0
    assert "all 6 runs of tiny are finished" in capsys.readouterr().out
    assert not jobs.exists()


def test_a_task_of_an_array_trains_the_run_of_its_line(arrays, start, tmp_path):
    _, file, jobs = arrays(BRANCHES)
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "HOW": "ends 0"}
    assert end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB, **task))[0] == 0
    run = f"--config={file}:wsd-seed=0-horizon=1x"
    assert told(tmp_path) == [
        f"srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster {run}"
    ]
    task["SLURM_ARRAY_TASK_ID"] = "7"
    status, said = end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB, **task))
    assert (status, said) == (2, f"error: {jobs}/runs.txt has no line 7\n")
    status, said = end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB))
    assert status
    assert "@FILE needs a job array" in said


def test_arrays_that_would_be_in_their_own_way_are_refused(arrays, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "anytime_jax.checkpoints.run_directory.is_locked",
        lambda path: path.name == "constant-seed=1",
    )
    assert arrays(BRANCHES)[0] == 2
    assert "constant-seed=1 is being trained now: wait for it" in capsys.readouterr().err
    (tmp_path / "prepared" / METADATA_NAME).unlink()
    file = f"--study={tmp_path / 'study.py'}"
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "holds no prepared data, which constant-seed=0 trains on" in capsys.readouterr().err
    monkeypatch.setattr("anytime_jax.study.slurm._MAX_TASKS", 5)
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "6 runs are missing, and an array numbers at most 5" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "there is no launch/slurm.sbatch here" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()


def test_every_run_comes_after_the_one_it_waits_for():
    after = {"a": None, "b": "a", "c": "b", "d": None, "e": "gone", "f": "b", "g": "d"}
    jobs = [SimpleNamespace(run=SimpleNamespace(name=x, trunk=y)) for x, y in after.items()]
    groups = {
        trunk: "".join(job.run.name for job in group)
        for trunk, group in slurm._group_by_trunk(jobs).items()
    }
    assert list(groups.items()) == [("", "ade"), ("a", "b"), ("d", "g"), ("b", "cf")]
