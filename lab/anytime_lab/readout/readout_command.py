"""Find the best read-out of a run without training.

Scores the run at many f and draws the loss against f; finds the best f, and the best weighted sum
of all weights in the last checkpoints. One half of the validation windows selects; the gain is
measured on the held-out half, and decides which weights are recommended.
"""

import argparse
import shlex
from collections.abc import Sequence

from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.commands import argument_parser, run_options
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.tables import Table, numbers
from anytime_jax.weights import saved_run
from anytime_lab import schedule_styles
from anytime_lab.readout.readout_search import ReadoutSearch, ScoredReadout, growing_window_grid

EXAMPLES = ("--run=runs/quickstart",)

_POINTS = 13  # values of f
_STANDARD_ERRORS = 2  # standard errors of a gain that counts


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
    console.print(f"{saved.title}: selected on {tokens}, measured on as many others")
    search = ReadoutSearch(saved, evaluators, limits)
    stored = [search.score(label) for label in saved.labels]
    windows = search.score_growing_windows(grid)
    best = [search.best_growing_window(windows)] if len(windows) > 2 else []
    checkpoints = min(limits.checkpoints, len({x.step for x in saved.history}))
    with console.status("mixing", spinner="line") as status:
        sums = [search.best_sum(n, status.update) for n in sorted({1, checkpoints})]
    best += sums
    console.print(_table(stored, best))
    figure = draw(
        windows, stored, best, f"{saved.config.name}, step {saved.step:,}: loss by average"
    )
    for kind in ("png", "pdf"):
        path = figure_style.save(figure, output / f"readout_{saved.step}.{kind}")
        console.print(f"wrote {path}")
    selected, verdict = judge(stored, best)
    console.print(f"{verdict}: {_weights_option(selected)}")
    output_option = f"--output={shlex.quote(f'{saved.config.name}-readout')}"
    console.print(f"  {_command('evaluate', arguments, saved.step, selected)}")
    console.print(f"  {_command('export', arguments, saved.step, selected)} {output_option}")
    policy = retention_policy(saved.config)
    if not all(policy.keeps_forever(part.step) for part in selected.weighted_sum.parts):
        console.print("note: export first: the run deletes these checkpoints when it goes on")
    return 0


def judge(
    stored: Sequence[ScoredReadout], best: Sequence[ScoredReadout]
) -> tuple[ScoredReadout, str]:
    """Returns the read-out to use, and why: the simplest one, unless another is better.

    Another read-out is better if its held-out loss is lower than the loss of the best stored
    weights by more than two standard errors.
    """
    reference = _best(stored)
    better = []
    for readout in best:
        gap, error = readout.minus(reference)
        if gap < -_STANDARD_ERRORS * error:
            better.append(readout)
    if not better:
        return reference, (
            f"use {reference.name}: none of the others is better by more than "
            f"{_STANDARD_ERRORS} standard errors on the held-out half"
        )
    selected = _best(better)
    gap, error = selected.minus(reference)
    return selected, (
        f"use {_label(selected, 'the ')}: {-gap:.4f} ± {error:.4f} nats below {reference.name}, "
        "the best stored weights, on the held-out half"
    )


def _best(readouts: Sequence[ScoredReadout]) -> ScoredReadout:
    return min(readouts, key=lambda readout: readout.selection_loss)


def _command(name: str, arguments: argparse.Namespace, step: int, readout: ScoredReadout) -> str:
    """Returns a command line with a read-out."""
    program = arguments.program.rpartition(" ")[0]
    words = [f"--run={shlex.quote(str(arguments.run))}", f"--step={step}", _weights_option(readout)]
    words += [f"--trust={shlex.quote(package)}" for package in arguments.trust]
    if readout.weighted_sum.kernel_error:
        words += [f"--max-error={arguments.max_error}", f"--checkpoints={arguments.checkpoints}"]
    return " ".join([program, name, *words])


def _weights_option(readout: ScoredReadout) -> str:
    return f"--weights={shlex.quote(readout.name)}"


def _table(stored: Sequence[ScoredReadout], best: Sequence[ScoredReadout]) -> Table:
    reference = _best(stored)
    losses = numbers("selected on", "measured on", format=".4f")
    others = numbers(f"minus {reference.name}", "kernel error", format=".2%")
    table = Table("", ["weights", *losses, *others])
    for readout in (*stored, *best):
        gap, error = readout.minus(reference)
        kernel_error = readout.weighted_sum.kernel_error
        table.add_row(
            _label(readout),
            readout.selection_loss,
            readout.loss,
            None if readout is reference else f"{gap:+.4f} ± {error:.4f}",
            kernel_error or None,
        )
    return table


def _label(readout: ScoredReadout, article: str = "") -> str:
    if readout.name.startswith("mix:"):
        return f"{article}best weighted sum of {len(readout.weighted_sum.parts)}"
    return readout.name


def draw(
    windows: Sequence[ScoredReadout],
    stored: Sequence[ScoredReadout],
    best: Sequence[ScoredReadout],
    title: str,
) -> Figure:
    """Draws the loss against f on both halves of the validation windows.

    `windows` are over a grid of f; `best` is the best window, if any, followed by sums.
    """
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    axes = figure.add_subplot()
    fs = [_f(x) for x in windows]
    blue = figure_style.BLUE
    axes.plot(fs, [x.loss for x in windows], color=blue, label="average f, on the held-out half")
    label = "average f, on the half that selects"
    axes.plot(fs, [x.selection_loss for x in windows], ":", color="0.6", label=label)
    averages = [x for x in stored if x.name.startswith("f")]
    style = {"c": [figure_style.weight_style(x.name)["color"] for x in averages], "zorder": 3}
    points = [_f(x) for x in averages], [x.loss for x in averages]
    axes.scatter(*points, label="averages that the run stored", **style)
    for readout in best:
        if readout.name.startswith("f="):
            f, style = _f(readout), {"color": figure_style.VERMILION, "markersize": 12}
            axes.plot(
                f, readout.loss, "*", label=f"best f = {f:.3g} of the half that selects", **style
            )
        else:
            color = figure_style.GREEN if readout is best[-1] else figure_style.PURPLE
            axes.axhline(
                readout.loss, color=color, linestyle="--", label=f"{_label(readout)} stored"
            )
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
