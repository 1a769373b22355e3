"""Configuration files on the command line: `--config=FILE --config.NAME=VALUE`.

A configuration file is Python code and is executed, so use only files you trust.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, FieldReference, config_flags
from ml_collections.config_dict import RequiredValueError

from anytime_jax.checks import format_value
from anytime_jax.commands import config_help
from anytime_jax.config import python_files
from anytime_jax.config.fields import Setting, nearest
from anytime_jax.config.schema import SETTINGS
from anytime_jax.errors import InputError


def add_option(
    parser: argparse.ArgumentParser, settings: Mapping[str, Setting] | None = None
) -> None:
    """Adds `--config`; with the settings of a run, also options and help that list them."""
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE[:NAME]",
        help="configuration, by file or name, and the name of one of its runs if it is a study; "
        "--config.NAME=VALUE overrides a setting",
    )
    if settings is not None:
        config_help.add(parser, settings)


def load(arguments: argparse.Namespace, example: str = "quickstart") -> dict[str, Any]:
    """Returns the settings of the `--config` file, as `read` does.

    `example` is the name of a shipped configuration of the command.
    """
    files = arguments.config or []
    if len(files) != 1:
        count = f"{len(files)} are given ({', '.join(files)})" if files else "none is given"
        raise InputError(
            f"--config: {count}: give one configuration, a file or the name of one that is "
            f"shipped, such as --config={example}"
        )
    return read(files[0], arguments.overrides)


def read(file: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the settings of a configuration file, `FILE` or `FILE:NAME`.

    Raises an InputError if the file is missing or cannot be run, or as `override` does.
    """
    return override(python_files.get_config(file), overrides)


def override(config: ConfigDict, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns settings changed by arguments such as `--config.NAME=VALUE`.

    Raises an InputError if there is no such setting, or the value is not of its type.
    """
    known = list(setting_names(config))
    for word in overrides:
        name = word.removeprefix("--config.").split("=")[0]
        if word.startswith("--config.") and name not in known:
            raise InputError(f"config.{name} {_why_unknown(name, known)}")
    argv = ["", *overrides]
    try:
        values = flags.FlagValues()
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=argv)
        rest = values(argv)[1:]
        settings = config.to_dict()
    except Exception as error:  # absl and ml_collections can raise anything
        raise InputError(str(error)) from error
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r}: settings are --config.NAME=VALUE")
    return settings


def _why_unknown(name: str, known: Sequence[str]) -> str:
    """Returns what is wrong with a name that is not among the `known` ones of a configuration."""
    members = [each for each in known if each.startswith(f"{name}.")]
    if members:
        return f"is a group of settings: change one of them, such as config.{members[0]}"
    group = name.rpartition(".")[0]
    kinds = SETTINGS[name].kinds if name in SETTINGS and f"{group}.kind" in known else ()
    if not kinds:
        return f"is not a setting: {nearest(name, known)}"
    return (
        f"is a setting of another kind ({' or '.join(kinds)}): set config.{group}.kind to it in "
        "the file, with all that it takes"
    )


def setting_names(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all settings; refuses missing values and recursive groups."""
    for key, value in config.items(preserve_field_references=True):
        name = f"{prefix}{key}"
        if isinstance(value, FieldReference):
            try:
                value = value.get()
            except RequiredValueError as error:
                raise InputError(f"config.{name} has no value: give it one in the file") from error
        if isinstance(value, ConfigDict):
            if prefix.count(".") > 9:
                raise InputError(f"config.{name} is nested too deep: a group may hold itself")
            yield from setting_names(value, f"{name}.")
            continue
        try:
            repr(value)
        except Exception as error:  # any __repr__, or an int of over 4300 digits: absl prints them
            raise InputError(
                f"config.{name} = {format_value(value)} is not allowed: it cannot be printed"
            ) from error
        yield name
