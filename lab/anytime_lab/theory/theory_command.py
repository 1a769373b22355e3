"""Compute exact risks of SGD on power-law linear regression.

With --config: the synthetic figures of the paper. Otherwise one of the commands below; each has a
--help of its own.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from anytime_jax.checks import require_directory
from anytime_jax.commands import argument_parser, config_file, exit_status
from anytime_jax.commands.argument_parser import HelpFormatter, positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.distributed import jax_settings
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.tables import Table
from anytime_lab.theory import parallel_risks, ramp_report, reports, synthetic_figures
from anytime_lab.theory.batch_branches import (
    RULES,
    best_multiplier,
    compare_branches,
    double,
)
from anytime_lab.theory.comparison import NoiseComparison, compare
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.ramps import compare_ramps, tune_batches
from anytime_lab.theory.risk import require_noise
from anytime_lab.theory.synthetic_figures import FigureConfig

Report = list[Table | str]

EXAMPLES = (
    "--config=theory_figure",
    "compare --a=1.5 --b=3 --noise=0.1",
    "advise --a=1.5 --b=3 --noise=0.1",
    "bound --a=1.5 --b=3 --noise=0.1",
    "rates",
    "ramps --a=1.5 --b=3 --noise=0.1",
    "batches --a=1.5 --b=3 --noise=0.1",
    "branches --a=1.5 --b=3 --noise=0.1",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the figures, and the commands."""
    config_file.add_option(parser)
    parser.set_defaults(work=_figures)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, work: Callable[..., Report], summary: str) -> Callable[..., object]:
        (example,) = (line for line in EXAMPLES if line.split()[0] == name)
        subparser = commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}.",
            epilog=f"{exit_status.TEXT}\n\nexample:\n  {parser.prog} {example}",
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )
        subparser.set_defaults(work=work)
        return subparser.add_argument

    for name, work, summary in (
        ("compare", _compare, "cosine tuned at every length against single anytime runs"),
        ("advise", _advise, "gamma, alpha, f and when to tune, with the evidence"),
    ):
        add = command(name, work, summary)
        _add_problem(add, several_noises=name == "compare")
        add("--batch-size", type=positive_int, default=1, help="samples in an update")
        add("--samples", type=positive_int, default=150_000, help="samples of the longest run")
        add(
            "--doublings", type=positive_int, default=5, help="from the shortest to the longest run"
        )
        add("--output", type=Path, metavar="DIR", help="directory for the figure and its numbers")
    add = command("bound", _bound, "the bound of Theorem 1, term by term, and the exact risk")
    _add_problem(add)
    add("--steps", type=positive_int, default=1_000_000, help="iterates in the longest mean")
    add("--gamma", type=float, help="decay of the step sizes (default: 1 - a/b, within 0 .. 1/2)")
    add("--multiplier", type=float, default=0.5, help="step size in units of 1/tr(H)")
    add = command("rates", _rates, "exponents fitted to exact risks, and the proven ones")
    add("--samples", type=positive_int, default=1_000_000, help="samples of every run")
    add("--noise", type=float, default=0.1, help="sigma^2")
    add("--multiplier", type=float, default=0.5, help="step size in units of 1/tr(H)")
    add(
        "--batch-share", type=float, default=0.0, help="of gamma that a growing batch takes, 0 to 1"
    )
    add("--average", default="last50%", help="whose risk is fitted, such as last50%% or f25")
    for name, work, summary in (
        ("ramps", _ramps, "batches that grow without a horizon, against tuned pairs"),
        ("batches", _batches, "constant batches that are tuned for every length"),
    ):
        add = command(name, work, summary)
        _add_problem(add, several_noises=True)
        text = "lengths are 10^3, 10^3.5, ... to this"
        add("--samples", type=positive_int, default=100_000, help=text)
        add("--output", type=Path, metavar="DIR", help="directory for what is computed")
        if name == "ramps":
            text = "G to try (default: 1 - a/b, a half and one and a half of it)"
            add("--growths", type=argument_parser.numbers, default=(), help=text)
    add = command("branches", _branches, "branches with larger batches, and noise scales")
    _add_problem(add)
    add(
        "--samples",
        type=positive_int,
        default=64_000,
        help="lengths are 1,000 and doublings to this",
    )
    add(
        "--multiplier",
        type=float,
        help="the rate in units of 1/tr(H) (default: the best for f25 at 1,000 samples)",
    )
    add("--output", type=Path, metavar="DIR", help="directory for the numbers")


def _add_problem(add: Callable[..., object], several_noises: bool = False) -> None:
    add("--a", type=float, required=True, help="capacity: eigenvalues are i^-a")
    add("--b", type=float, required=True, help="source: (w*_i)^2 is i^-(b-a)")
    if several_noises:
        add(
            "--noise",
            type=argument_parser.numbers,
            default="0.1",
            help="sigma^2, or several: 1,0.1,0",
        )
    else:
        add("--noise", type=float, default=0.1, help="sigma^2")
    add("--dimension", type=float, default=math.inf, help="coordinates")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    jax_settings.configure()
    console = open_console(width=200)
    columns = TextColumn("exact risks"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("", total=1.0)
    if arguments.work is not _figures:
        of_figures = [x for x in arguments.given if x.startswith("--config")]
        argument_parser.refuse(arguments, of_figures, "with a command")
    with bar:
        report = arguments.work(arguments, lambda done: bar.update(task, completed=done))
    for part in report:
        console.print(part)
    return 0


def _figures(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    config = config_file.load_as(FigureConfig, arguments, "theory_figure")
    make_writable_directory(Path(config.out_dir), f"out_dir = {config.out_dir!r}")
    files, table = synthetic_figures.make_figures(config, progress)
    return [table, *(f"  {file}" for file in files)]


def _compare(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    levels = _noise_levels(arguments, arguments.noise, progress)
    report = [part for level in levels for part in reports.length_table(level)]
    if len(levels) > 1:
        report.append(reports.noise_table(levels))
    return report + _write(arguments, levels[0])


def _advise(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    (level,) = _noise_levels(arguments, [arguments.noise], progress)
    return reports.advice(level) + _write(arguments, level)


def _noise_levels(
    arguments: argparse.Namespace, noises: Sequence[float], progress: parallel_risks.Progress
) -> list[NoiseComparison]:
    problem = _problem(arguments, noises)
    settings = arguments.samples, arguments.doublings, arguments.batch_size
    comparison = compare(problem, *settings, progress)
    return [comparison.at_noise(noise) for noise in noises]


def _write(arguments: argparse.Namespace, level: NoiseComparison) -> Report:
    if arguments.output is None:
        return []
    return [f"  {file}" for file in reports.write_comparison(level, arguments.output)]


def _bound(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    problem = Problem(arguments.a, arguments.b, arguments.dimension)
    settings = arguments.gamma, arguments.multiplier, arguments.steps, arguments.noise
    return reports.bound_report(problem, *settings, progress)


def _rates(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    settings = arguments.multiplier, arguments.samples, arguments.noise
    by = arguments.batch_share, arguments.average
    return reports.exponent_report(*settings, *by, progress)


def _ramps(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    problem = _problem(arguments, arguments.noise)
    comparison = compare_ramps(problem, arguments.samples, arguments.growths, progress)
    report: Report = [ramp_report.make_table(comparison, noise) for noise in arguments.noise]
    edge = "* the edge of the peaks that were tried"
    report.append(f"c: peak over 1/tr(H), {edge}. Largest relative error {comparison.error:.0e}.")
    if arguments.output is not None:
        files = ramp_report.write(comparison, arguments.noise, arguments.output)
        report += [f"  {file}" for file in files]
    return report


def _batches(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    problem = _problem(arguments, arguments.noise)
    tuned = tune_batches(problem, arguments.samples, progress)
    report: Report = [ramp_report.make_batch_table(tuned, noise) for noise in arguments.noise]
    report.append(f"Largest relative error {tuned.error:.0e}.")
    if arguments.output is not None:
        file = ramp_report.write_batches(tuned, arguments.noise, arguments.output)
        report.append(f"  {file}")
    return report


def _branches(arguments: argparse.Namespace, progress: parallel_risks.Progress) -> Report:
    noise, samples = arguments.noise, arguments.samples
    problem = _problem(arguments, [noise])
    multiplier = arguments.multiplier
    if multiplier is None:
        multiplier = best_multiplier(problem, noise)
    settings = problem, multiplier, noise
    branches = compare_branches(*settings, samples, lambda x: progress(0.6 * x))
    doubled = {}
    for number, (name, factors) in enumerate(RULES.items(), 1):
        doubled[name] = double(*settings, samples, factors)
        progress(0.6 + 0.4 * number / len(RULES))
    report: Report = [f"a constant rate of {multiplier:g} / tr(H)"]
    report += ramp_report.make_branch_tables(branches, doubled, noise)
    if arguments.output is not None:
        file = ramp_report.write_branches(*settings, branches, doubled, arguments.output)
        report.append(f"  {file}")
    return report


def _problem(arguments: argparse.Namespace, noises: Sequence[float]) -> Problem:
    """Returns the problem of the options, once the noises and the output are known to be usable."""
    for noise in noises:
        require_noise(noise)
    problem = Problem(arguments.a, arguments.b, arguments.dimension)
    if arguments.output is not None:
        require_directory("--output", str(arguments.output))
        make_writable_directory(arguments.output, f"--output = {str(arguments.output)!r}")
    return problem
