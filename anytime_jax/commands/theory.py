"""Compute exact risks of SGD on power-law linear regression.

With --config: the synthetic figures of the paper. Otherwise one of the commands below; each has a
--help of its own.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from anytime_jax.commands import config_file, theory_commands
from anytime_jax.commands.console import open_console
from anytime_jax.config.fields import read
from anytime_jax.distributed import runtime
from anytime_jax.errors import InputError
from anytime_jax.theory import comparison_report, synthetic_figures

EXAMPLES = (
    "--config=configs/theory_figure.py",
    "compare --a=1.5 --b=3 --noise=0.1",
    "advise --a=1.5 --b=3 --noise=0.1",
    "bound --a=1.5 --b=3 --noise=0.1",
    "rates",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command, and its own commands."""
    config_file.add_option(parser)
    theory_commands.add_commands(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    console = open_console(width=200)
    runtime.configure()
    try:
        if arguments.work is None:
            return _figure(arguments, console)
        if arguments.config:
            raise InputError("--config is for the figures: leave it out, or the command")
        return arguments.work(arguments, console, _progress)
    except ValueError as error:
        raise InputError(str(error)) from error


def _figure(arguments: argparse.Namespace, console: Console) -> int:
    """Computes and draws the figures of a configuration file."""
    config = read(synthetic_figures.FigureConfig, config_file.load(arguments))
    began = time.monotonic()
    with _progress(console, f"{len(config.problems)} panels") as report:
        files, told = synthetic_figures.make(config, report)
    console.print(comparison_report.selected(config, told))
    console.print(f"done in {time.monotonic() - began:.0f} s:")
    for file in files:
        console.print(f"  {file}")
    return 0


@contextmanager
def _progress(console: Console, what: str) -> Iterator[Callable[[float], None]]:
    """Shows how far a computation is; on a terminal only."""
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
