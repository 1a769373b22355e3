"""Command line: `python -m anytime_jax COMMAND`, or `anytime COMMAND`."""

import contextlib
import os
import sys
from typing import NoReturn

from anytime_jax.commands import standard_streams

standard_streams.on_interrupt(standard_streams.end_interrupted)  # before imports that take time

from anytime_jax.commands import dispatch  # noqa: E402


def main() -> NoReturn:
    """Runs the console script `anytime`."""
    with contextlib.suppress(OSError):  # the working directory was removed
        sys.path.append(os.getcwd())  # configurations import each other, as under `python -m`
    standard_streams.exit_process(dispatch.main(dispatch.display_path(sys.argv[0], "anytime")))


if __name__ == "__main__":
    python = dispatch.display_path(sys.executable, "python")
    standard_streams.exit_process(dispatch.main(f"{python} -m anytime_jax"))
