"""Configuration files on the command line: `--config=FILE --config.NAME=VALUE`.

A configuration file is Python code and is executed, so use only files you trust.
"""

import argparse
import pprint
from collections.abc import Sequence
from typing import Any, TypeVar

from anytime_jax.commands import config_help
from anytime_jax.commands.command_line import SETTING_PREFIX
from anytime_jax.config import fields, python_files, schema
from anytime_jax.config.kinds import EVERY_PACKAGE, Trust
from anytime_jax.config.schema import Config
from anytime_jax.errors import InputError

T = TypeVar("T")


def add_option(parser: argparse.ArgumentParser, is_run: bool = True) -> None:
    """Adds `--config`; for the settings of a run, also options and help that list them."""
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE[:NAME]",
        help="configuration, by file or name, and the name of one of its runs if it is a study; "
        "--config.NAME=VALUE overrides a setting",
    )
    if is_run:
        config_help.add(parser)
        parser.add_argument(
            "--print-config",
            action="store_true",
            help="print all settings as a configuration file that can be run, and exit",
        )
        add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds `--trust`."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="package whose classes a run may name and so import (docs/security.md)",
    )


def load(arguments: argparse.Namespace) -> Config:
    """Returns the configuration of a run that the command line gives.

    Raises an InputError if the file is missing or cannot be run, or a setting is not allowed.
    """
    source = read(_file(arguments, "quickstart"), arguments.overrides, arguments.trust)
    return schema.build(source)


def load_as(cls: type[T], arguments: argparse.Namespace, example: str) -> T:
    """Returns the settings of another dataclass; `example` is a shipped configuration of it."""
    source = python_files.get_config(_file(arguments, example))
    return fields.read(cls, override(source, arguments.overrides, cls))


def read(file: str, overrides: Sequence[str] = (), trust: Trust = ()) -> dict[str, Any]:
    """Returns the settings that a configuration file, `FILE` or `FILE:NAME`, and options give."""
    return override(python_files.get_config(file, trust), overrides)


def override(
    settings: dict[str, Any], overrides: Sequence[str], cls: type = schema.Settings
) -> dict[str, Any]:
    """Returns settings changed by arguments such as `--config.NAME=VALUE`, the last of each name.

    Raises an InputError if there is no such setting, or the value is not of its type.
    """
    changes: dict[str, fields.Text] = {}
    for word in overrides:
        name, equals, value = word.removeprefix(SETTING_PREFIX).partition("=")
        if not equals:
            raise InputError(f"{word} has no value: give it as {SETTING_PREFIX}{name}=VALUE")
        changes[name] = fields.Text(value)
    fields.change(cls, settings, changes, EVERY_PACKAGE)
    return settings


def print_config(config: Config) -> None:
    """Prints every setting of a configuration as a file that can be run."""
    settings = pprint.pformat(config.to_dict(), indent=1, width=96, sort_dicts=False)
    print(
        f'"""All settings of {config.name}."""\n\n'
        "from ml_collections import ConfigDict\n\n\n"
        "def get_config() -> ConfigDict:\n"
        '    """Returns the configuration."""\n'
        f"    return ConfigDict(SETTINGS, type_safe=False)\n\n\nSETTINGS = {settings}"
    )


def _file(arguments: argparse.Namespace, example: str) -> str:
    files = arguments.config or []
    if len(files) != 1:
        count = f"{len(files)} are given ({', '.join(files)})" if files else "none is given"
        raise InputError(
            f"--config: {count}: give one configuration, a file or the name of one that is "
            f"shipped, such as --config={example}"
        )
    return files[0]
