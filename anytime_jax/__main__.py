"""Command line: `python -m anytime_jax COMMAND`."""

import sys

from anytime_jax import main
from anytime_jax.commands import (
    evaluate,
    export,
    fleet,
    generate,
    layouts,
    prepare,
    readout,
    report,
    runs,
    sweep,
    theory,
)

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    commands = {
        "evaluate": evaluate.main, "export": export.main, "fleet": fleet.main,
        "generate": generate.main, "prepare": prepare.main, "readout": readout.main,
        "report": report.main, "runs": runs.main, "sweep": sweep.main,
        "layouts": layouts.cli, "theory": theory.cli, "train": main.cli,
    }  # fmt: skip
    if name not in commands:
        sys.exit("commands: " + " ".join(commands))
    del sys.argv[1]
    sys.exit(commands[name]())
