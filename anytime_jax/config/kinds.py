"""Kinds of schedules, optimizers and models: dataclasses that a configuration names.

A kind is named by its short name ("inverse_sqrt", "muon") if it is one of this package, and by
`package.module:Class` otherwise. Its fields are its settings. A short name is the class attribute
`kind` of a dataclass in the module of its `Kinds`; there is no other list.

Naming a class runs the code of its module, so a class is imported only if its package is trusted:
the user's own configuration and command line are, and what a run directory, a checkpoint or an
exported model names is not, unless the caller says so (`trust`). Installed plugins
(`anytime_jax.plugins`), this package among them, always are.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import itertools
import re
import sys
import traceback
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from anytime_jax import plugins
from anytime_jax.checks import reject, require
from anytime_jax.errors import InputError

Trust = Collection[str] | Literal["everything"]
"""Packages or modules whose classes may be imported; installed plugins always are."""

NOBODY: Trust = ()
EVERY_PACKAGE: Trust = "everything"

_UNIONS = (typing.Union, types.UnionType)
_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind with its settings as they were written, before times are read by the clock.

    Attributes:
      name: its short name, or `package.module:Class`.
      cls: its dataclass.
      values: all of its settings by name.
    """

    name: str
    cls: Any
    values: Mapping[str, Any]

    def build(self, **changes: Any) -> Any:
        """Returns an instance; `changes` replace settings."""
        with explain_errors([self.cls.__module__], but=ValueError):
            return self.cls(**{**self.values, **changes})

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings by name, without those that are None."""
        return {name: value for name, value in self.values.items() if value is not None}

    @functools.cached_property
    def times(self) -> tuple[str, ...]:
        """The names of its settings that are times."""
        hints = typing.get_type_hints(self.cls, include_extras=True)
        return tuple(name for name in self.settings if is_time(hints[name]))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.values.items()))))


@dataclasses.dataclass(frozen=True)
class Kinds:
    """The kinds of one part of a run.

    Attributes:
      module: the module whose dataclasses have short names.
      method: the method that makes a dataclass one of these kinds.
      base: the class of the module that such a dataclass extends; empty if it need not.
      default: the kind where none is named; None if one has to be.
      has_times: whether fields may be text such as "4x". Reading then gives a `Kind`, from which
        `resolve` makes the instance once there is a clock.
      setting: what a message calls the name of the kind.
    """

    module: str
    method: str
    base: str = ""
    default: str | None = None
    has_times: bool = False
    setting: str = "kind"

    @functools.cached_property
    def classes(self) -> dict[str, Any]:
        """The dataclasses with a short name, by that name."""
        values = vars(importlib.import_module(self.module)).values()
        found = [x for x in values if isinstance(x, type) and "kind" in vars(x)]
        return {x.kind: x for x in dict.fromkeys(found)}  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def _allowed(self) -> str:
        return f'{", ".join(self.classes)}, or a class as "package.module:Class"'

    def find(self, name: Any, trust: Trust) -> Any:
        """Returns the dataclass with a name; raises an InputError if there is none, or no trust."""
        if isinstance(name, str) and name in self.classes:
            return self.classes[name]
        match = _CLASS.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            if name is None:
                raise InputError(f"it is missing: give one of {self._allowed}", self.setting)
            near = difflib.get_close_matches(name, self.classes, 1) if isinstance(name, str) else ()
            hint = f"; did you mean {near[0]!r}?" if near else ""
            reject(self.setting, name, f"one of {self._allowed}{hint}")
        module, attribute = match.groups()
        if not is_trusted(module, trust):
            package = module.partition(".")[0]
            raise InputError(
                f"it is a class of the package {package}, whose code would be run: if you trust "
                f"it, give --trust={package}, in Python trust=[{package!r}]",
                self.setting,
                name,
            )
        try:
            cls = _import_class(module, attribute)
        except ImportError as error:
            raise InputError(str(error), self.setting, name) from error
        base = getattr(importlib.import_module(self.module), self.base) if self.base else object
        is_kind = (
            isinstance(cls, type)
            and dataclasses.is_dataclass(cls)
            and cls.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
            and issubclass(cls, base)
            and callable(getattr(cls, self.method, None))
            and not inspect.isabstract(cls)
        )
        extends = f" that extends {self.module}.{self.base}," if self.base else ""
        require(
            is_kind, self.setting, name, f"a frozen dataclass{extends} with a method {self.method}"
        )
        return cls

    def name_of(self, cls: Any) -> str:
        """Returns the name under which `find` gives a class."""
        short = vars(cls).get("kind")
        if short is not None and self.classes.get(short) is cls:
            return short
        packages = itertools.accumulate(cls.__module__.split("."), "{}.{}".format)
        public = (x for x in packages if getattr(sys.modules.get(x), cls.__name__, None) is cls)
        return f"{next(public, cls.__module__)}:{cls.__name__}"

    def to_dict(self, value: Any) -> dict[str, Any]:
        """Returns the settings of a kind or of an instance, its `kind` first."""
        if isinstance(value, Kind):
            return {"kind": value.name, **value.settings}
        fields = [x.name for x in dataclasses.fields(value) if x.init]
        settings = {name: getattr(value, name) for name in fields}
        settings = {name: x for name, x in settings.items() if x is not None}
        return {"kind": self.name_of(type(value)), **settings}


def is_time(hint: Any) -> bool:
    """Whether an annotation is `schedules.Time`, or has it as an alternative."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return any("time" in getattr(part, "__metadata__", ()) for part in parts)


def is_trusted(module: str, trust: Trust) -> bool:
    """Whether a module may be imported."""
    if isinstance(trust, str):
        return trust == EVERY_PACKAGE
    return any(module == x or module.startswith(f"{x}.") for x in (*plugins.installed(), *trust))


@contextlib.contextmanager
def explain_errors(modules: Collection[str], but: Any = InputError) -> Iterator[None]:
    """Turns an error of code that uses these modules into an InputError that says where it was.

    Errors of the types `but` pass, and so do all if the modules are of installed plugins.
    """
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:  # such code can raise anything
        packages = {x.partition(".")[0] for x in modules} - {*plugins.installed()}
        if not packages:
            raise
        frames = traceback.walk_tb(error.__traceback__)
        frames = [
            (frame.f_code, line)
            for frame, line in frames
            if frame.f_globals.get("__name__", "").partition(".")[0] in packages
        ]
        if isinstance(error, SystemExit) and not frames:
            raise
        place = f"a class of {', '.join(sorted(packages))} does not fit"
        if frames:
            code, line = frames[-1]
            place = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{place}: {reason}: correct it (--debug shows more)") from error


def _import_class(module: str, attribute: str) -> Any:
    """Returns a class; raises an ImportError that says what to do, whatever its module raises."""
    # The console script does not have the working directory on the path, where a user's file is.
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    sys.path += [here] * added
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module is code: it can raise anything
        is_absent = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        if is_absent:
            advice = "give a class on the Python path or in a file of the working directory"
        else:
            advice = f"correct the name, or the code of {module}"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ImportError(f"it cannot be imported ({reason}): {advice}") from error
    finally:
        if added:
            sys.path.remove(here)
