"""List or train the runs of a study.

--run trains the unfinished runs on this machine, each branch after its trunk, and resumes those
that were interrupted. Each run is a process with a log in STUDY/logs; Ctrl-C or SIGTERM lets every
run save. Several of these commands may work on one study, on machines that share its directory.
--slurm=DIR writes job arrays instead.

--pack=DIR writes `records.tar.xz`, the plan and the records of all runs without checkpoints, from
which the other commands read a study elsewhere. --records=DIR continues a study from there: runs
that are finished, with the same settings and data, are not trained; their records are put into
their run directories where these have nothing yet. With --list, nothing is written.

A study file is Python code and is executed: use those you trust.
"""

import argparse
import fnmatch
import math
from collections.abc import Sequence

from rich.console import Console

from anytime_jax.commands import argument_parser, config_help
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.tables import Column, Table
from anytime_lab.plugin import STUDIES
from anytime_lab.study import packed_records, slurm_scripts, study_files
from anytime_lab.study.local_executor import LocalExecutor, split_machine
from anytime_lab.study.plan import Study
from anytime_lab.study.tasks import StudyTask, make_tasks

EXAMPLES = (
    "--study=laptop --list",
    "--study=laptop --run --jobs=2",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("--study", metavar="FILE", help="study, by file or name")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--list", action="store_true", help="print runs and costs; without --study, the studies"
    )
    action.add_argument("--run", action="store_true", help="train the unfinished runs here")
    action.add_argument("--slurm", metavar="DIR", help="write job arrays of the unfinished runs")
    action.add_argument(
        "--pack", type=argument_parser.path, metavar="DIR", help="write the records of all runs"
    )
    add("--only", default="*", metavar="PATTERN", help="names of runs, such as 'cosine-*'")
    add("--jobs", type=positive_int, default=1, metavar="N", help="processes at once")
    add("--records", metavar="PATH", help="packed records, an archive or its directory")
    add("--tokens-per-s", type=float, metavar="X", help="measured speed: adds hours to --list")


def run(arguments: argparse.Namespace) -> int:
    """Lists or trains the runs; returns the exit status."""
    if not arguments.run:
        argument_parser.refuse(arguments, ["--jobs"], "without --run")
    if not arguments.list:
        argument_parser.refuse(arguments, ["--tokens-per-s"], "without --list")
    if arguments.study is None:
        if not arguments.list:
            raise InputError("--study: none is given: --list alone prints their names")
        of_study = ("--only", "--records", "--tokens-per-s")
        argument_parser.refuse(arguments, of_study, "without --study")
        print(config_help.list_files(STUDIES))
        return 0
    console = open_console(width=140)
    study = study_files.load_file(arguments.study)
    if arguments.pack:
        argument_parser.refuse(arguments, ("--only", "--records"), "with --pack")
        make_writable_directory(arguments.pack, f"--pack={arguments.pack}")
        print(study_files.pack(study, arguments.pack / study_files.ARCHIVE))
        return 0
    tasks = _select(study, _make_tasks(study, arguments, console), arguments.only)
    if arguments.slurm:
        console.print(
            slurm_scripts.write(study, arguments.study, tasks, arguments.slurm), markup=False
        )
        return 0
    if arguments.list:
        speed = arguments.tokens_per_s
        if speed is not None and not 0 < speed < math.inf:
            raise InputError(f"--tokens-per-s={speed:g}: give a speed above 0")
        console.print(_table(study, tasks, speed))
        if any(task.is_finished for task in tasks):
            console.print(_describe_remaining(tasks, speed), markup=False)
        return 0
    slots, print_line = split_machine(arguments.jobs), console.print
    return LocalExecutor(study, arguments.study, tasks, slots, print_line).run()


def _make_tasks(study: Study, arguments: argparse.Namespace, console: Console) -> list[StudyTask]:
    """Returns the tasks of a study; first puts packed records in place, unless for --list."""
    if arguments.records is None:
        return make_tasks(study)
    with packed_records.open_records(study, arguments.records) as packed:
        for line in packed.lines:
            console.print(line, markup=False)
        tasks = make_tasks(study, packed.names)
        if arguments.list:
            return tasks
        packed.put_in_place()
    return make_tasks(study)


def _select(study: Study, every: Sequence[StudyTask], pattern: str) -> list[StudyTask]:
    """Returns the tasks whose names match; their trunks must match too or have reached them."""
    by_name = {task.run.name: task for task in every}
    tasks = [task for name, task in by_name.items() if fnmatch.fnmatch(name, pattern)]
    if not tasks:
        raise InputError(f"--only={pattern} matches no run of {study.name}: see --list")
    for task in tasks:
        trunk = by_name.get(task.run.trunk or "")
        missing = trunk and trunk not in tasks and trunk.step < task.start_step
        if trunk and missing and not task.is_finished:
            raise InputError(
                f"--only={pattern} leaves out {trunk.run.name}, the trunk of {task.run.name}, "
                "which has not reached the branch yet: train it first"
            )
    return tasks


def _describe_remaining(tasks: Sequence[StudyTask], tokens_per_s: float | None) -> str:
    """Describes what remains to be trained of partly finished tasks, and its cost."""
    unfinished = [task for task in tasks if not task.is_finished]
    tokens = format_count(round(sum(task.remaining * task.tokens for task in unfinished)))
    total_flops = sum(task.remaining * task.flops for task in unfinished)
    count = f"{len(unfinished)} of {len(tasks)} runs"
    line = f"{count} remain: {tokens} tokens, {total_flops:.2e} FLOPs"
    if tokens_per_s is None:
        return line
    return f"{line}, {total_flops / _flops_per_hour(tasks, tokens_per_s):.4g} hours"


def _flops_per_hour(tasks: Sequence[StudyTask], tokens_per_s: float) -> float:
    """Returns the speed in FLOPs per hour; `tokens_per_s` is the speed of the first run."""
    return 3600 * tokens_per_s * tasks[0].flops / tasks[0].tokens


def _table(study: Study, tasks: Sequence[StudyTask], tokens_per_s: float | None) -> Table:
    """Table of the runs with state, cost and totals; with the first run's speed, hours too."""
    total_flops = sum(task.flops for task in tasks)
    finished = f"{sum(task.is_finished for task in tasks)} finished"
    disk = format_bytes(sum(task.disk_bytes for task in tasks))
    columns = [
        Column("run", footer=f"{len(tasks)} runs"),
        Column("state", footer=finished),
        Column("stops at", right=True),
        Column("tokens", right=True, footer=format_count(sum(task.tokens for task in tasks))),
        Column("FLOPs", ".2e", right=True, footer=f"{total_flops:.2e}"),
        Column("disk", right=True, footer=disk),
    ]
    flops_per_hour = 0.0
    if tokens_per_s is not None:
        flops_per_hour = _flops_per_hour(tasks, tokens_per_s)
        hours = f"{total_flops / flops_per_hour:.4g}"
        columns.append(Column("hours", ".3g", right=True, footer=hours))
    table = Table(f"{study.name}: {study.title}", columns)
    for task in tasks:
        stop = f"{task.config.clock.multiple(task.stop_step):g}x"
        cost = format_count(task.tokens), task.flops, format_bytes(task.disk_bytes)
        hours = [task.flops / flops_per_hour] if flops_per_hour else []
        table.add_row(task.run.name, task.state, stop, *cost, *hours)
    return table
