"""Console of the commands."""

from rich.console import Console


def open_console(width: int = 120, quiet: bool = False) -> Console:
    """Returns a console for plain text; `width` applies where the output is not a terminal."""
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=quiet)
    if not console.is_terminal:
        console.width = width
    return console
