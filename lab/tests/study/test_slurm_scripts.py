"""Slurm job arrays of a study, submitted to commands that only pretend."""

import re
from types import SimpleNamespace

import pytest
from fake_commands import (
    bin_path_fixture,  # noqa: F401
    end,
    read_calls,
    start_fixture,  # noqa: F401
)
from paths import REPOSITORY
from run_command import run_command
from small_study import study_fixture, write_run  # noqa: F401

from anytime_jax.data.dataset_info import METADATA_NAME
from anytime_lab.study import slurm_scripts, study_files
from anytime_lab.study import sweep_command as sweep
from anytime_lab.study.tasks import make_tasks

JOB = {"SLURM_JOB_ID": "77", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "8"}


@pytest.fixture(name="write_arrays")
def write_arrays_fixture(study, monkeypatch, tmp_path):
    """Writes the arrays of a small study with prepared data; returns status, file and directory."""
    monkeypatch.chdir(REPOSITORY)
    data = tmp_path / "prepared"
    data.mkdir(exist_ok=True)
    (data / METADATA_NAME).touch()

    def write():
        file, _ = study(data=data)
        arrays = tmp_path / "arrays"
        return run_command(sweep, [f"--study={file}", f"--slurm={arrays}"]), file, arrays

    return write


def submitted(start, arrays, tmp_path):
    """The indices and the dependency of each call of sbatch."""
    status, printed = end(start(arrays / "submit.sh", "--time=1:00:00"))
    assert status == 0, printed
    calls = []
    for line in read_calls(tmp_path):
        assert line.endswith(f" --time=1:00:00 launch/slurm.sbatch @{arrays}/runs.txt")
        assert line.startswith("sbatch --parsable --job-name=tiny --nodes=1 ")
        dependency = re.search(r" --dependency=(\S+) --kill-on-invalid-dep=yes ", line)
        indices = re.search(r" --array=(\S+) ", line)[1]
        calls.append((indices, dependency and dependency[1]))
    return calls


def test_branches_wait_for_their_own_trunk(write_arrays, start, tmp_path):
    status, file, arrays = write_arrays()
    assert status == 0
    assert sorted(x.name for x in arrays.iterdir()) == ["runs.txt", "submit.sh"]
    names = [f"constant-seed={seed}" for seed in (0, 1)]
    names += [f"wsd-seed={seed}-horizon={m}x" for seed in (0, 1) for m in (1, 2)]
    lines = [f"--config={file}:{name}" for name in names]
    assert (arrays / "runs.txt").read_text().splitlines() == lines
    assert submitted(start, arrays, tmp_path) == [
        ("1-2", None),
        ("3-4", "afterok:100_1"),
        ("5-6", "afterok:100_2"),
    ]
    assert (tmp_path / "runs" / "study.json").exists()


def test_finished_runs_are_left_out(write_arrays, start, study, tmp_path):
    file, _ = study()
    for task in make_tasks(study_files.load_file(file)):
        if task.run.name in ("constant-seed=0", "wsd-seed=1-horizon=1x"):
            write_run(task, stop_step=task.stop_step)
            checkpoint = task.run.run_dir / "checkpoints" / str(task.stop_step)
            checkpoint.mkdir(parents=True)
            (checkpoint / "_CHECKPOINT_METADATA").touch()
    status, file, arrays = write_arrays()
    assert status == 0
    names = ["constant-seed=1", *(f"wsd-seed=0-horizon={m}x" for m in (1, 2))]
    lines = [f"--config={file}:{name}\n" for name in [*names, "wsd-seed=1-horizon=2x"]]
    assert (arrays / "runs.txt").read_text() == "".join(lines)
    assert submitted(start, arrays, tmp_path) == [("1-3", None), ("4", "afterok:100_1")]


def test_array_task_trains_the_run_of_its_line(write_arrays, start, tmp_path):
    _, file, arrays = write_arrays()
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "HOW": "ends 0"}
    assert end(start("slurm.sbatch", f"@{arrays}/runs.txt", **JOB, **task))[0] == 0
    run = f"--config={file}:wsd-seed=0-horizon=1x"
    assert read_calls(tmp_path) == [
        f"srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster {run}"
    ]
    task["SLURM_ARRAY_TASK_ID"] = "7"
    status, printed = end(start("slurm.sbatch", f"@{arrays}/runs.txt", **JOB, **task))
    assert status == 2
    assert f"{arrays}/runs.txt" in printed


def test_conflicting_tasks_are_rejected(write_arrays, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "anytime_jax.checkpoints.run_ownership.is_locked",
        lambda path: path.name == "constant-seed=1",
    )
    assert write_arrays()[0] == 2
    assert "constant-seed=1" in capsys.readouterr().err
    arguments = [f"--study={tmp_path / 'study.py'}", f"--slurm={tmp_path / 'arrays'}"]
    (tmp_path / "prepared" / METADATA_NAME).unlink()
    assert run_command(sweep, arguments) == 2
    assert "config.data.path" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert run_command(sweep, arguments) == 2
    assert "launch/slurm.sbatch" in capsys.readouterr().err
    assert not (tmp_path / "arrays").exists()


def test_branches_of_branches_follow_their_trunk():
    trunks = {"a": None, "b": "a", "c": "b", "d": None, "e": "gone", "f": "b", "g": "d"}
    tasks = [SimpleNamespace(run=SimpleNamespace(name=x, trunk=y)) for x, y in trunks.items()]
    groups = slurm_scripts._group_by_trunk(tasks)
    names = [(trunk, "".join(x.run.name for x in group)) for trunk, group in groups.items()]
    assert names == [("", "ade"), ("a", "b"), ("b", "cf"), ("d", "g")]
