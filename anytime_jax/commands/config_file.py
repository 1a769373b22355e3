"""Configuration files on the command line: `--config=FILE --config.NAME=VALUE`.

A configuration file is Python code and is executed, so use only files you trust.
"""

import argparse
import pprint
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from anytime_jax.commands.argument_parser import SETTING_PREFIX
from anytime_jax.config import python_files, run_config, settings_reader
from anytime_jax.config.kinds import EVERY_PACKAGE, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.config.run_settings import Settings
from anytime_jax.errors import InputError

T = TypeVar("T")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--config`."""
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE[:NAME]",
        help="configuration, by file or name, and the name of one of its runs if it is a study; "
        "--config.NAME=VALUE overrides a setting",
    )


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
    return run_config.build(source, trust=EVERY_PACKAGE)


def load_as(cls: type[T], arguments: argparse.Namespace, example: str) -> T:
    """Returns the settings of another dataclass; `example` is a shipped configuration of it."""
    source = python_files.get_config(_file(arguments, example))
    return settings_reader.read(cls, override(source, arguments.overrides, cls))


def read(file: str, overrides: Sequence[str] = (), trust: Trust = ()) -> dict[str, Any]:
    """Returns the settings that a configuration file, `FILE` or `FILE:NAME`, and options give.

    The texts of options are as they were typed; `run_config.build` reads and checks them.
    """
    return override(python_files.get_config(file, trust), overrides)


def override(
    settings: dict[str, Any], overrides: Sequence[str], cls: type = Settings
) -> dict[str, Any]:
    """Returns settings changed by `--config.NAME=VALUE`, the last of each name."""
    pairs = (word.removeprefix(SETTING_PREFIX).partition("=") for word in overrides)
    settings_reader.change(
        cls, settings, {name: settings_reader.Text(value) for name, _, value in pairs}
    )
    return settings


def print_config(config: Config, arguments: argparse.Namespace) -> None:
    """Prints every setting of a configuration as a file that can be run.

    A comment says where a value comes from, unless it is the default.
    """
    (file,) = arguments.config
    given = settings_reader.flatten(read(file, arguments.overrides, arguments.trust))
    # A setting may be a dictionary, and have further names in it.
    origins = {".".join(x.split(".")[:depth]): f"from {file!r}" for x in given for depth in (1, 2)}
    typed = (word.removeprefix(SETTING_PREFIX) for word in arguments.overrides)
    origins |= {word.partition("=")[0]: "from the command line" for word in typed}
    settings = "".join(_lines(config.to_dict(), origins))
    print(
        f'"""All settings of {config.name}; those without a comment are defaults."""\n\n'
        "from ml_collections import ConfigDict\n\n\n"
        "def get_config() -> ConfigDict:\n"
        '    """Returns the configuration."""\n'
        "    return ConfigDict(SETTINGS, type_safe=False, convert_dict=False)\n\n\n"
        f"SETTINGS = {{\n{settings}}}"
    )


def _lines(settings: Mapping[str, Any], origins: Mapping[str, str], group: str = "") -> list[str]:
    """Returns the source of the entries of a dictionary of settings, each with its origin."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines += [f"    {name!r}: {{\n", *_lines(value, origins, f"{name}."), "    },\n"]
            continue
        indent = " " * (8 if group else 4)
        source = pprint.pformat(value, width=80, sort_dicts=False).replace("\n", f"\n{indent}    ")
        origin = origins.get(f"{group}{name}")
        lines.append(f"{indent}{name!r}: {source},{f'  # {origin}' if origin else ''}\n")
    return lines


def _file(arguments: argparse.Namespace, example: str) -> str:
    files = arguments.config or []
    if len(files) != 1:
        count = f"{len(files)} are given ({', '.join(files)})" if files else "none is given"
        raise InputError(
            f"--config: {count}: give one configuration, a file or the name of one that is "
            f"shipped, such as --config={example}"
        )
    return files[0]
