"""Time of an evaluation of the live weights and five averages, over that of the live weights.

    python -m benchmarks.evaluate --data=runs/data/builtin-1024-128

The model is the quickstart's. Target: six trees take at most 6.2 times as long as one.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anytime_jax import averaging, compilation, config, sharding, step
from anytime_jax.command_line import Parser, answer
from anytime_jax.data.dataset import DatasetInfo, load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.evaluator import Evaluator
from benchmarks import record
from configs import quickstart

TARGET = 6.2  # times


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    given = _parser().parse_args(argv)
    return answer(lambda: _measure(given, record.command("evaluate", argv)), debug=False)


def _measure(given: argparse.Namespace, command: str) -> int:
    compilation.set_up()
    info = load_dataset(given.data)
    settings = _settings(info)
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
    seconds = _time(ways, given.rounds)
    rows = [_row(trees, seconds, info.length * count) for trees in ways]
    record.show(f"One pass over {count:,} windows of {info.length}", rows)
    print(record.save("evaluate", command, rows, given.output))
    return 0


def _settings(info: DatasetInfo) -> config.Config:
    """The quickstart, fit to a dataset."""
    given = quickstart.get_config()
    given.model.length = info.length
    given.model.vocab_size = given.model.embedding_rows = info.vocab_size
    return config.build(given.to_dict())


def _time(ways: dict[int, Callable[[], object]], rounds: int) -> dict[int, list[float]]:
    """Seconds of each way, in turns, so that what else the machine does falls on both."""
    for way in ways.values():
        way()  # compiles
    seconds: dict[int, list[float]] = {trees: [] for trees in ways}
    for _ in range(rounds):
        for trees, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[trees].append(time.perf_counter() - began)
    return seconds


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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.evaluate", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="a prepared dataset")
    add("--windows", type=int, default=256, help="of the validation split (default 256)")
    add("--batch-size", type=int, default=64, help="windows evaluated at once (default 64)")
    add("--rounds", type=int, default=9, help="passes of each kind, in turns (default 9)")
    add("--output", type=Path, default=record.RESULTS, help="directory of the JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
