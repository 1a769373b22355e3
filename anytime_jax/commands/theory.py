"""The theory bench: exact risks of SGD on power-law linear regression, in seconds.

    python -m anytime_jax theory --config=configs/theory_figure.py     the paper's synthetic figures
    python -m anytime_jax theory compare --a=1.5 --b=3 --noise=0.1     cosine against anytime runs
    python -m anytime_jax theory advise --a=1.5 --b=3 --noise=0.1      gamma, alpha, f, when to tune
    python -m anytime_jax theory bound --a=1.5 --b=3 --noise=0.1       Theorem 1, term by term
    python -m anytime_jax theory rates                                 exponents, fitted and proven

`COMMAND --help` lists the options of one. Exit status: 0, 2 for bad input, 1 if it breaks,
130 for Ctrl-C; no file is left half-written.
"""

import os
import signal
import sys

if __name__ == "__main__":  # Ctrl-C during the imports, which take seconds, ends it without a word
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from absl import app, logging
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from anytime_jax.commands import theory_commands
from anytime_jax.commands.command_line import complain, open_console
from anytime_jax.commands.config_file import CONFIG, parse
from anytime_jax.config.fields import Section
from anytime_jax.distributed import runtime
from anytime_jax.errors import InputError
from anytime_jax.theory import comparison_report, synthetic_figures


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit status."""
    console = open_console(width=200)
    runtime.configure()
    try:
        if CONFIG.value is not None:
            if len(argv) > 1:
                raise InputError(f"unexpected argument {argv[1]!r} beside --config")
            return _figure(console)
        return theory_commands.run(argv[1:], console, _progress)
    except ValueError as error:  # InputError is one
        return complain(error, 2)
    except OSError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        console.print("\ninterrupted: no file is left half-written")
        return 130


def _figure(console: Console) -> int:
    """Computes and draws the figures of a configuration file."""
    config = Section("config", CONFIG.value.to_dict()).build(synthetic_figures.FigureConfig)
    began = time.monotonic()
    with _progress(console, f"{len(config.problems)} panels") as report:
        files, told = synthetic_figures.make(config, report)
    console.print(comparison_report.selected(config, told))
    console.print(f"done in {time.monotonic() - began:.0f} s:")
    for file in files:
        console.print(f"  {file}")
    return 0


@contextmanager
def _progress(console: Console, what: str) -> Iterator[Callable[[float], None]]:
    """Shows how far a computation is; on a terminal only."""
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)


def _parse(argv: list[str]) -> list[str]:
    """Reads `--config` and what overrides it; the options of a command are left to the command."""
    is_command = len(argv) > 1 and not argv[1].startswith("-")
    parsed = parse(argv[:1] if is_command else argv, str(__doc__))
    return argv if is_command else parsed


def cli() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.set_verbosity(logging.FATAL)
    app.run(lambda argv: sys.exit(main(argv)), flags_parser=_parse)


if __name__ == "__main__":
    cli()
