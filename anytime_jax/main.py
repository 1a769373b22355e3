"""Training: `python -m anytime_jax.main --config=FILE`, the command `train` by its own name."""

import sys

from anytime_jax.commands import standard_streams

if __name__ == "__main__":
    standard_streams.on_interrupt(standard_streams.end_interrupted)  # before imports that take time

from anytime_jax.commands import dispatch

if __name__ == "__main__":
    python = dispatch.display_path(sys.executable, "python")
    program = f"{python} -m anytime_jax.main"
    standard_streams.exit_process(dispatch.run_command("train", program, sys.argv[1:]))
