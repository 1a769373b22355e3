"""Training: `python -m anytime_jax.main --config=FILE`, the command `train` by its own name."""

import sys

from anytime_jax.commands import command_line

if __name__ == "__main__":
    python = command_line.executable(sys.executable, "python")
    sys.exit(command_line.start("train", f"{python} -m anytime_jax.main", sys.argv[1:]))
