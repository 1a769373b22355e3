"""Python files of configurations and studies: found by path or name, listed, and executed.

A name such as `quickstart` stands for a file in `configs/` of the working directory (a study's in
`configs/studies/`), or else of one that is shipped. Inside a file, `from configs import base` finds
modules in the same places, but first in the `configs` folder in which the file itself is: a file
works wherever it is copied, and a shipped one always imports shipped modules.
"""

import ast
import contextlib
import difflib
import importlib.machinery
import importlib.util
import inspect
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from anytime_jax.checks import format_value
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError

Kind = Literal["configuration", "study"]

_PACKAGE = Path(__file__).resolve().parents[1]
# Beside the package in the repository, inside of it in a wheel.
SHIPPED = next(
    (path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()),
    _PACKAGE / "configs",
)
SHIPPED_STUDIES = _PACKAGE / "lab" / "studies"
_LOCAL = Path("configs")
_EXECUTING = threading.RLock()  # held while `configs` is one file's, which may execute another
# The function that makes a file one of a kind.
_FUNCTIONS: dict[Kind, str] = {"configuration": "get_config", "study": "get_study"}


def find(option: str, text: str, *kinds: Kind) -> Path:
    """Returns the file of a path, or of a name of one of the kinds.

    Raises an InputError that names the nearest file if there is none.
    """
    # `Path.is_file` raises for text that no file system takes as a name.
    file = Path(text) if os.path.isfile(text) else _named(text, kinds)
    if file is None:
        for name, mark in (("decay", "run.json"), ("own_text", "anytime_jax.json")):
            if os.path.isfile(Path(text) / mark):
                raise InputError(f"--{option}={text} is a directory: --{option}={name}:{text}?")
        if os.path.isfile(f"{text}.py"):
            raise InputError(f"--{option}={text} is no file: did you mean --{option}={text}.py?")
        names = [name for kind in kinds for name in summaries(kind)]
        near = difflib.get_close_matches(Path(text).stem, names, 1)
        hint = f"did you mean --{option}={near[0]}?" if near else f"there are {', '.join(names)}"
        raise InputError(f"--{option}={text} is neither a file nor the name of one: {hint}")
    return file


def is_name(text: str, kind: Kind) -> bool:
    """Whether a text is the name of a file of a kind."""
    return _named(text, (kind,)) is not None


def _named(text: str, kinds: Sequence[Kind]) -> Path | None:
    if not text.isprintable() or Path(text).name != text:
        return None
    files = (folder / f"{text}.py" for kind in kinds for folder in _folders(kind))
    return next((file for file in files if os.path.isfile(file)), None)


def _folders(kind: Kind) -> tuple[Path, Path]:
    """The folders of files that have a name, the local one first."""
    return (_LOCAL / "studies", SHIPPED_STUDIES) if kind == "study" else (_LOCAL, SHIPPED)


def summaries(kind: Kind) -> dict[str, str]:
    """Returns the first docstring line of every file of a kind, by name, without executing any."""
    function = _FUNCTIONS[kind]
    found: dict[str, str] = {}
    for folder in reversed(_folders(kind)):
        for file in sorted(folder.glob("*.py")):
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                tree = ast.parse(file.read_bytes())
                if any(isinstance(x, ast.FunctionDef) and x.name == function for x in tree.body):
                    found[file.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


@contextlib.contextmanager
def execute(label: str, file: Path) -> Iterator[dict[str, Any]]:
    """Executes a file and yields its names, whose functions are called inside the context.

    What they raise becomes an InputError that begins with `label` and names the line.
    """
    with _EXECUTING, _importable_configs(file):
        try:
            yield runpy.run_path(str(file))
        except InputError as error:
            raise InputError(f"{label}: {error}") from error
        except (Exception, SystemExit) as error:  # the file is code: it can raise anything
            frames = [
                x for x in traceback.extract_tb(error.__traceback__) if x.filename == str(file)
            ]
            line = f"line {frames[-1].lineno}, {format_value(frames[-1].line)}: " if frames else ""
            text = f"{line}{type(error).__name__}: {error}"
            raise InputError(f"{label} cannot be run: {text}") from error


@contextlib.contextmanager
def _importable_configs(file: Path) -> Iterator[None]:
    """Makes `configs` the package of all folders in which a file's imports are looked for."""
    parents = file.resolve().parents
    own = [folder for folder in parents if folder.name == "configs"][:1]
    own += [SHIPPED] if SHIPPED_STUDIES in parents else []
    spec = importlib.machinery.ModuleSpec("configs", None, is_package=True)
    spec.submodule_search_locations = [str(x) for x in (*own, _LOCAL.resolve(), SHIPPED)]

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

    FILE is a path or a name, RUN a run of a study or what else its `get_config` takes; one that
    reads a run directory takes `trust` too. Raises an InputError if there is no such file, or it
    cannot be executed.
    """
    text, _, run = text.partition(":")
    label = f"--config={text}"
    with execute(label, find("config", text, "configuration", "study")) as content:
        function = content.get("get_config", dict)
        parameters = inspect.signature(function).parameters if "get_config" in content else {}
        if run and not parameters:
            raise InputError(f"it is one run: leave out :{run}")
        options = {"trust": trust} if "trust" in parameters else {}
        config = function(*([run] if run else []), **options)
        if not hasattr(config, "to_dict"):
            raise InputError("it has no get_config() that returns a ConfigDict")
        return _plain(config, "config")


def _plain(config: Any, name: str) -> dict[str, Any]:
    """Returns a ConfigDict as plain dictionaries; raises an InputError that names a bad value."""
    if name.count(".") > 9:
        raise InputError(f"{name} is nested too deep: a group may hold itself")
    values = {}
    for key in config:
        try:
            value = config[key]
        except Exception as error:  # a reference that has no value yet, or cannot be computed
            reason = " ".join(str(error).split())
            raise InputError(f"{name}.{key} has no value ({reason}): give it one") from error
        is_group = hasattr(value, "to_dict")
        values[key] = _plain(value, f"{name}.{key}") if is_group else value
    return values
