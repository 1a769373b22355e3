"""List or train the runs of a study.

--run trains the unfinished runs on this machine, each branch after its trunk, and resumes those
that were interrupted. Each run is a process with a log in STUDY/logs; Ctrl-C or SIGTERM lets every
run save. Several of these commands may work on one study, on machines that share its directory.
--slurm=DIR writes job arrays instead.

A study file is Python code and is executed: use those you trust.
"""

import argparse
import fnmatch
import math
from collections.abc import Sequence
from types import SimpleNamespace

from rich import box
from rich.table import Table

from anytime_jax.commands.command_line import positive_int
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models import flops
from anytime_jax.study import slurm, study_files
from anytime_jax.study.local_executor import LocalExecutor, split_machine
from anytime_jax.study.plan import Study
from anytime_jax.study.tasks import StudyTask, make_tasks

_MFU = 0.38  # of the authors' 150M runs on one H100


EXAMPLES = (
    "--study=configs/studies/laptop.py --list",
    "--study=configs/studies/laptop.py --run --jobs=2",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("--study", required=True, metavar="FILE", help="a file of configs/studies/")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="print the runs and their cost")
    action.add_argument("--run", action="store_true", help="train the unfinished runs here")
    action.add_argument("--slurm", metavar="DIR", help="write job arrays of the unfinished runs")
    add("--only", default="*", metavar="PATTERN", help="names of runs, such as 'cosine-*'")
    add("--jobs", type=positive_int, default=1, metavar="N", help="processes at once")
    add("--fleet", type=positive_int, default=1, metavar="N", help="runs of one shape per process")
    add("--device", default="H100", help="for the hours of --list")
    add("--mfu", type=float, default=_MFU, help="its model FLOPs utilisation")
    add(
        "--tokens-per-s",
        type=float,
        metavar="X",
        help="measured speed, instead of --device and --mfu",
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists or trains the runs; returns the exit status."""
    console = open_console(width=140)
    study = study_files.load_file(arguments.study)
    tasks = _select(study, arguments.only)
    if arguments.slurm:
        console.print(slurm.write(study, arguments.study, tasks, arguments.slurm), markup=False)
        return 0
    if arguments.run:
        slots = split_machine(arguments.jobs)

        def print_line(text: str) -> None:
            console.print(text, markup=False)

        return LocalExecutor(
            study, arguments.study, tasks, slots, arguments.fleet, print_line
        ).run()
    console.print(_table(study, tasks, arguments))
    return 0


def _select(study: Study, pattern: str) -> list[StudyTask]:
    """The tasks whose names match; their trunks must match too, or have reached them."""
    by_name = {task.run.name: task for task in make_tasks(study)}
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


def _table(study: Study, tasks: Sequence[StudyTask], arguments: argparse.Namespace) -> Table:
    """The runs with state and cost, and the totals."""
    speed, description = _speed(arguments, tasks[0])
    title = f"{study.name}: {study.title} Hours at {description}, training only."
    table = Table(title=title, box=box.SIMPLE, title_justify="left", show_footer=True)
    tokens, total_flops, disk = (
        sum(getattr(task, name) for task in tasks) for name in ("tokens", "flops", "disk_bytes")
    )
    table.add_column("run", f"{len(tasks)} runs", no_wrap=True)
    table.add_column("state", f"{sum(x.is_finished for x in tasks)} finished", no_wrap=True)
    for name, footer in (
        ("stops at", ""),
        ("tokens", format_count(tokens)),
        ("FLOPs", f"{total_flops:.2e}"),
        ("disk", format_bytes(disk)),
        ("hours", f"{total_flops / speed / 3600:.4g}"),
    ):
        table.add_column(name, footer, justify="right", no_wrap=True)
    for task in tasks:
        table.add_row(
            task.run.name,
            _state(task),
            f"{task.config.clock.multiple(task.stop_step):g}x",
            format_count(task.tokens),
            f"{task.flops:.2e}",
            format_bytes(task.disk_bytes),
            f"{task.flops / speed / 3600:.3g}",
        )
    return table


def _speed(arguments: argparse.Namespace, task: StudyTask) -> tuple[float, str]:
    """FLOP/s for the hours of `--list`, and where they come from."""
    tokens_per_s, mfu = arguments.tokens_per_s, arguments.mfu
    if tokens_per_s is not None:
        if not 0 < tokens_per_s < math.inf:
            raise InputError(f"--tokens-per-s={tokens_per_s:g}: give a speed above 0")
        return tokens_per_s * task.flops / task.tokens, f"{tokens_per_s:,.0f} tokens/s"
    peak = flops.peak_flops(SimpleNamespace(device_kind=arguments.device))
    if peak is None:
        known = ", ".join(flops.PEAK_FLOPS)
        raise InputError(
            f"--device={arguments.device}: its peak is unknown; give one of {known}, or a "
            "measured --tokens-per-s"
        )
    if not 0 < mfu <= 1:
        raise InputError(f"--mfu={mfu:g}: give a fraction above 0, at most 1")
    return peak * mfu, f"{mfu:.0%} of the peak of one {arguments.device}"


def _state(task: StudyTask) -> str:
    if task.is_finished:
        return "finished"
    if task.step > task.start_step:
        return f"at {task.config.clock.multiple(task.step):.3g}x"
    return "missing"
