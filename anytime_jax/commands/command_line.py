"""Command line of a command: its options and help, errors as one line, and an exit status.

A command is a module of this package with `EXAMPLES` (its arguments, in the examples of `--help`),
`add_options(parser)` and `run(arguments)`, which returns the exit status and may raise an
InputError, a RunError or an OSError. The docstring of the module is the text of `--help`.
"""

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from anytime_jax.commands import interrupts, standard_streams
from anytime_jax.errors import BucketError, InputError, ProcessLostError, RunError, format_value
from anytime_jax.storage.failures import is_temporary, storage_errors
from anytime_jax.storage.paths import storage_path

EXIT_STATUS = (
    "exit status: 0 done, or a training saved after a signal; 1 failed; 2 bad input;\n"
    "75 another process of the run was lost, or a bucket is out of reach; 130 interrupted;\n"
    "141 output closed early"
)

SETTING_PREFIX = "--config."  # prefix of a setting on the command line
_MAX_MESSAGE = 580  # characters of a message
_SECONDS = "a number of seconds from 0.1 to 86400"
T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Argument parser that raises usage errors like any other bad input.

    Attributes:
      argv: the arguments that it will parse, for a command with an option that brings others.
    """

    argv: Sequence[str] = ()

    def __init__(self, *arguments: Any, **options: Any):
        """Makes a parser that says what a number of an option has to be."""
        super().__init__(*arguments, **options)
        self.register("type", int, _whole_number)
        self.register("type", float, _number)

    def require_values(self, words: Sequence[str]) -> None:
        """Raises an InputError for empty text, which would mean the current folder as a path.

        Only an option that is empty by default may be.
        """
        may_be_empty = {
            x for action in self._actions if action.default == "" for x in action.option_strings
        }
        option = ""
        for word in words:
            name, equals, value = word.partition("=")
            if word.startswith("--"):
                option, is_empty = name, equals and not value.strip()
            else:
                is_empty = not word.strip()
            if is_empty and option not in may_be_empty:
                self.error(f"{option or 'an argument'} has no value: give one, or leave it out")

    def error(self, message: str) -> NoReturn:
        """Raises an InputError."""
        raise InputError(f"{message}; --help lists the options")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Raises an InputError for arguments that are not known, with the option nearest to one."""
        options = [name for action in self._actions for name in action.option_strings]
        near = difflib.get_close_matches(words[0].partition("=")[0], options, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps paragraphs as written and shows the defaults of options."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_shown = action.default not in (None, False, argparse.SUPPRESS) and "default" not in text
        return f"{text} (default: %(default)s)" if is_shown else text


def positive_int(text: str) -> int:
    """Type of an option that is a whole number from 1, such as `200` or `1e6`."""
    return _count(text, 1)


def count(text: str) -> int:
    """Type of an option that is a whole number from 0."""
    return _count(text, 0)


def seconds(text: str) -> float:
    """Type of an option that is a number of seconds, from 0.1 to a day."""
    number = _convert(float, text, _SECONDS)
    return number if 0.1 <= number <= 86_400 else _reject(text, _SECONDS)


def numbers(text: str) -> tuple[float, ...]:
    """Type of an option that is one number or several, separated by commas."""
    return tuple(_convert(float, part, "a number") for part in text.split(","))


def _count(text: str, least: int) -> int:
    allowed = f"a whole number from {least} to 2^31"
    number = _convert(float, text, allowed)
    if not least <= number <= 2**31 or number != int(number):
        _reject(text, allowed)
    return int(number)


def _whole_number(text: str) -> int:
    return _convert(int, text, "a whole number")


def _number(text: str) -> float:
    return _convert(float, text, "a number")


def _convert(kind: Callable[[str], T], text: str, allowed: str) -> T:
    try:
        return kind(text)
    except ValueError:
        _reject(text, allowed)


def _reject(text: str, allowed: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"{format_value(text)} is not {allowed}")


def path(text: str) -> Path:
    """Type of an option that is a local path, or one in a bucket."""
    try:
        return storage_path(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse(command: ModuleType, program: str, argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed options of a command, with `program`, `argv` and the options `given`."""
    examples = "".join(f"\n  {program} {example}".rstrip() for example in command.EXAMPLES)
    parser = Parser(
        prog=program,
        description=command.__doc__,
        epilog=f"{EXIT_STATUS}\n\nexample:{examples}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.argv = argv
    command.add_options(parser)
    overrides = [word for word in argv if word.startswith(SETTING_PREFIX)]
    others = [word for word in argv if not word.startswith(SETTING_PREFIX)]
    if bare := next((word for word in overrides if "=" not in word), None):
        parser.error(f"{bare} has no value: give it as {bare}=VALUE")
    parser.require_values(others)
    # Parsers of subcommands have no --debug.
    arguments, unknown = parser.parse_known_args([x for x in others if x != "--debug"])
    if unknown or (overrides and "config" not in arguments):
        parser.refuse(unknown or overrides)
    arguments.debug, arguments.overrides = "--debug" in argv, overrides
    arguments.program, arguments.argv = program, argv
    options = (word.partition("=")[0] for word in argv if word.startswith("--"))
    arguments.given = dict.fromkeys(x for x in options if x != "--debug")
    return arguments


def refuse(arguments: argparse.Namespace, options: Iterable[str], where: str) -> None:
    """Raises an InputError if one of the options was given, as it has no effect there."""
    for option in options:
        if option in arguments.given:
            raise InputError(f"{option} has no effect {where}: leave it out")


def exit_status(work: Callable[[], int], debug: bool = False) -> int:
    """Calls `work` and returns its exit status; prints an expected error, a line for each problem.

    The status is 2 for an InputError, 75 for a ProcessLostError or BucketError, 130 for Ctrl-C,
    141, without a message, if the reader of the output has gone (as with `| head`), and 1 for any
    other error. An error that nothing here expects, such as one of a class of the user's own, is
    printed with its traceback, and so is every error if `debug` is true.
    """
    try:
        status = work()
        if sys.stdout is not None:
            sys.stdout.flush()  # a failure to flush is reported here
        return status
    except KeyboardInterrupt:
        standard_streams.print_error("\ninterrupted")
        return interrupts.INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and standard_streams.discard_closed():
            return standard_streams.BROKEN_PIPE
        is_expected = isinstance(error, (InputError, RunError, *storage_errors()))
        if debug or not is_expected:
            lines = "".join(traceback.format_exception(error)).rstrip().split("\n")
            standard_streams.print_error("\n".join(map(_printable, lines)))
        for one in getattr(error, "errors", [error]) if is_expected else ():
            standard_streams.print_error(f"error: {_one_line(str(one))}")
        if isinstance(error, (ProcessLostError, BucketError)) or is_temporary(error):
            return os.EX_TEMPFAIL
        return 2 if isinstance(error, InputError) else 1
    finally:
        standard_streams.flush()


def _printable(text: str) -> str:
    """Escapes control characters, which a terminal would execute."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _one_line(text: str) -> str:
    """Returns a message as one printable line, shortened in the middle of a long one."""
    text = _printable(" ".join(text.split()))
    return text if len(text) < _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 100]} ... {text[-90:]}"
