"""Compute exact risks of SGD on power-law linear regression.

With --config: the synthetic figures of the paper. Otherwise one of the commands below; each has a
--help of its own.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from anytime_jax.atomic import make_writable_directory
from anytime_jax.checks import require_directory
from anytime_jax.commands import config_file
from anytime_jax.commands.command_line import EXIT_STATUS, HelpFormatter
from anytime_jax.commands.console import open_console
from anytime_jax.config.fields import read
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError
from anytime_jax.theory import reports, synthetic_figures
from anytime_jax.theory.comparison import NoiseLevel, compare
from anytime_jax.theory.problem import Problem
from anytime_jax.theory.risk import require_noise
from anytime_jax.theory.synthetic_figures import FigureConfig

EXAMPLES = (
    "--config=configs/theory_figure.py",
    "compare --a=1.5 --b=3 --noise=0.1",
    "advise --a=1.5 --b=3 --noise=0.1",
    "bound --a=1.5 --b=3 --noise=0.1",
    "rates",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the figures, and the commands."""
    config_file.add_option(parser)
    parser.set_defaults(work=_figures)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, work: Callable[..., None], summary: str) -> Callable[..., object]:
        (example,) = (line for line in EXAMPLES if line.split()[0] == name)
        subparser = commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}.",
            epilog=f"{EXIT_STATUS}\n\nexample:\n  {parser.prog} {example}",
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
        add("--batch-size", type=_count, default=1, help="samples in an update")
        add("--steps", type=_count, default=150_000, help="updates of the longest run")
        add("--doublings", type=_count, default=5, help="from the shortest run to the longest")
        add("--output", type=Path, metavar="DIR", help="directory for the figure and its numbers")
    add = command("bound", _bound, "the bound of Theorem 1, term by term, beside the exact risk")
    _add_problem(add)
    add("--steps", type=_count, default=1_000_000, help="iterates in the longest mean")
    add("--gamma", type=float, help="decay of the step sizes (default: 1 - a/b, within 0 .. 1/2)")
    add("--multiplier", type=float, default=0.5, help="step size in units of 1/tr(H)")
    add = command("rates", _rates, "exponents fitted to exact risks, beside the proven ones")
    add("--steps", type=_count, default=1_000_000, help="updates of every run")
    add("--noise", type=float, default=0.1, help="sigma^2")
    add("--multiplier", type=float, default=0.5, help="step size in units of 1/tr(H)")


def _add_problem(add: Callable[..., object], several_noises: bool = False) -> None:
    add("--a", type=float, required=True, help="capacity: eigenvalues are i^-a")
    add("--b", type=float, required=True, help="source: (w*_i)^2 is i^-(b-a)")
    if several_noises:
        add("--noise", type=_numbers, default="0.1", help="sigma^2, or several: 1,0.1,0")
    else:
        add("--noise", type=float, default=0.1, help="sigma^2")
    add("--dimension", type=_dimension, default=math.inf, help="coordinates")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    jax_settings.configure()
    try:
        if arguments.config and arguments.work is not _figures:
            raise InputError("--config is for the figures: leave it out, or the command")
        arguments.work(arguments, open_console(width=200))
    except ValueError as error:
        raise InputError(str(error)) from error
    return 0


def _figures(arguments: argparse.Namespace, console: Console) -> None:
    config = read(FigureConfig, config_file.load(arguments))
    _require_writable("out_dir", Path(config.out_dir))
    with _progress(console, f"{len(config.problems)} panels") as progress:
        files, table = synthetic_figures.make_figures(config, progress)
    _print(console, [table, *(f"  {file}" for file in files)])


def _compare(arguments: argparse.Namespace, console: Console) -> None:
    levels = _run_comparison(arguments, arguments.noise, console)
    for level in levels:
        _print(console, reports.length_table(level))
    if len(levels) > 1:
        console.print(reports.noise_table(levels))
    _write(arguments, levels[0], console)


def _advise(arguments: argparse.Namespace, console: Console) -> None:
    (level,) = _run_comparison(arguments, [arguments.noise], console)
    _print(console, reports.advice(level))
    _write(arguments, level, console)


def _run_comparison(
    arguments: argparse.Namespace, noises: Sequence[float], console: Console
) -> list[NoiseLevel]:
    for noise in noises:
        require_noise(noise)
    problem = Problem(arguments.a, arguments.b, arguments.dimension, arguments.batch_size)
    if arguments.output is not None:
        _require_writable("--output", arguments.output)
    with _progress(console, "tuned baselines and anytime runs") as progress:
        comparison = compare(problem, arguments.steps, arguments.doublings, progress)
    return [comparison.at_noise(noise) for noise in noises]


def _write(arguments: argparse.Namespace, level: NoiseLevel, console: Console) -> None:
    if arguments.output is not None:
        files = reports.write_comparison(level, arguments.output)
        _print(console, [f"  {file}" for file in files])


def _bound(arguments: argparse.Namespace, console: Console) -> None:
    problem = Problem(arguments.a, arguments.b, arguments.dimension)
    settings = arguments.gamma, arguments.multiplier, arguments.steps, arguments.noise
    with _progress(console, "exact risks") as progress:
        report = reports.bound_report(problem, *settings, progress)
    _print(console, report)


def _rates(arguments: argparse.Namespace, console: Console) -> None:
    settings = arguments.multiplier, arguments.steps, arguments.noise
    with _progress(console, f"{len(reports.SPECTRA)} spectra") as progress:
        report = reports.exponent_report(*settings, progress)
    _print(console, report)


def _require_writable(setting: str, directory: Path) -> None:
    require_directory(setting, str(directory))
    try:
        make_writable_directory(directory)
    except OSError as error:
        raise InputError(
            f"{setting} = {str(directory)!r} cannot be written to ({error.strerror}): choose "
            "another directory"
        ) from error


def _print(console: Console, report: Sequence[Table | str]) -> None:
    for part in report:
        console.print(part)


@contextmanager
def _progress(console: Console, description: str) -> Iterator[Callable[[float], None]]:
    """Yields a function that shows the fraction of a computation that is done, on a terminal."""
    if not console.is_terminal:
        yield lambda fraction: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(description, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


# Types of options: where they raise, the parser names the option and the value.


def _count(text: str) -> int:
    value = float(text)  # 1e6 too
    if value != int(value):
        raise ValueError
    return int(value)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _dimension(text: str) -> float:
    return math.inf if text.strip().lower() in ("inf", "infinity") else _count(text)
