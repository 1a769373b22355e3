"""Console of `rich`, to which the commands print tables and lines."""

import sys
from typing import NoReturn

from rich.console import Console


class _Console(Console):
    """Console that leaves a closed pipe to `exit_status.run`; rich exits with status 1."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def open_console(width: int = 120, quiet: bool = False) -> Console:
    """Returns a console for plain text; `width` applies where the output is not a terminal."""
    # rich learns from the file whether its encoding has lines for tables, or only ASCII.
    console = _Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True, quiet=quiet)
    if not console.is_terminal:
        console.width = width
    return console
