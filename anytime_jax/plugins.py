"""Plugins: the commands, named files and kinds that installed distributions have.

A distribution names one `Plugin` in the entry-point group `anytime_jax.plugins`, as this one does:

    [project.entry-points."anytime_jax.plugins"]
    anytime_jax = "anytime_jax.builtin_plugin:PLUGIN"

Its commands are then commands of `anytime`, the files of its folders have names, as
in `--config=NAME`, its kinds have short names, and its classes are trusted in the files of a run.
The module of a `Plugin` is imported by every command, so it imports little.
"""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from anytime_jax.errors import InputError

GROUP = "anytime_jax.plugins"


class Command(NamedTuple):
    """Command: a module with `EXAMPLES`, `add_options(parser)` and `run(arguments)`.

    Attributes:
      module: the module's full name.
      summary: the first line of its docstring, repeated so that a list of commands imports none.
    """

    module: str
    summary: str


class Folder(NamedTuple):
    """Folder of Python files that have a name.

    Attributes:
      path: the folder.
      title: what a list of the names says above them.
      function: the function that a file has to define to be one of these.
      local: the folder of the user's own such files, below the working directory, if there is one;
        they come first.
    """

    path: Path
    title: str
    function: str = "get_config"
    local: str | None = None


@dataclasses.dataclass(frozen=True)
class Plugin:
    """What a distribution adds.

    Attributes:
      commands: commands by name.
      folders: folders of files that have a name.
      kinds: classes by the part of a run ("schedule", "optimizer", "model" or "source") and by the
        name that a configuration gives them, each as `package.module:Class`.
    """

    commands: Mapping[str, Command] = dataclasses.field(default_factory=dict)
    folders: tuple[Folder, ...] = ()
    kinds: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


@functools.cache
def installed() -> Mapping[str, Plugin]:
    """Returns the plugin of each installed package, this package's first.

    Raises an InputError if one cannot be imported.
    """
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            found[entry.module.partition(".")[0]] = entry.load()
        except Exception as error:  # the module is somebody's code: it can raise anything
            raise InputError(
                f"the plugin {entry.value} cannot be imported ({type(error).__name__}: {error}): "
                "install its distribution again, or uninstall it"
            ) from error
    own = __name__.partition(".")[0]
    return dict(sorted(found.items(), key=lambda item: (item[0] != own, item[0])))


def commands() -> dict[str, Command]:
    """Returns all commands by name."""
    return {name: x for plugin in installed().values() for name, x in plugin.commands.items()}


def kinds(part: str) -> dict[str, str]:
    """Returns the kinds of a part of a run as `package.module:Class`, by name.

    A name that several plugins give is the first one's, and so this package's.
    """
    found: dict[str, str] = {}
    for plugin in installed().values():
        found = {**plugin.kinds.get(part, {}), **found}
    return found


def folders() -> list[Folder]:
    """Returns the folders of files that have a name."""
    return [folder for plugin in installed().values() for folder in plugin.folders]
