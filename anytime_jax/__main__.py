"""Command line: `python -m anytime_jax COMMAND`, or `anytime COMMAND`."""

import os
import sys

from anytime_jax.commands import command_line


def main() -> int:
    """Runs the console script `anytime`."""
    sys.path.append(os.getcwd())  # configurations import each other, as under `python -m`
    return command_line.main(command_line.executable(sys.argv[0], "anytime"))


if __name__ == "__main__":
    python = command_line.executable(sys.executable, "python")
    sys.exit(command_line.main(f"{python} -m anytime_jax"))
