"""Runs of a study trained as one program: `train --study=FILE --runs A B C`."""

import argparse
import contextlib
import time
from collections.abc import Sequence

import jax
from rich.console import Console

from anytime_jax.commands.console import open_console
from anytime_jax.config.schema import Config
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_duration
from anytime_jax.study import run_figure, study_files
from anytime_jax.study.tasks import StudyTask, log_file, make_tasks
from anytime_jax.training import startup, trainer
from anytime_jax.training.progress import Display
from anytime_jax.training.trainer import Outcome


def run(arguments: argparse.Namespace) -> int:
    """Trains runs of a study as one program; returns 1 if any of them failed."""
    study = study_files.load_file(arguments.study)
    tasks = {task.run.name: task for task in make_tasks(study)}
    selected = [tasks[study.run(name).name] for name in dict.fromkeys(arguments.runs)]
    _check_fleet(selected)
    configs = [task.config for task in selected]
    jax_settings.configure()
    console = open_console()
    with contextlib.ExitStack() as stack:
        displays = []
        for config in configs:
            startup.check_paths(config)
            log = stack.enter_context(log_file(study, config.name).open("a", encoding="utf-8"))
            displays.append(Display(config.clock, Console(file=log, width=140, highlight=False)))
        mesh = startup.make_mesh(configs[0], jax.devices()[:1])
        dataset = startup.open_dataset(configs[0], mesh, Display(configs[0].clock, console))
        start = time.monotonic()
        with startup.interruptible() as interrupted:
            outcomes = trainer.train_fleet(configs, mesh, dataset, displays, interrupted)
        duration = format_duration(time.monotonic() - start)
        for config, display, outcome in zip(configs, displays, outcomes, strict=True):
            line = _report(config, outcome, duration)
            display.say(line)
            console.print(f"{config.name}: {line}", markup=False)
    return _exit_status(outcomes)


def _check_fleet(tasks: Sequence[StudyTask]) -> None:
    for task in tasks:
        if task.fleet_key is None:
            raise InputError(
                f"{task.run.name} cannot be in a fleet: its batch grows, its averages are in host "
                "memory, or its mesh has several devices: train it alone, with --config"
            )
        if task.fleet_key != tasks[0].fleet_key:
            raise InputError(
                f"{tasks[0].run.name} and {task.run.name} cannot be one fleet: give runs that "
                "differ in seeds, schedule, stop, branch, b1, b2 and epsilon alone"
            )


def _report(config: Config, outcome: Outcome | Exception, duration: str) -> str:
    """Draws the curves of a run and returns a line about its outcome."""
    if isinstance(outcome, Exception):
        return f"error: {outcome}"
    if outcome.reason != "interrupted":
        run_figure.draw(config.run_dir, config.name)
    return f"at {config.clock.describe(outcome.step)}: {outcome.reason}, after {duration}"


def _exit_status(outcomes: Sequence[Outcome | Exception]) -> int:
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if errors:
        return 2 if all(isinstance(error, InputError) for error in errors) else 1
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Outcome)}
    return 130 if "interrupted" in reasons else 0
