"""Command line: `anytime COMMAND`."""

from anytime_jax.commands import interrupts

interrupts.on_interrupt(interrupts.end_interrupted)  # before imports that take time

import contextlib  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from anytime_jax.commands import dispatch, standard_streams  # noqa: E402


def main() -> NoReturn:
    """Runs the console script `anytime`."""
    with contextlib.suppress(OSError):  # the working directory was removed
        sys.path.append(os.getcwd())  # configurations import each other, as under `python -m`
    standard_streams.exit_process(dispatch.main(dispatch.display_path(sys.argv[0], "anytime")))


if __name__ == "__main__":
    python = dispatch.display_path(sys.executable, "python")
    standard_streams.exit_process(dispatch.main(f"{python} -m anytime_jax"))
