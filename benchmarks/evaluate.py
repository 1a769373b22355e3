"""Evaluation of the live weights and five averages, relative to the live weights alone.

    python -m benchmarks.evaluate --data=runs/data/builtin-1024

Target: six trees take at most 6.2 times as long as one.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from anytime_jax import averaging
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.training import step
from anytime_jax.training.evaluator import Evaluator, weight_trees
from benchmarks import harness, record

TARGET = 6.2  # times the seconds of one tree


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.evaluate", __doc__, rounds=9, data=True, model=True)
    add = parser.add_argument
    add("--windows", type=positive_int, default=256, help="of the validation split (default 256)")
    add("--batch-size", type=positive_int, default=64, help="windows in a batch (default 64)")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    info = load_dataset(options.data)
    config = harness.load_config(options.model, model=harness.dataset_settings(info))
    mesh, length = sharding.make_mesh(config.mesh), config.model.length
    program = step.make_program(config, mesh)
    windows = Windows.from_dataset(
        info, "validation", length=length, seed=0, repeat=True, shuffle=False
    )
    count, size = options.windows, options.batch_size
    evaluator = Evaluator(program, info, windows, count, size)
    state = program.init()
    evaluations: dict[int, Callable[[], object]] = {
        1: lambda: evaluator.position_losses({averaging.LIVE: state.params}),
        1 + len(averaging.averages(state.opt_state)): lambda: evaluator.position_losses(
            weight_trees(state)
        ),
    }
    timers = {
        trees: functools.partial(harness.seconds_per_call, evaluate)
        for trees, evaluate in evaluations.items()
    }
    seconds = harness.interleave(timers, options.rounds)
    rows = [make_row(trees, seconds, length * count) for trees in evaluations]
    title = f"One pass over {count:,} windows of {length}"
    return record.Result(title, rows, {"seconds": seconds})


def make_row(trees: int, seconds: Mapping[int, Sequence[float]], tokens: int) -> record.Row:
    """Returns a row; its ratio is the median of the ratios within each round."""
    times, single = seconds[trees], seconds[1]
    ratio = statistics.median(a / b for a, b in zip(times, single, strict=True))
    return {
        "trees": trees,
        "seconds": statistics.median(times),
        "fastest": min(times),
        "tokens_per_s": tokens * trees / statistics.median(times),
        "times_one_tree": ratio,
        "times_by_fastest": min(times) / min(single),
        "target": TARGET if trees > 1 else 1.0,
        "met": "yes" if trees == 1 or ratio <= TARGET else "no",
    }


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
