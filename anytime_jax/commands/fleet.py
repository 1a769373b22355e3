"""Runs of a study trained as one program: `train --study=FILE --runs A B C`."""

import argparse
import contextlib
import time
from collections.abc import Sequence

import jax
from rich.console import Console

from anytime_jax.commands.console import open_console
from anytime_jax.config.schema import Config
from anytime_jax.distributed import runtime
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_duration
from anytime_jax.study import run_figure, study_files
from anytime_jax.study.tasks import StudyTask, log_file, make_tasks
from anytime_jax.training import startup, trainer
from anytime_jax.training.progress import Display
from anytime_jax.training.trainer import Outcome


def run(arguments: argparse.Namespace) -> int:
    """Trains runs of a study as one program.

    Returns:
      0 when every run is at its stop, 1 when one failed, 2 for bad input, 130 when interrupted.
    """
    study = study_files.load_file(arguments.study)
    every = {job.run.name: job for job in make_tasks(study)}
    jobs = [every[study.run(name).name] for name in dict.fromkeys(arguments.runs)]
    _check_fleet(jobs)
    configs = [job.config for job in jobs]
    runtime.configure()
    console = open_console()
    with contextlib.ExitStack() as stack:
        displays = []
        for settings in configs:
            startup.check_paths(settings)
            log = stack.enter_context(log_file(study, settings.name).open("a", encoding="utf-8"))
            logged = Console(file=log, width=140, highlight=False)
            displays.append(Display(settings.clock, logged))
        mesh = startup.make_mesh(configs[0], jax.devices()[:1])
        said = Display(configs[0].clock, console)
        dataset = startup.open_dataset(configs[0], mesh, said)
        began = time.monotonic()
        with startup.interruptible() as interrupted:
            ended = trainer.train_fleet(configs, mesh, dataset, displays, interrupted)
        spent = format_duration(time.monotonic() - began)
        for settings, display, how in zip(configs, displays, ended, strict=True):
            line = _tell(settings, how, spent)
            display.say(line)
            console.print(f"{settings.name}: {line}", markup=False)
    return _status(ended)


def _check_fleet(jobs: Sequence[StudyTask]) -> None:
    """Checks that the runs can be one program."""
    for job in jobs:
        if job.fleet_key is None:
            raise InputError(
                f"{job.run.name} cannot share a program: its batch grows, its averages are in host "
                "memory, or its mesh has several devices; train it alone, with --config"
            )
        if job.fleet_key != jobs[0].fleet_key:
            raise InputError(
                f"{jobs[0].run.name} and {job.run.name} cannot be one fleet: give runs that "
                "differ in seeds, schedule, stop, branch, b1, b2 and epsilon alone"
            )


def _tell(settings: Config, how: Outcome | Exception, spent: str) -> str:
    """Returns a line that says how a run ended; draws its figure."""
    if isinstance(how, Exception):
        return f"error: {how}"
    if how.reason != "interrupted":
        run_figure.draw(settings.run_dir, settings.name)
    return f"at {settings.clock.describe(how.step)}: {how.reason}, after {spent}"


def _status(ended: Sequence[Outcome | Exception]) -> int:
    broken = [how for how in ended if isinstance(how, Exception)]
    if broken:
        return 2 if all(isinstance(how, InputError) for how in broken) else 1
    outcomes = [how for how in ended if isinstance(how, Outcome)]
    return 130 if any(how.reason == "interrupted" for how in outcomes) else 0
