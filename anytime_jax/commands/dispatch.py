"""Commands by name: lists them, and imports and runs the requested one.

This module imports little, so that a wrong name is reported at once.
"""

import contextlib
import faulthandler
import gc
import importlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from anytime_jax import __version__, plugins
from anytime_jax.commands import exit_status, interrupts, standard_streams
from anytime_jax.commands.argument_parser import parse
from anytime_jax.errors import InputError

_NAME_WIDTH = 16
_LABORATORY = (
    "; the laboratory has more: `pip install anytime_lab`, in a clone of the repository "
    "`pip install -e lab`"
)


def main(program: str) -> int:
    """Runs the command named by the first argument of this process; returns the exit status.

    `program` is the text before that argument, such as `anytime`.
    """
    return exit_status.run(lambda: _main(program))


def _main(program: str) -> int:
    name, *argv = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        commands = plugins.commands().items()
        lines = (f"  {name:{_NAME_WIDTH}} {command.summary}" for name, command in commands)
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
    standard_streams.leave_out_raised_errors()
    os.environ["MPLBACKEND"] = "agg"  # figures are drawn into files
    return exit_status.run(lambda: _run(name, program, argv), "--debug" in argv)


def _run(name: str, program: str, argv: Sequence[str]) -> int:
    command = _find(name)
    try:
        with _uninterrupted_imports():
            module = importlib.import_module(command.module)
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
        return module.run(parse(module, program, argv))
    finally:
        interrupts.on_interrupt(interrupts.end_interrupted)


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
    """Imports the module of one command only; raises an InputError if there is none."""
    return importlib.import_module(_find(name).module)


def _find(name: str) -> plugins.Command:
    commands = plugins.commands()
    if name not in commands:
        more = "" if "anytime_lab" in plugins.installed() else _LABORATORY
        raise InputError(f"{name!r} is not a command: there are {', '.join(commands)}{more}")
    return commands[name]


def display_path(path: str, name: str) -> str:
    """Returns what runs a program in a shell: its name, or its path below the working directory.

    The path, quoted for a shell, is used where the shell does not find the program by its name.
    """
    if shutil.which(name) == os.path.abspath(path):
        return name
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working directory was removed
        relative = ".."
    return name if relative.startswith("..") else shlex.quote(relative)
