"""Watch a run in the terminal: its state, loss curves and last evaluations.

The run may be training, here or on another machine that shares its directory; nothing is written.
Ctrl-C ends the watching, not the run. Where the output is not a terminal, lines about what was
recorded are printed instead. In a browser: python -m anytime_jax report --run=DIR --watch.
"""

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from anytime_jax.commands import command_line, config_file, standard_streams
from anytime_jax.commands.rich_console import open_console
from anytime_jax.lab.monitor import run_snapshot
from anytime_jax.lab.monitor.follow import follow, until_interrupted
from anytime_jax.lab.monitor.run_screen import Screen
from anytime_jax.lab.monitor.run_snapshot import Snapshot

EXAMPLES = ("--run=runs/quickstart", "--run=runs/quickstart --every=60 >> watch.log")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("--run", required=True, metavar="DIR", help="run to watch")
    config_file.add_trust(parser)
    parser.add_argument(
        "--every",
        type=command_line.seconds,
        default=5,
        metavar="SECONDS",
        help="how often to look at the run",
    )


def run(arguments: argparse.Namespace) -> int:
    """Shows the run until Ctrl-C; returns the exit status."""
    console = open_console()
    show = _show_screen if console.is_terminal and not console.is_dumb_terminal else _print_lines
    with until_interrupted():
        show(follow(arguments.run, arguments.every, arguments.trust), console)
    return 0


def _show_screen(snapshots: Iterator[Snapshot | None], console: Console) -> None:
    latest = next(snapshots)  # read before the screen is cleared, as there may be no run
    assert latest is not None
    size = console.size
    try:
        with Live(Screen(latest), console=console, screen=True, auto_refresh=False) as live:
            live.refresh()
            for snapshot in snapshots:
                latest = snapshot or latest
                if snapshot is not None or console.size != size:
                    size = console.size
                    live.update(Screen(latest), refresh=True)
    finally:  # these lines stay on the terminal
        with standard_streams.lossy_stdout():
            console.print(latest.describe_position())
            if latest.rows:
                console.print(f"  {latest.describe_best()}")


def _print_lines(snapshots: Iterator[Snapshot | None], console: Console) -> None:
    before: Snapshot | None = None
    for snapshot in snapshots:
        if snapshot is None:
            continue
        if before is None or snapshot.is_news_after(before):
            after = before.evaluated[-1][0].step if before and before.evaluated else -1
            for line in run_snapshot.describe(snapshot, after):
                console.print(line)
        before = snapshot
