"""Compare f25 with the other weights of a run and other averages, without training.

Scores all weights in the checkpoint and 13 values of f, and draws the loss against f. One half of
the validation windows selects; the other, held-out half decides whether the selected weights are
recommended instead of f25.
"""

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_error
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.tables import Table, numbers
from anytime_jax.weights import saved_run
from anytime_lab import schedule_styles
from anytime_lab.readout.readout_search import ReadoutSearch, ScoredReadout, growing_window_grid

EXAMPLES = ("--run=runs/quickstart",)

_POINTS = 13  # values of f
_MIN_GAIN = 0.005  # nats; a smaller gain is no reason to ship other weights than f25
_STANDARD_ERRORS = 3  # a gain that is smaller is noise


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    run_options.add_run(parser)
    run_options.add_data(parser)
    parser.add_argument(
        "--output",
        type=argument_parser.path,
        metavar="DIR",
        help="directory for readout_STEP.png and .pdf (default: the run's)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Searches the read-outs, prints the losses and draws the figure."""
    jax_settings.configure()
    jax_settings.find_devices()
    limits = run_options.sum_limits(arguments)
    saved = saved_run.open_saved_run(arguments.run, arguments.step, arguments.trust)
    grid = growing_window_grid(saved, _POINTS)
    if not grid:
        raise InputError(
            f"{saved.run_dir} has no growing-window average at step {saved.step:,}, so no f to "
            "choose: train with config.averages, or choose another --step"
        )
    console = open_console()
    evaluators = run_options.open_evaluators(saved, arguments, console, parts=2).of_mean
    output = arguments.output or saved.run_dir
    name = f"--output={output}" if arguments.output else f"the run's directory, {output},"
    make_writable_directory(output, name)
    tokens = evaluators.describe(arguments.split, parts=2)
    console.print(f"{saved.title}: selected on {tokens}, measured on as many other tokens")
    search = ReadoutSearch(saved, evaluators, limits)
    stored = [search.score(label) for label in saved.labels]
    windows = search.score_growing_windows(grid)
    best = search.best_growing_window(windows) if len(windows) > 2 else None
    found = [best] if best else []
    reference = default_average(stored, saved.growing_windows)
    console.print(_table([*stored, *found], reference))
    figure = draw(
        windows, stored, best, f"{saved.config.name}, step {saved.step:,}: loss by average"
    )
    for kind in ("png", "pdf"):
        path = figure_style.save(figure, output / f"readout_{saved.step}.{kind}")
        console.print(f"wrote {path}")
    best_stored = min(stored, key=lambda readout: readout.selection_loss)
    selected, verdict = judge(reference, [best_stored, *found])
    console.print(f"{verdict}:")
    output_option = f"--output={shlex.quote(f'{saved.config.name}-readout')}"
    console.print(f"  {_command('evaluate', arguments, saved.step, selected)}")
    console.print(f"  {_command('export', arguments, saved.step, selected)} {output_option}")
    policy = retention_policy(saved.config)
    if not all(policy.keeps_forever(part.step) for part in selected.weighted_sum.parts):
        console.print("note: export first: the run deletes these checkpoints when it goes on")
    return 0


def default_average(
    stored: Sequence[ScoredReadout], growing_windows: Mapping[str, float]
) -> ScoredReadout:
    """Returns f25 or, if it is not stored, the stored growing window whose f is nearest."""
    label = min(growing_windows, key=lambda x: abs(math.log(growing_windows[x] / 25)))
    return next(readout for readout in stored if readout.name == label)


def judge(
    reference: ScoredReadout, candidates: Sequence[ScoredReadout]
) -> tuple[ScoredReadout, str]:
    """Returns the read-out to use, and why: the reference, unless a candidate is better.

    A candidate is better than the read-out before it if its gain on the held-out half is at least
    0.005 nats and three standard errors. The simplest candidate comes first.
    """
    selected = reference
    for candidate in candidates:
        gap, error = candidate.minus(selected)
        if -gap >= _MIN_GAIN and -gap >= _STANDARD_ERRORS * error:
            selected = candidate
    if selected is reference:
        return reference, (
            f"use {reference.full_name}: no selected weights are lower by {_MIN_GAIN} nats and "
            f"{_STANDARD_ERRORS} standard errors on the held-out half"
        )
    gap, error = selected.minus(reference)
    return selected, (
        f"use {selected.full_name}: {-gap:.4f} ± {error:.4f} nats below {reference.name} on the "
        "held-out half"
    )


def _command(name: str, arguments: argparse.Namespace, step: int, readout: ScoredReadout) -> str:
    """Returns a command line with a read-out."""
    program = arguments.program.rpartition(" ")[0]
    words = [f"--run={shlex.quote(str(arguments.run))}", f"--step={step}"]
    words += [f"--weights={shlex.quote(readout.name)}"]
    words += [f"--trust={shlex.quote(package)}" for package in arguments.trust]
    if readout.weighted_sum.kernel_error:
        words += [f"--max-error={arguments.max_error}", f"--checkpoints={arguments.checkpoints}"]
    return " ".join([program, name, *words])


def _table(readouts: Sequence[ScoredReadout], reference: ScoredReadout) -> Table:
    losses = numbers("selected on", "measured on", format=".4f")
    others = numbers(f"minus {reference.name}", "kernel error")
    table = Table("", ["weights", *losses, *others])
    for readout in readouts:
        gap, error = readout.minus(reference)
        table.add_row(
            readout.name,
            readout.selection_loss,
            readout.loss,
            None if readout is reference else f"{gap:+.4f} ± {error:.4f}",
            format_error(readout.weighted_sum.kernel_error) or None,
        )
    return table


def draw(
    windows: Sequence[ScoredReadout],
    stored: Sequence[ScoredReadout],
    best: ScoredReadout | None,
    title: str,
) -> Figure:
    """Draws the loss against f on both halves of the validation windows.

    `windows` are over a grid of f; `best` is the best of them and of the parabola's vertex.
    """
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    axes = figure.add_subplot()
    fs = [_f(x) for x in windows]
    blue = figure_style.BLUE
    axes.plot(fs, [x.loss for x in windows], color=blue, label="average f, on the held-out half")
    label = "average f, on the half that selects"
    axes.plot(fs, [x.selection_loss for x in windows], ":", color="0.6", label=label)
    # An average that began late is not the average of its f.
    averages = [x for x in stored if x.name.startswith("f") and x.full_name == x.name]
    style = {"c": [figure_style.weight_style(x.name)["color"] for x in averages], "zorder": 3}
    points = [_f(x) for x in averages], [x.loss for x in averages]
    axes.scatter(*points, label="averages that the run stored", **style)
    if best:
        style = {"color": figure_style.VERMILION, "markersize": 12}
        label = f"best f = {_f(best):.3g} of the half that selects"
        axes.plot(_f(best), best.loss, "*", label=label, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("f: the average has half of its weight in the last 1/f of the run")
    axes.set_ylabel(figure_style.LOSS)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    schedule_styles.legend_below(figure, axes, columns=2)
    return figure


def _f(readout: ScoredReadout) -> float:
    return float(readout.name.removeprefix("f").removeprefix("="))
