"""Training: `python -m anytime_jax.main --config=FILE`, the command `train` by its own name."""

from anytime_jax.commands import interrupts

if __name__ == "__main__":
    interrupts.on_interrupt(interrupts.end_interrupted)  # before imports that take time

import sys

from anytime_jax.commands import dispatch, standard_streams

if __name__ == "__main__":
    python = dispatch.display_path(sys.executable, "python")
    program = f"{python} -m anytime_jax.main"
    standard_streams.exit_process(dispatch.run_command("train", program, sys.argv[1:]))
