"""Kinds of schedules, optimizers, models and sources of text: dataclasses that settings name.

A kind is named by a short name ("inverse_sqrt", "muon") or as `package.module:Class`. The fields of
the class are settings. Every installed distribution has its short names in its plugin; the plugin
of this package is `anytime_jax.builtin_plugin`.

To import a class runs the code of its module, so a class is imported only from a trusted package.
Packages of installed plugins (`anytime_jax.plugins`), this one among them, are always trusted. So
are packages that the user's own configuration or command line names. Packages that a run directory,
a checkpoint or an exported model names are not, unless the caller passes them as `trust`.
"""

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from anytime_jax import plugins
from anytime_jax.checks import reject, require
from anytime_jax.errors import InputError, describe_failure, nearest, within

Trust = Collection[str] | Literal["everything"]
"""Packages or modules whose classes may be imported; installed plugins always are."""

NOBODY: Trust = ()
EVERY_PACKAGE: Trust = "everything"

_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind and its settings as they were written, before the clock reads their times.

    Attributes:
      name: short name of the kind, or `package.module:Class`.
      cls: dataclass of the kind.
      values: all settings of the kind by name.
      times: names of the settings that may be times.
    """

    name: str
    cls: Any
    values: Mapping[str, Any] = dataclasses.field(hash=False)
    times: tuple[str, ...] = ()

    def build(self, **changes: Any) -> Any:
        """Returns an instance; `changes` replace settings."""
        with explain_errors([self.cls.__module__], but=ValueError):
            return self.cls(**{**self.values, **changes})

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the kind by name, without settings that are None."""
        return {name: value for name, value in self.values.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Kinds:
    """The kinds of one part of a run.

    Attributes:
      part: the part, as plugins call it.
      base: the class or protocol of which each kind is a subclass.
      default: the kind where none is named; None if one has to be.
      has_times: whether fields may be text such as "4x". If so, reading returns a `Kind`, and
        `resolve` makes the instance later, when there is a clock.
      setting: name of the setting that names the kind, for messages.
    """

    part: str
    base: Any
    default: str | None = None
    has_times: bool = False
    setting: str = "kind"

    @property
    def classes(self) -> dict[str, Any]:
        """The dataclasses with a short name, by that name."""
        return {name: self.find(name, NOBODY) for name in plugins.kinds(self.part)}

    def find(self, name: Any, trust: Trust) -> Any:
        """Returns the dataclass with a name.

        Raises an InputError if there is no such class, or if its package is not trusted.
        """
        places = plugins.kinds(self.part)
        allowed = f'one of {", ".join(places)}, or a class as "package.module:Class"'
        if name is None:
            raise InputError(f"it is missing: give {allowed}", self.setting)
        match = _CLASS.fullmatch(places.get(name, name)) if isinstance(name, str) else None
        if match is None:
            reject(self.setting, name, allowed + nearest(name, places))
        module, attribute = match.groups()
        if not is_trusted(module, trust):
            package = module.partition(".")[0]
            raise InputError(
                f"it is a class of the package {package}, whose code would be run: if you trust "
                f"it, give --trust={package}, in Python trust=[{package!r}]",
                self.setting,
                name,
            )
        with within(self.setting):
            cls = _import_class(module, attribute)
        is_kind = (
            isinstance(cls, type)
            and dataclasses.is_dataclass(cls)
            and cls.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
            and issubclass(cls, self.base)
            and not inspect.isabstract(cls)
        )
        base = f"{self.base.__module__}:{self.base.__name__}"
        require(is_kind, self.setting, name, f"a frozen dataclass with all that {base} asks for")
        return cls

    def name_of(self, cls: Any) -> str:
        """Returns the name under which `find` gives a class."""

        def is_at(place: str) -> bool:
            module, _, attribute = place.partition(":")
            return getattr(sys.modules.get(module), attribute, None) is cls

        short = [name for name, place in plugins.kinds(self.part).items() if is_at(place)]
        packages = itertools.accumulate(cls.__module__.split("."), "{}.{}".format)
        places = [f"{x}:{cls.__name__}" for x in packages]
        return next((x for x in (*short, *filter(is_at, places))), places[-1])

    def to_dict(self, value: Any) -> dict[str, Any]:
        """Returns the settings of a kind or of an instance, its `kind` first."""
        if isinstance(value, Kind):
            return {"kind": value.name, **value.settings}
        fields = [x.name for x in dataclasses.fields(value) if x.init]
        settings = {name: getattr(value, name) for name in fields}
        settings = {name: x for name, x in settings.items() if x is not None}
        return {"kind": self.name_of(type(value)), **settings}


def is_trusted(module: str, trust: Trust) -> bool:
    """Whether a module may be imported."""
    if isinstance(trust, str):
        return trust == EVERY_PACKAGE
    return any(module == x or module.startswith(f"{x}.") for x in (*plugins.installed(), *trust))


@contextlib.contextmanager
def explain_errors(modules: Collection[str], but: Any = InputError) -> Iterator[None]:
    """Turns an error of code that uses these modules into an InputError with the file and line.

    Errors of the types `but` are passed on. So are all errors if every module belongs to an
    installed plugin.
    """
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:  # such code can raise anything
        packages = {x.partition(".")[0] for x in modules} - {*plugins.installed()}
        if not packages:
            raise

        def is_theirs(frame: types.FrameType) -> bool:
            return frame.f_globals.get("__name__", "").partition(".")[0] in packages

        failure = describe_failure(error, is_theirs)
        raise InputError(f"{failure}: correct it (--debug shows more)") from error


def _import_class(module: str, attribute: str) -> Any:
    """Returns a class; raises an InputError whatever its module raises."""
    # The console script does not have the working directory on the path, where a user's file is.
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    sys.path += [here] * added
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module is code: it can raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"{module}:{attribute} cannot be imported ({reason}): correct the name, or the code of "
            f"{module}; a file of your own has to be in the working directory or on the Python path"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
