"""Do moments in bfloat16 change the losses of the 150M model?

    python -m benchmarks.device.moments --model=150m --data=runs/data/builtin-1024
    python -m benchmarks.device.moments --updates=8 --data=DATA     the small model

For each seed, trains with moments in float32 and in bfloat16, and prints the validation losses at
the end and their difference. A run of 400 updates of 65,536 tokens should take about two minutes on
an H100. The training text is repeated if it is too short.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.errors import RunError
from benchmarks import gpu, harness, record

_LIMIT = 1_200.0  # seconds of a run


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.device.moments", __doc__, data=True, model=True)
    add = parser.add_argument
    add("--updates", type=positive_int, default=400, help="default 400")
    add("--seeds", type=positive_int, default=2, help="pairs of runs (default 2)")
    add("--batch", type=positive_int, default=64, help="windows in an update (default 64)")
    add("--microbatches", type=positive_int, default=2, help="default 2")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            losses = [_losses(options, Path(scratch), seed, x) for x in ("float32", "bfloat16")]
            rows += [
                {"seed": seed, "weights": label, "float32": one, "difference": other - one}
                for (label, one), other in zip(losses[0].items(), losses[1].values(), strict=True)
            ]
    return record.Result(f"Losses after {options.updates} updates", rows)


def _losses(
    options: argparse.Namespace, scratch: Path, seed: int, moments: str
) -> dict[str, float]:
    """Trains a run and returns its last validation losses, by label of the weights."""
    run_dir = scratch / f"{moments}_{seed}"
    stop = f"{options.updates} steps"
    settings = {
        "run_dir": run_dir,
        "seed": seed,
        "data.seed": seed,
        "data.repeat": True,
        "batch_size": options.batch,
        "microbatches": options.microbatches,
        "optimizer.moments": moments,
        "averages": "('f25',)",
        "schedule.warmup": f"{options.updates // 4} steps",
        "stop": stop,
        "log.trackers": (),
        "eval.every": stop,
        "eval.tokens": "all",
        "eval.batch_size": 16,
        "checkpoint.every": stop,
    }
    command = harness.train_command(options.model, options.data, settings)
    outcome = gpu.run_part(command, None, _LIMIT)
    if outcome.failure:
        raise RunError(f"seed {seed}, moments in {moments}: {outcome.failure}")
    names = ("eval/last/loss", "eval/f25/loss")
    last = [row.values for row in read_records(run_dir) if names[0] in row.values][-1]
    return {name.split("/")[1]: last[name] for name in names}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
