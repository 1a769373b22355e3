"""Find the best read-out of a run without training.

Evaluates the run at many f and draws the loss against f; finds the best f, and the best sum of all
trees of weights in the last checkpoints. Half of the validation windows choose; the gain is
measured on the other half.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from anytime_jax import plotting
from anytime_jax.atomic import make_writable_directory
from anytime_jax.commands import run_options
from anytime_jax.commands.console import open_console
from anytime_jax.distributed import runtime
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.weights import saved_run
from anytime_jax.weights.readout_search import ReadoutSearch, ScoredReadout, window_grid

EXAMPLES = ("--run=runs/quickstart",)

_POINTS = 13  # windows on the grid


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_data(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where readout_STEP.png and .pdf go (default: the run's directory)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    runtime.configure()
    allowed = run_options.mixture_limits(arguments)
    saved = saved_run.open_run(arguments.run, arguments.step)
    grid = window_grid(saved, _POINTS)
    if not grid:
        raise InputError(
            f"{saved.run_dir} keeps no average of a growing window at step {saved.step:,}: there "
            "is no f to choose; train with config.averages, or choose another step"
        )
    scorer, count = run_options.open_scorer(saved, arguments)
    if count < 2:
        raise InputError(f"--tokens={arguments.tokens}: give two windows at least, one to choose")
    out = arguments.output or saved.run_dir
    try:
        make_writable_directory(out)
    except OSError as error:
        raise InputError(f"--output={out} cannot be written ({error.strerror})") from error
    search = ReadoutSearch(saved, scorer, count // 2, allowed)
    console = open_console()
    console.print(
        f"{saved.run_dir} at step {saved.step:,} ({format_count(saved.tokens)} tokens): chosen on "
        f"{format_count(count // 2 * scorer.length)} tokens of {arguments.split}, checked on as "
        "many others",
        markup=False,
    )
    kept = [search.score(label) for label in saved.weights]
    windows = search.score_windows(grid)
    best = [search.best_window(windows)] if len(windows) > 2 else []
    with console.status("mixing") as status:
        held = len({x.step for x in saved.history})
        mixes = [
            search.best_mixture(number, status.update)
            for number in sorted({1, min(allowed.checkpoints, held)})
        ]
    best += mixes
    console.print(_table([*kept, *best]))
    chosen = min(mixes, key=lambda reading: reading.selection_loss)
    console.print(f"{_title(chosen)}: --weights='{chosen.name}'", markup=False)
    figure = draw(windows, kept, best, f"{saved.config.name}, step {saved.step:,}")
    for kind in ("png", "pdf"):
        path = plotting.save(figure, out / f"readout_{saved.step}.{kind}")
        console.print(f"wrote {path}", markup=False)
    return 0


def _table(readings: Sequence[ScoredReadout]) -> Table:
    """Losses on both halves, and differences to the best average that is kept."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("weights")
    kept = [x for x in readings if len(x.mixture.parts) == 1]
    stored = min(kept, key=lambda x: x.selection_loss)
    for name in ("chosen on", "checked on", f"minus {stored.name}", "kernel error"):
        table.add_column(name, justify="right", no_wrap=True)
    for reading in readings:
        gap, error = reading.minus(stored)
        table.add_row(
            _title(reading),
            f"{reading.selection_loss:.4f}",
            f"{reading.loss:.4f}",
            "" if reading is stored else f"{gap:+.4f} ± {error:.4f}",
            f"{reading.mixture.kernel_error:.2%}" if reading.mixture.kernel_error else "",
        )
    return table


def _title(reading: ScoredReadout) -> str:
    """What a reading is called in a table: a mix by the number of trees in it."""
    if not reading.name.startswith("mix:"):
        return reading.name
    return f"best mix of {len(reading.mixture.parts)}"


def draw(
    windows: Sequence[ScoredReadout],
    kept: Sequence[ScoredReadout],
    best: Sequence[ScoredReadout],
    title: str,
) -> Figure:
    """Draws the loss against f, on both halves of the windows.

    Args:
      windows: readings at the f of a grid.
      kept: readings of what the checkpoint keeps.
      best: the best window, if there is one, and mixes.
      title: of the figure.
    """
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    fs = [_f(x) for x in windows]
    axes.plot(fs, [x.loss for x in windows], "-", color=plotting.BLUE, label="checked on")
    axes.plot(fs, [x.selection_loss for x in windows], ":", color="#999999", label="chosen on")
    stored = [x for x in kept if x.name.startswith("f")]
    axes.plot(
        [_f(x) for x in stored], [x.loss for x in stored], "o", color=plotting.BLUE, label="kept"
    )
    for reading in best:
        if reading.name.startswith("f="):
            label = f"best f = {_f(reading):.3g}"
            axes.plot(
                _f(reading), reading.loss, "*", color=plotting.VERMILION, markersize=12, label=label
            )
        else:
            colour = plotting.GREEN if reading is best[-1] else plotting.PURPLE
            axes.axhline(reading.loss, color=colour, linestyle="--", label=_title(reading))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("f (the half-life is 1/f of the run)")
    axes.set_ylabel("validation loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _f(reading: ScoredReadout) -> float:
    return float(reading.name.removeprefix("f").removeprefix("="))
