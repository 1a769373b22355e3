"""What the doors with a configuration file share: `--config=FILE --config.NAME=VALUE`.

Whatever is wrong with the flags or inside the file is one line and exit status 2. A configuration
file is Python code and is executed: use those you trust.
"""

import itertools
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, FieldReference, config_flags
from ml_collections.config_dict import RequiredValueError

from anytime_jax.checks import format_value
from anytime_jax.commands.command_line import complain
from anytime_jax.config.fields import nearest
from anytime_jax.errors import InputError

CONFIG = config_flags.DEFINE_config_file("config", help_string="Path of a configuration file.")
DEBUG = flags.DEFINE_bool("debug", False, "Show the traceback of an error.")


def parse(argv: list[str], about: str) -> list[str]:
    """Parses flags, and leaves with one line and status 2 if they or the file cannot be used.

    Args:
      argv: the command line.
      about: what `--help` prints.

    Returns:
      what of the command line is not a flag.
    """
    if {"--help", "-h"} & set(argv):
        print(about)
        return sys.exit(0)
    try:
        argv = [f"-{given}" if given.startswith("-config") else given for given in argv]
        _check_file(argv)
        return flags.FLAGS(argv)
    except Exception as error:  # absl, ml_collections and the file can raise anything
        return sys.exit(complain(error, 2))


def _check_file(argv: Sequence[str]) -> None:
    """Checks that the configuration file runs and has every setting that the flags override."""
    prefix = "--config="
    paths = [given.removeprefix(prefix) for given in argv if given.startswith(prefix)]
    paths += [after for given, after in itertools.pairwise(argv) if given == "--config"]
    if not paths:
        return
    path, _, name = paths[0].partition(":")  # a study's file holds a run under each name
    if len(paths) > 1:
        raise InputError(f"{len(paths)} configurations are given ({', '.join(paths)}): give one")
    if not Path(path).is_file():
        raise InputError(f"{prefix}{path}: there is no such file; the runs are in configs/")
    try:
        made = runpy.run_path(path).get("get_config", dict)(*([name] if name else []))
    except InputError as error:
        raise InputError(f"{prefix}{path}: {error}") from error
    except (Exception, SystemExit) as error:  # the file is code: it can raise anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        where = f"line {frames[-1].lineno}, {format_value(frames[-1].line)}: " if frames else ""
        what = f"{where}{type(error).__name__}: {error}"
        raise InputError(f"{prefix}{path} cannot be run: {what}") from error
    if not isinstance(made, ConfigDict):
        raise InputError(f"{prefix}{path} has no get_config() that returns a ConfigDict")
    known = list(_settings(made))
    for given in argv:
        name = given.removeprefix("--config.").split("=")[0]
        if given.startswith("--config.") and name not in known:
            raise InputError(f"config.{name} is not a setting: {nearest(name, known)}")


def _settings(given: ConfigDict, prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of every setting; each must have a value, and no group hold itself."""
    for key, value in given.items(preserve_field_references=True):
        name = f"{prefix}{key}"
        if isinstance(value, FieldReference):
            try:
                value = value.get()
            except RequiredValueError as error:
                raise InputError(f"config.{name} has no value: give it one in the file") from error
        if not isinstance(value, ConfigDict):
            yield name
        elif prefix.count(".") > 9:
            raise InputError(f"config.{name} is nested too deep: a group may hold itself")
        else:
            yield from _settings(value, f"{name}.")
