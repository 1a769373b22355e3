"""The command `python -m anytime_jax.lab.package_text`."""

import sys

from anytime_jax.commands import command_line, standard_streams
from anytime_jax.lab.package_text import package_text_command


def _run() -> int:
    program = "python -m anytime_jax.lab.package_text"
    arguments = command_line.parse(package_text_command, program, sys.argv[1:])
    return package_text_command.run(arguments)


if __name__ == "__main__":
    standard_streams.configure()
    status = command_line.exit_status(_run, "--debug" in sys.argv)
    standard_streams.exit_process(status)
