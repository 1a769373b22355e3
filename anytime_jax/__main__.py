"""Command line: `python -m anytime_jax COMMAND`, or `anytime COMMAND`."""

import os
import sys

from anytime_jax.commands import dispatch


def main() -> int:
    """Runs the console script `anytime`."""
    sys.path.append(os.getcwd())  # configurations import each other, as under `python -m`
    return dispatch.main(dispatch.executable(sys.argv[0], "anytime"))


if __name__ == "__main__":
    python = dispatch.executable(sys.executable, "python")
    sys.exit(dispatch.main(f"{python} -m anytime_jax"))
