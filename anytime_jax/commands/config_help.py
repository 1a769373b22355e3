"""Help on `--config`: the files by name, and the settings of a run.

All of it is derived: from the docstrings of the files, and from the declarations of the settings.
"""

import argparse
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

from anytime_jax import plugins
from anytime_jax.config import python_files
from anytime_jax.config.run_settings import all_settings
from anytime_jax.plugins import Folder

_WIDTH = 100
_NAME_WIDTH = 26
_HEAD = """\
settings (--config.NAME=VALUE)

Each has its meaning, type and default, and with --config what it is now. A point in a run is text
such as "12500 steps", "3.3B tokens" or "4x", a multiple of chinchilla_tokens.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--list` and `--help-settings`, and the names of both to `--help`."""
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the configurations that have a name, and exit",
    )
    parser.add_argument(
        "--help-settings",
        action="store_true",
        help="explain every setting, with its value if --config is given, and exit",
    )
    for folder in plugins.folders():
        names = ", ".join(python_files.summaries(folder))
        parser.add_argument_group(
            folder.title, textwrap.fill(names, _WIDTH - 2, break_on_hyphens=False)
        )
    lines = [
        textwrap.fill(", ".join(names), _WIDTH - 2, subsequent_indent="    ")
        for _, names in itertools.groupby(all_settings(), lambda name: name.rpartition(".")[0])
    ]
    parser.add_argument_group("settings (--config.NAME=VALUE)", "\n".join(lines))


def list_files(*folders: Folder) -> str:
    """Returns a line for every file that has a name, and where the files are."""
    lines = []
    for folder in folders:
        entries = itertools.starmap(_entry, python_files.summaries(folder).items())
        local = f", or of {folder.local}/ in the working directory" if folder.local else ""
        lines += [f"{folder.title}:", *entries, f"They are the files of {folder.path}{local}.", ""]
    return "\n".join([*lines, "To change one, copy it."])


def explain(values: Mapping[str, Any]) -> str:
    """Returns every setting with its meaning, its type, its default, and its value if known."""
    lines = [_HEAD]
    for name, setting in all_settings().items():
        kinds = f"of {', '.join(setting.kinds)}" if setting.kinds else ""
        default = setting.default_text and f"default {setting.default_text}"
        group, _, last = name.rpartition(".")
        value = setting.format(values.get(group, values).get(last))
        facts = "; ".join(
            filter(None, (setting.type_text, default, kinds, value and f"now {value}"))
        )
        lines.append(_entry(name, f"{setting.meaning} [{facts}]"))
    return "\n".join(lines)


def _entry(name: str, text: str) -> str:
    """Returns a name and its wrapped text, side by side."""
    head = f"  {name:{_NAME_WIDTH}} "
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
