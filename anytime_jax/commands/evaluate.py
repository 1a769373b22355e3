"""Loss and perplexity of any weights of a run on any data: `python -m anytime_jax evaluate --help`.

    python -m anytime_jax evaluate --run=runs/NAME --weights last f25 f=35

By default on the validation split of the run's own data, the windows of its own evaluations.
Differences are to the first weights named, window by window, with their standard error. Exit
status: 0 fine, 1 broken, 2 bad input.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from anytime_jax.commands import command_line, run_options
from anytime_jax.distributed import runtime
from anytime_jax.formatting import format_count
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.scoring import mean_and_standard_error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return command_line.run(_parser(), _evaluate, argv)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.make_parser("evaluate", "Loss and perplexity of any weights of a run.")
    run_options.add_options(parser, many=True)
    run_options.add_data_options(parser)
    return parser


def _evaluate(arguments: argparse.Namespace) -> int:
    runtime.configure()
    allowed = run_options.limits(arguments)
    saved = saved_run.open_run(arguments.run, arguments.step)
    names = arguments.weights or list(saved.weights)
    mixes = {name: weight_names.resolve(saved, name, allowed) for name in names}
    scorer, count = run_options.open_scorer(saved, arguments)
    console = command_line.open_console()
    console.print(
        f"{saved.run_dir} at step {saved.step:,} ({format_count(saved.tokens)} tokens), on "
        f"{format_count(count * scorer.length)} tokens of {arguments.split}",
        markup=False,
    )
    # Row by row as they are found: each may take minutes.
    titles = ("loss", "perplexity", f"minus {names[0]}", "kernel error")
    width = max(map(len, ("weights", *names)))
    cells = f"{{:{width}}} {{:>8}} {{:>11}} {{:>{max(18, len(titles[2]) + 1)}}} {{:>13}}".format
    console.print(cells("weights", *titles), markup=False)
    first = None
    for name, mix in mixes.items():
        losses = scorer.losses(scorer.put(saved_run.load_weights(saved, mix)), 0, count)
        first = losses if first is None else first
        mean, (gap, error) = float(losses.mean()), mean_and_standard_error(losses - first)
        difference = "" if first is losses else f"{gap:+.4f} ± {error:.4f}"
        kernel = f"{mix.kernel_error:.2%}" if mix.kernel_error else ""
        row = cells(name, f"{mean:.4f}", f"{math.exp(mean):.3f}", difference, kernel)
        console.print(row.rstrip(), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
