"""Commands that are run as modules: `python -m anytime_jax.lab.NAME`."""

import sys
from types import ModuleType
from typing import NoReturn

from anytime_jax.commands import command_line, standard_streams


def run_and_exit(command: ModuleType, name: str) -> NoReturn:
    """Runs a command with the arguments of this process, and ends it.

    `command` has `add_options`, `run` and `EXAMPLES`, as those of `python -m anytime_jax`; `name`
    is the module's in `anytime_jax.lab`.
    """
    standard_streams.configure()
    program, argv = f"python -m anytime_jax.lab.{name}", sys.argv[1:]

    def work() -> int:
        return command.run(command_line.parse(command, program, argv))

    standard_streams.exit_process(command_line.exit_status(work, "--debug" in argv))
