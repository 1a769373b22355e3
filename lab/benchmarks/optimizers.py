"""Time of an update with each optimizer of a study, relative to AdamW.

    python -m lab.benchmarks.optimizers
    python -m lab.benchmarks.optimizers --study=leaderboard --output=optimizers.json

Times the updates of `step.make_program` in turn in one process, on random tokens and without
averages. `leaderboard --times=FILE` reads the record.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Sequence

import jax

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_lab.leaderboard.leaderboard import ADAMW, optimizer_name
from anytime_lab.study import study_files
from benchmarks import harness, record
from lab.benchmarks.train_step import make_update


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.optimizers", __doc__, steps=8, rounds=15)
    help_text = "study, by file, name, directory or archive (default leaderboard)"
    parser.add_argument("--study", default="leaderboard", metavar="PATH", help=help_text)
    return record.run(parser, argv, _measure)


def configurations(path: str) -> dict[str, Config]:
    """Returns the first configuration of each optimizer of a study, without averages, by name."""
    configs: dict[str, Config] = {}
    with study_files.open_study(path) as study:
        for run in study.runs:
            config = run_config.build({**run.settings, "averages": ()}, trust=NOBODY)
            configs.setdefault(optimizer_name(config.optimizer), config)
    if ADAMW not in configs:
        raise InputError(f"--study={path} has no run with {ADAMW}, to which times are relative")
    return configs


def _measure(options: argparse.Namespace) -> record.Result:
    configs = configurations(options.study)
    updates = {
        name: make_update(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))
        for name, config in configs.items()
    }
    timers = {
        name: functools.partial(harness.seconds_per_call, update.function, options.steps)
        for name, update in updates.items()
    }
    seconds = harness.interleave(timers, options.rounds)
    rows = []
    for name, update in updates.items():
        # Ratios are taken within a round, so that drift of the machine's speed cancels.
        ratios = [mine / adamw for mine, adamw in zip(seconds[name], seconds[ADAMW], strict=True)]
        row = {"optimizer": name, **harness.milliseconds(seconds[name])}
        rows.append({**row, "times_adamw": statistics.median(ratios), **update.columns()})
    return record.Result("One update", rows, {"seconds": seconds})


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
