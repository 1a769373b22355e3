"""Time of an evaluation of the live weights and five averages, over that of the live weights.

    python -m benchmarks.evaluate --data=runs/data/builtin-1024-128

The model is the quickstart's if no other is given, with the dataset's vocabulary. Target: six trees
take at most 6.2 times as long as one.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anytime_jax import averaging
from anytime_jax.commands.command_line import exit_status
from anytime_jax.data.dataset import load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.distributed.runtime import configure
from anytime_jax.training import step
from anytime_jax.training.evaluator import Evaluator
from benchmarks import measure, record

TARGET = 6.2  # times


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("evaluate", __doc__, rounds=9)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="a prepared dataset")
    add("--model", default="quickstart", help=measure.MODEL_HELP)
    add("--windows", type=int, default=256, help="of the validation split (default 256)")
    add("--batch-size", type=int, default=64, help="windows evaluated at once (default 64)")
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    info = load_dataset(given.data)
    settings = measure.load_config(given.model, model=measure.fit(info))
    mesh = sharding.make_mesh(settings.mesh)
    program = step.make_program(settings, mesh)
    windows = Windows(info, "validation", length=info.length, seed=0, repeat=True, shuffle=False)
    count, size = given.windows, given.batch_size
    evaluator = Evaluator(program.eval_step, windows, info.length, count, size, mesh)
    state = program.init()
    trees = 1 + len(averaging.averages(state.opt_state))
    ways: dict[int, Callable[[], object]] = {
        1: lambda: evaluator.losses({averaging.LIVE: state.params}),
        trees: lambda: evaluator(state),
    }
    blocks = {trees: functools.partial(measure.repeat, way) for trees, way in ways.items()}
    seconds = measure.in_turn(blocks, given.rounds)
    rows = [_row(trees, seconds, info.length * count) for trees in ways]
    title = f"One pass over {count:,} windows of {info.length}"
    record.leave("evaluate", argv, title, rows, given.output, {"seconds": seconds})
    return 0


def _row(trees: int, seconds: dict[int, list[float]], tokens: int) -> record.Row:
    """The ratio is of neighbours in time, the median over the rounds."""
    ratio = statistics.median(a / b for a, b in zip(seconds[trees], seconds[1], strict=True))
    return {
        "trees": trees,
        "seconds": record.middle(seconds[trees]),
        "fastest": record.rounded(min(seconds[trees])),
        "tokens_per_s": record.rounded(tokens * trees / statistics.median(seconds[trees])),
        "times_one_tree": record.rounded(ratio),
        "times_by_fastest": record.rounded(min(seconds[trees]) / min(seconds[1])),
        "target": TARGET if trees > 1 else 1.0,
        "met": "yes" if trees == 1 or ratio <= TARGET else "no",
    }


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
