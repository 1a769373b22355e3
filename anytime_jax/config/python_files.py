"""Python files that configure runs, or several: found by path or name, listed, and executed.

A name such as `quickstart` stands for a file in `configs/` of the working directory. If there is
none, it stands for a file in a folder of an installed plugin (`anytime_jax.plugins.Folder`).

A file may import other configurations: `from configs import base`. Modules of `configs` are looked
for in this order:

    1. the nearest folder called `configs` that contains the file
    2. the shipped configurations, if the file is in a folder of a plugin
    3. `configs/` of the working directory
    4. the shipped configurations

So a file works wherever it is copied, and a shipped file always imports shipped modules.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax import plugins
from anytime_jax.builtin_plugin import CONFIGURATIONS
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError, describe_failure
from anytime_jax.plugins import Folder

_LOCAL = Path("configs")
_EXECUTING = threading.RLock()  # held while `configs` is for one file, which may execute another


def find(option: str, text: str, *folders: Folder) -> Path:
    """Returns the file at a path, or the file with a name in one of the folders.

    Raises an InputError if there is no such file.
    """
    # `Path.is_file` raises for text that no file system takes as a name.
    file = Path(text) if os.path.isfile(text) else _named(text, folders)
    if file is None:
        names = [name for folder in folders for name in summaries(folder)]
        raise InputError(
            f"--{option}={text} is neither a file nor the name of one; there are {', '.join(names)}"
        )
    return file


def is_name(text: str, folder: Folder) -> bool:
    """Whether a text is the name of a file of a folder."""
    return _named(text, (folder,)) is not None


def _named(text: str, folders: Sequence[Folder]) -> Path | None:
    if not text.isprintable() or Path(text).name != text:
        return None
    files = (place / f"{text}.py" for folder in folders for place in _places(folder))
    return next((file for file in files if os.path.isfile(file)), None)


def _places(folder: Folder) -> list[Path]:
    """The places of a folder's files, the user's first."""
    return [*([Path(folder.local)] if folder.local else []), folder.path]


def summaries(folder: Folder) -> dict[str, str]:
    """Returns the first line of each file's docstring, by name; executes no file."""
    found: dict[str, str] = {}
    for place in reversed(_places(folder)):
        for file in sorted(place.glob("*.py")):
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                body = ast.parse(file.read_bytes()).body
                if any(isinstance(x, ast.FunctionDef) and x.name == folder.function for x in body):
                    docstring = ast.get_docstring(ast.Module(body, [])) or ""
                    found[file.stem] = docstring.partition("\n")[0]
    return found


@contextlib.contextmanager
def execute(label: str, file: Path) -> Iterator[dict[str, Any]]:
    """Executes a file and yields its names; call functions of the file inside this context.

    An error that the file or such a function raises becomes an InputError, which begins with
    `label` and names the line.
    """
    with _EXECUTING, _importable_configs(file):
        try:
            yield runpy.run_path(str(file))
        except InputError as error:
            raise InputError(f"{label}: {error}") from error
        except (Exception, SystemExit) as error:  # the file is code: it can raise anything
            failure = describe_failure(error, lambda x: x.f_code.co_filename == str(file))
            raise InputError(f"{label} cannot be run: {failure}") from error


@contextlib.contextmanager
def _importable_configs(file: Path) -> Iterator[None]:
    """Makes `configs` a package of all folders in which the imports of a file are looked for."""
    parents = file.resolve().parents
    own = [folder for folder in parents if folder.name == "configs"][:1]
    own += [CONFIGURATIONS] if any(x.path in parents for x in plugins.folders()) else []
    spec = importlib.machinery.ModuleSpec("configs", None, is_package=True)
    spec.submodule_search_locations = [str(x) for x in (*own, _LOCAL.resolve(), CONFIGURATIONS)]

    def take() -> dict[str, Any]:
        names = [name for name in sys.modules if name.partition(".")[0] == "configs"]
        return {name: sys.modules.pop(name) for name in names}

    before = take()
    sys.modules["configs"] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        take()
        sys.modules.update(before)


def get_config(text: str, trust: Trust = NOBODY) -> dict[str, Any]:
    """Returns the settings of a configuration, `FILE` or `FILE:RUN`, as nested dictionaries.

    FILE is a path or a name. RUN is the argument of the file's `get_config`, such as the name of a
    run. A `get_config` that reads a run directory gets `trust` as well. Raises an InputError if
    there is no such file, or if it cannot be executed.
    """
    text, _, run = text.partition(":")
    label = f"--config={text}"
    with execute(label, find("config", text, *plugins.folders())) as content:
        function = content.get("get_config", dict)
        parameters = inspect.signature(function).parameters if "get_config" in content else {}
        if run and not parameters:
            raise InputError(f"it is one run: leave out :{run}")
        options = {"trust": trust} if "trust" in parameters else {}
        config = function(*([run] if run else []), **options)
        if not hasattr(config, "to_dict"):
            raise InputError("it has no get_config() that returns a ConfigDict")
        return config.to_dict()
