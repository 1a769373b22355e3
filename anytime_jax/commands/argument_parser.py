"""Parser of a command's options, with the types of options and the help.

A command is a module of this package with `EXAMPLES` (its arguments, in the examples of `--help`),
`add_options(parser)` and `run(arguments)`, which returns the exit status and may raise an
InputError, a RunError or an OSError. The docstring of the module is the text of `--help`.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from anytime_jax.commands import exit_status
from anytime_jax.errors import InputError, format_value, nearest
from anytime_jax.storage.paths import storage_path

SETTING_PREFIX = "--config."  # prefix of a setting on the command line
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
        hint = nearest(words[0].partition("=")[0], options)
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


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the options of a directory to create, in place of an earlier one if the user says so."""
    add = parser.add_argument
    add("--output", type=path, required=True, metavar="DIR", help="directory to create")
    add("--overwrite", action="store_true", help=f"replace an earlier {what} at --output")


def parse(command: ModuleType, program: str, argv: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed options of a command, with `program`, `argv` and the options `given`."""
    examples = "".join(f"\n  {program} {example}".rstrip() for example in command.EXAMPLES)
    parser = Parser(
        prog=program,
        description=command.__doc__,
        epilog=f"{exit_status.TEXT}\n\nexample:{examples}",
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
