"""A study for Slurm: what `python -m anytime_jax sweep --study=FILE --slurm=DIR` writes.

    DIR/runs.txt   the missing runs: a line each, what goes to anytime_jax.main
    DIR/submit.sh  an array of the runs that begin from none, and one for the branches of each trunk

A task of an array takes the line with its number, through launch/slurm.sbatch. The branches wait
for their own trunk alone, and are taken out of the queue if it breaks. Nothing is submitted here.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from anytime_jax.atomic import atomic_write
from anytime_jax.checkpoints import run_directory
from anytime_jax.data.dataset import METADATA_NAME
from anytime_jax.errors import InputError
from anytime_jax.study import plan
from anytime_jax.study.plan import Study
from anytime_jax.study.tasks import Task

SCRIPT = Path("launch/slurm.sbatch")

_RUNS, _SUBMIT = "runs.txt", "submit.sh"
_LARGEST_TASK = 1000  # of an array, unless a cluster's MaxArraySize says otherwise

_HEAD = """\
#!/usr/bin/env bash
# Submits what is missing of the study {name}: {count} runs. Arguments are options of sbatch:
#
#   {here} --gpus-per-node=1 --time=8:00:00
#
# Written by: {command}
# Once these jobs have ended, that line writes what is missing then.
set -euo pipefail
cd {cwd}

submit() {{ # tasks, options: prints the number of the job
  local tasks=$1 job
  shift
  job=$(sbatch --parsable --job-name={name} --nodes=1 --output={logs}/%A_%a.out \\
    --array="$tasks" "$@" {script} @{runs})
  echo "${{job%%;*}}"
}}
"""


def write(study: Study, file: str, jobs: Sequence[Task], folder: str | Path) -> str:
    """Writes the arrays of a study's missing runs, for `sbatch`.

    Args:
      study: the plan.
      file: of the study.
      jobs: those of its runs that are asked for.
      folder: directory to write into.

    Returns:
      What to do next, in words.

    Raises:
      InputError: if the runs cannot be made by tasks that know nothing of each other, or this is
        not the repository.
    """
    missing = [job for job in jobs if not job.is_finished]
    if not missing:
        return f"all {len(jobs)} runs of {study.name} are finished"
    _check(missing)
    groups = _groups(missing)
    ordered = [job for group in groups.values() for job in group]
    numbers = {job.run.name: number for number, job in enumerate(ordered, start=1)}
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"--config={file}:{name}\n" for name in numbers)
    with atomic_write(folder / _RUNS) as part:
        part.write_text(lines, encoding="utf-8")
    text = _submit_script(study, file, folder, groups, numbers)
    with atomic_write(folder / _SUBMIT) as part:
        part.write_text(text, encoding="utf-8")
        part.chmod(0o755)
    plan.write(study, study.root)
    return (
        f"{len(missing)} of {len(jobs)} runs of {study.name} are missing; nothing is submitted "
        f"yet. To submit them, with any options of sbatch:\n"
        f"  {shlex.quote(str(folder / _SUBMIT))} --gpus-per-node=1 --time=8:00:00"
    )


def _check(missing: Sequence[Task]) -> None:
    """Checks that tasks which start at any time, on any host, do not stand in each other's way."""
    if not SCRIPT.is_file():
        raise InputError(f"there is no {SCRIPT} here: start this in the repository, which has it")
    if len(missing) > _LARGEST_TASK:
        raise InputError(
            f"{len(missing)} runs are missing, and an array numbers at most {_LARGEST_TASK}: "
            "choose some with --only"
        )
    for job in missing:
        data = Path(job.config.data.path)
        if not (data / METADATA_NAME).exists():
            raise InputError(
                f"{data} holds no prepared data, which {job.run.name} trains on: prepare them "
                "first (docs/data.md), so that no two tasks do"
            )
        if run_directory.is_locked(job.run.run_dir):
            raise InputError(
                f"{job.run.name} is being trained now: wait for it, or leave it out with --only"
            )


def _groups(missing: Sequence[Task]) -> dict[str, list[Task]]:
    """The runs by the missing trunk that they wait for, "" for none; every trunk comes before."""
    names = {job.run.name for job in missing}
    groups: dict[str, list[Task]] = {"": []}
    for job in missing:
        trunk = job.run.trunk if job.run.trunk in names else ""
        groups.setdefault(trunk or "", []).append(job)
    ordered, sorted_groups = [""], {}
    for trunk in ordered:  # it grows
        sorted_groups[trunk] = groups[trunk]
        ordered += [job.run.name for job in groups[trunk] if job.run.name in groups]
    return sorted_groups


def _submit_script(
    study: Study,
    file: str,
    folder: Path,
    groups: Mapping[str, Sequence[Task]],
    numbers: Mapping[str, int],
) -> str:
    """The text of submit.sh: each group after that of its trunk."""
    given = ["python", "-m", "anytime_jax", "sweep", f"--study={file}", f"--slurm={folder}"]
    text = _HEAD.format(
        name=shlex.quote(study.name),
        count=len(numbers),
        here=shlex.quote(str(folder / _SUBMIT)),
        command=shlex.join(given),
        cwd=shlex.quote(str(Path.cwd())),
        logs=shlex.quote(str(folder)),
        script=SCRIPT,
        runs=shlex.quote(str(folder / _RUNS)),
    )
    of_run = {job.run.name: i for i, group in enumerate(groups.values()) for job in group}
    lines = [text]
    for i, (trunk, group) in enumerate(groups.items()):
        first, last = (numbers[job.run.name] for job in (group[0], group[-1]))
        options = '"$@"'
        if trunk:
            before = f'"${{jobs[{of_run[trunk]}]}}_{numbers[trunk]}"'
            options = f"--dependency=afterok:{before} --kill-on-invalid-dep=yes {options}"
        lines.append(f"# {f'branches of {trunk}' if trunk else 'these wait for no other'}")
        tasks = str(first) if first == last else f"{first}-{last}"
        lines.append(f"jobs[{i}]=$(submit {tasks} {options})\n")
    return "\n".join([*lines, 'echo "submitted: ${jobs[*]}"', ""])
