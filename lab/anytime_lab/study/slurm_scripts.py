"""Slurm job arrays for the unfinished runs of a study.

`anytime sweep --study=FILE --slurm=DIR` writes two files and submits nothing:

    DIR/runs.txt   one line per unfinished run: arguments of `anytime_jax.main`
    DIR/submit.sh  submits an array of the runs without a trunk, and one for each trunk's branches

Task N of an array trains the run of line N, through launch/slurm.sbatch. A branch waits only for
its own trunk, and leaves the queue if the trunk fails.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from anytime_jax.checkpoints import run_ownership
from anytime_jax.data.dataset_info import METADATA_NAME
from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.paths import storage_path
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study
from anytime_lab.study.tasks import StudyTask

SCRIPT = Path("launch/slurm.sbatch")

_RUNS, _SUBMIT = "runs.txt", "submit.sh"
_MAX_TASKS = 1000  # Slurm's default MaxArraySize

_HEAD = """\
#!/usr/bin/env bash
# Submits the {count} unfinished runs of study {name}. Arguments are options of sbatch:
#
#   {submit} --gpus-per-node=1 --time=8:00:00
#
# Written by: {command}
# When these jobs have ended, the same command writes scripts for the unfinished runs.
set -euo pipefail
cd {cwd}

submit() {{ # array indices, options of sbatch: prints the job id
  local indices=$1 job
  shift
  job=$(sbatch --parsable --job-name={name} --nodes=1 --output={logs}/%A_%a.out \\
    --array="$indices" "$@" {script} @{runs})
  echo "${{job%%;*}}"
}}
"""


def write(study: Study, study_file: str, tasks: Sequence[StudyTask], directory: str | Path) -> str:
    """Writes the job arrays of the unfinished tasks and returns instructions to print.

    Raises an InputError if the runs cannot be trained independently of each other, or the working
    directory is not the repository.
    """
    unfinished = [task for task in tasks if not task.is_finished]
    if not unfinished:
        return f"all {len(tasks)} runs of {study.name} are finished"
    _check(unfinished)
    groups = _group_by_trunk(unfinished)
    names = [task.run.name for group in groups.values() for task in group]
    directory = Path(directory).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / _RUNS) as part:
        lines = (f"--config={study_file}:{name}\n" for name in names)
        part.write_text("".join(lines), encoding="utf-8")
    with atomic_write(directory / _SUBMIT) as part:
        part.write_text(_submit_script(study, study_file, directory, groups), encoding="utf-8")
        part.chmod(0o755)
    study_files.write_plan(study)
    return (
        f"{len(unfinished)} of {len(tasks)} runs of {study.name} are unfinished. To submit them, "
        "with any options of sbatch:\n"
        f"  {shlex.quote(str(directory / _SUBMIT))} --gpus-per-node=1 --time=8:00:00"
    )


def _check(unfinished: Sequence[StudyTask]) -> None:
    """Checks that array tasks, which start at any time on any host, cannot conflict."""
    if not SCRIPT.is_file():
        raise InputError(f"{SCRIPT} does not exist here: start this command in the repository")
    if len(unfinished) > _MAX_TASKS:
        raise InputError(
            f"{len(unfinished)} runs are unfinished, and an array has at most {_MAX_TASKS} tasks: "
            "select some with --only"
        )
    for task in unfinished:
        data = storage_path(task.config.data.path)
        if not (data / METADATA_NAME).exists():
            raise InputError(
                f"config.data.path = {str(data)!r} of {task.run.name} holds no prepared data: "
                "prepare them first (docs/data.md), so that no two tasks do"
            )
        if run_ownership.is_locked(task.run.run_dir):
            raise InputError(
                f"{task.run.name} is being trained now: wait for it, or leave it out with --only"
            )


def _group_by_trunk(unfinished: Sequence[StudyTask]) -> dict[str, list[StudyTask]]:
    """Groups tasks by the unfinished trunk they wait for, or ""; a trunk precedes its group."""
    names = {task.run.name for task in unfinished}
    groups: dict[str, list[StudyTask]] = {}
    for task in unfinished:
        trunk = task.run.trunk or ""
        groups.setdefault(trunk if trunk in names else "", []).append(task)
    return groups


def _submit_script(
    study: Study, study_file: str, directory: Path, groups: Mapping[str, Sequence[StudyTask]]
) -> str:
    options = [f"--study={study_file}", f"--slurm={directory}"]
    head = _HEAD.format(
        name=shlex.quote(study.name),
        count=sum(map(len, groups.values())),
        submit=shlex.quote(str(directory / _SUBMIT)),
        command=shlex.join(["anytime", "sweep", *options]),
        cwd=shlex.quote(str(Path.cwd())),
        logs=shlex.quote(str(directory)),
        script=SCRIPT,
        runs=shlex.quote(str(directory / _RUNS)),
    )
    lines, array_tasks, last = [head], {}, 0
    for i, (trunk, group) in enumerate(groups.items()):
        first, last = last + 1, last + len(group)
        for index, task in enumerate(group, first):
            array_tasks[task.run.name] = f'"${{jobs[{i}]}}_{index}"'
        comment, options = "runs without a trunk to wait for", '"$@"'
        if trunk:
            comment = f"branches of {trunk}"
            dependency = f"--dependency=afterok:{array_tasks[trunk]}"
            options = f"{dependency} --kill-on-invalid-dep=yes {options}"
        indices = str(first) if first == last else f"{first}-{last}"
        lines.append(f"# {comment}\njobs[{i}]=$(submit {indices} {options})\n")
    return "\n".join([*lines, 'echo "submitted: ${jobs[*]}"', ""])
