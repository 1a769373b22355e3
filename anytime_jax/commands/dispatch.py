"""Commands by name: lists them, and imports and runs the requested one.

This module imports little, so that a wrong name is reported at once.
"""

import contextlib
import difflib
import faulthandler
import gc
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NoReturn

from anytime_jax import __version__
from anytime_jax.commands import interrupts, standard_streams
from anytime_jax.commands.command_line import exit_status, parse
from anytime_jax.errors import InputError

# The first docstring line of each module, repeated so that listing them imports none.
COMMANDS = {
    "train": "Train a model, or resume its training.",
    "prepare": "Turn text into a dataset of tokens.",
    "evaluate": "Loss and perplexity of any weights of a run, or their scores in tasks.",
    "readout": "Find the best read-out of a run without training.",
    "generate": "Generate text with any weights of a run.",
    "export": "Export weights of a run for other software.",
    "runs": "List runs and their checkpoints, and verify them.",
    "sweep": "List or train the runs of a study.",
    "watch": "Watch a run in the terminal: its state, loss curves and last evaluations.",
    "report": "Draw the figures and tables of a study, or the curves of one run or several.",
    "leaderboard": "Compare optimizers, schedules and read-outs of a study with the tuned cosine.",
    "forecast": "Forecast the losses of a run: live, averaged, decayed, and what each further 0.01 "
    "nats cost.",
    "plan": "Print the settings that a larger model takes from a small run, and why.",
    "compile": "Compile the update of a run for accelerators that are not there.",
    "theory": "Compute exact risks of SGD on power-law linear regression.",
}
# Modules in `lab` of the laboratory's commands; all other commands are modules of this package.
_LABORATORY = {
    "sweep": "study.sweep_command",
    "watch": "monitor.watch_command",
    "report": "report",
    "leaderboard": "leaderboard.leaderboard_command",
    "forecast": "forecast.forecast_command",
    "plan": "width.plan_command",
    "compile": "compilation.compile_command",
    "theory": "theory.theory_command",
}


def main(program: str) -> int:
    """Runs the command named by the first argument of this process; returns the exit status.

    `program` is the text before that argument, such as `python -m anytime_jax`.
    """
    return exit_status(lambda: _main(program))


def _main(program: str) -> int:
    name, *argv = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        lines = (f"  {name:10} {summary}" for name, summary in COMMANDS.items())
        print(f"usage: {program} COMMAND ...\n", *lines, "", sep="\n")
        print(f"`{program} COMMAND --help` lists the options of one, with an example.")
        return 0 if name else 2
    if name == "--version":
        print(f"anytime_jax {__version__}")
        return 0
    return run_command(name, f"{program} {name}", argv)


def run_command(name: str, program: str, argv: Sequence[str]) -> int:
    """Runs a command as the sole work of this process and returns the exit status.

    `program` is the text before the arguments, as `--help` and messages show it.
    """
    standard_streams.configure()
    os.environ["MPLBACKEND"] = "agg"  # figures are drawn into files
    return exit_status(lambda: _run(name, program, argv), "--debug" in argv)


def _run(name: str, program: str, argv: Sequence[str]) -> int:
    if name not in COMMANDS:
        _refuse(name)
    try:
        with _uninterrupted_imports():
            command = import_command(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{sys.executable} has no package {error.name}: use the Python in whose environment "
            "anytime_jax is installed (after `make quickstart`, .venv/bin/python)"
        ) from error
    except ValueError as error:  # a library reads a variable of the environment
        raise InputError(
            f"a library cannot be imported ({error}): correct the variable of the environment that "
            "it names"
        ) from error
    faulthandler.enable()
    # This handler raises KeyboardInterrupt.
    interrupts.on_interrupt(signal.default_int_handler)
    try:
        return command.run(parse(command, program, argv))
    finally:
        interrupts.on_interrupt(interrupts.end_interrupted)


def _refuse(name: str) -> NoReturn:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
    raise InputError(f"{name!r} is not a command: {hint}")


@contextlib.contextmanager
def _uninterrupted_imports() -> Iterator[None]:
    """Makes Ctrl-C end the process at once during the imports, which take seconds."""
    interrupts.on_interrupt(interrupts.end_interrupted)
    gc.disable()  # imported objects are permanent; scanning them for garbage takes 0.3 s of a start
    try:
        yield
    finally:
        gc.freeze()  # later collections skip the imported objects too
        gc.enable()


def import_command(name: str) -> ModuleType:
    """Imports the module of one command only."""
    return importlib.import_module(module_name(name))


def module_name(name: str) -> str:
    """Returns the name of the module of a command."""
    if name in _LABORATORY:
        return f"anytime_jax.lab.{_LABORATORY[name]}"
    return f"anytime_jax.commands.{name}"


def display_path(path: str, name: str) -> str:
    """Returns the relative path of a program below the working directory, or else its name.

    It is quoted for a shell.
    """
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working directory was removed
        relative = ".."
    return name if relative.startswith("..") else shlex.quote(relative)
