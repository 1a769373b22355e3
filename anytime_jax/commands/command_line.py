"""What the doors share: the parser, the console, how work is done, one line for what is wrong."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console

from anytime_jax.errors import InputError, RunError

_LONGEST = 580  # characters of a complaint


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a usage error in one line, like any other bad input."""

    def error(self, message: str) -> NoReturn:
        """Prints the line and leaves with exit status 2."""
        self.exit(2, f"error: {message}; --help lists the options\n")


def make_parser(door: str, description: str) -> Parser:
    """Returns a parser with what every door has: `--debug`, and options by their whole names only.

    Args:
      door: its module, as seen from the package.
      description: what `--help` begins with.
    """
    parser = Parser(f"python -m anytime_jax {door}", description=description, allow_abbrev=False)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def open_console(width: int = 120, quiet: bool = False) -> Console:
    """Returns where a door prints; `width` holds where there is no terminal to ask."""
    console = Console(highlight=False, soft_wrap=True, quiet=quiet)
    if not console.is_terminal:
        console.width = width
    return console


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None,
) -> int:
    """Parses a command line, does the work of its door and returns the exit status.

    Args:
      parser: from `make_parser`, with the door's own options.
      work: what to do with the arguments; returns the status where nothing is raised.
      argv: the arguments; those of the process if None.

    Returns:
      what `answer` makes of the work; arguments that the parser refuses leave with 2 before it.
    """
    arguments = parser.parse_args(argv)
    return answer(lambda: work(arguments), arguments.debug)


def answer(work: Callable[[], int], debug: bool) -> int:
    """Does the work of a door and returns the exit status.

    Args:
      work: what to do; returns the status where nothing is raised.
      debug: whether to show the traceback of an error.

    Returns:
      that status; 2 for bad input, 1 for what broke, each with one line that says what; 130 for
      Ctrl-C.
    """
    try:
        return work()
    except (InputError, RunError, OSError) as error:
        return complain(error, 2 if isinstance(error, InputError) else 1, debug=debug)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130


def complain(error: BaseException, status: int, text: str = "", debug: bool | None = None) -> int:
    """Prints one line, without what a terminal would take for commands; returns the status.

    Args:
      error: what went wrong.
      status: of the process.
      text: the line, if it is not the error's own.
      debug: whether to show the traceback; by default, whether the command line asks for it.
    """
    if debug is None:  # flags may not be parsed yet
        debug = bool({"--debug", "-debug", "--debug=true"} & set(sys.argv))
    if debug:
        traceback.print_exception(error)
    text = " ".join((text or str(error)).split())
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    text = text if len(text) < _LONGEST else f"{text[: _LONGEST - 100]} ... {text[-90:]}"
    print(f"error: {text}", file=sys.stderr, flush=True)
    return status
