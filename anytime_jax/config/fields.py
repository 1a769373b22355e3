"""Settings as fields of frozen dataclasses: their declaration and their strict reading.

A setting is declared once, as a field made by `setting`. Everything else derives from that:

    @dataclasses.dataclass(frozen=True)
    class EvalConfig(Group):
        every: str = setting("distance between evaluations", POINT)
        tokens: int = setting("tokens of the validation split", count(1))

    read(EvalConfig, {"every": "1x", "tokens": 4096})
"""

import contextlib
import dataclasses
import difflib
import functools
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from anytime_jax.checks import (
    format_value,
    is_number,
    require,
    require_choice,
    require_count,
    require_directory,
    require_fraction,
    require_positive,
)
from anytime_jax.errors import InputError

_TYPES = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "True or False",
    tuple: "a tuple, in parentheses",
}
T = TypeVar("T")


class Allowed(NamedTuple):
    """Allowed values of a setting: a description, and a check that raises a ValueError.

    Without a check, the value is checked where it is parsed.
    """

    text: str
    check: Callable[[str, Any], None] = lambda name, value: None


ANY = Allowed("")
FRACTION = Allowed("a fraction from 0 to 1", require_fraction)
POSITIVE = Allowed("above 0", require_positive)
DIRECTORY = Allowed("a directory", require_directory)
POINT = Allowed("a point")  # parsed by `clock`


def count(least: int = 0) -> Allowed:
    """Allows whole numbers from `least` to 2^31 - 1."""
    return Allowed(f"from {least}", functools.partial(require_count, least=least))


def allow(text: str, condition: Callable[[Any], Any]) -> Allowed:
    """Allows the values that satisfy a condition."""
    return Allowed(text, lambda name, value: require(condition(value), name, value, text))


WORD = allow(
    "up to 200 printable characters",
    lambda text: text.strip() and text.isprintable() and len(text) <= 200,
)


def or_empty(allowed: Allowed) -> Allowed:
    """Allows empty text too."""
    return Allowed(
        f"{allowed.text}, or empty",
        lambda name, value: allowed.check(name, value) if value else None,
    )


@dataclasses.dataclass(frozen=True)
class Setting:
    """Declaration of a setting.

    Attributes:
      type: type of its values.
      meaning: text for the documentation.
      allowed: allowed values, where the type leaves a choice.
      kinds: the group's `kind` values that require the setting; empty for all.
      default: value where none is given, as in files from before the setting existed; None for a
        setting that must be written out.
      identity: whether it is an identity setting, which a resume may not change.
      branch: whether a branch "inherits" it from its trunk, may change it if `branch.change` lists
        it ("named"), or may always change it ("free").
      per_run: whether runs of a fleet may differ in it.
      variant: whether a study compares runs that differ in it, instead of treating them as
        replicates or parts of one curve.
    """

    type: Any
    meaning: str
    allowed: Allowed
    kinds: tuple[str, ...] = ()
    default: Any = None
    identity: bool = True
    branch: Literal["inherits", "named", "free"] = "inherits"
    per_run: bool = False
    variant: bool = True

    @property
    def type_text(self) -> str:
        """The type as help and documentation name it."""
        kind, words = _kind_and_words(self.type)
        name = "text" if kind is str else kind.__name__
        return f"{name} or text" if words and kind is not str else name

    @property
    def values_text(self) -> str:
        """The allowed values as help and documentation name them; empty where any is."""
        kind, words = _kind_and_words(self.type)
        numbers = [] if kind is str and words else [self.allowed.text]
        return ", ".join([*filter(None, numbers), *(f'"{word}"' for word in words)])


def setting(meaning: str, allowed: Allowed = ANY, **facts: Any) -> Any:
    """Declares a field as a setting, or as a group of settings.

    `facts` are other attributes of `Setting`; settings of a group inherit its facts by default.
    """
    return dataclasses.field(metadata={"meaning": meaning, "allowed": allowed, **facts})


@dataclasses.dataclass(frozen=True)
class Group:
    """Base class of frozen dataclasses of settings, which are checked on construction."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:  # a setting of another kind
                continue
            kind, words = _kind_and_words(_type(field))
            if kind is str and words:
                require_choice(field.name, value, words)
            if value not in words:
                field.metadata["allowed"].check(field.name, value)
        self._check()

    def _check(self) -> None:
        """Raises a ValueError if settings of the group do not fit each other."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as nested dictionaries; the inverse of `read`."""
        return dataclasses.asdict(
            self, dict_factory=lambda items: {name: x for name, x in items if x is not None}
        )


def _type(field: dataclasses.Field[Any]) -> Any:
    """Returns the type of a field, without the None of an optional one."""
    alternatives = typing.get_args(field.type)
    return alternatives[0] if type(None) in alternatives else field.type


def _kind_and_words(declared: Any) -> tuple[Any, tuple[str, ...]]:
    """Splits a type: `Literal["a", "b"]` is str with words, `int | Literal["all"]` int with one."""
    if typing.get_origin(declared) is typing.Union:
        kind, literal = typing.get_args(declared)
        return kind, typing.get_args(literal)
    words = typing.get_args(declared)
    return (str, words) if words else (declared, ())


def declarations(cls: Any, prefix: str = "", **facts: Any) -> dict[str, Setting]:
    """Returns the declaration of every setting by dotted name, including nested groups."""
    settings: dict[str, Setting] = {}
    for field in dataclasses.fields(cls):
        name, own = f"{prefix}{field.name}", {**facts, **field.metadata}
        if dataclasses.is_dataclass(_type(field)):
            settings |= declarations(_type(field), f"{name}.", **own)
        else:
            settings[name] = Setting(_type(field), **own)
    return settings


def read(cls: type[T], values: Any) -> T:
    """Returns a dataclass from nested dictionaries, which must have exactly its settings.

    `cls` may be any dataclass. An InputError states the setting, its value and the allowed values.
    """
    try:
        return _read(cls, "config", values)
    except ValueError as error:
        raise InputError(str(error)) from error


def _read(kind: Any, name: str, value: Any) -> Any:
    """Returns a value as a declared type; converts int to float and list to tuple."""
    if dataclasses.is_dataclass(kind):
        require(isinstance(value, Mapping), name, value, "a group of settings")
        with errors_named(name):
            return _read_group(kind, value)
    kind, words = _kind_and_words(kind)
    if isinstance(value, str) and value in words:
        return value
    if kind is float and type(value) is int and is_number(value):
        value = float(value)
    if kind is tuple:
        value = _tuples(value)
    is_bool = isinstance(value, bool)
    is_kind = isinstance(value, kind) and is_bool == (kind is bool)
    if kind is str and words:
        require_choice(name, value, words)
    require(is_kind, name, value, ", or ".join((_TYPES[kind], *words)))
    return value


def _read_group(cls: Any, values: Mapping[str, Any]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    defaults = {name: field.metadata.get("default") for name, field in fields.items()}
    values = {**{name: x for name, x in defaults.items() if x is not None}, **values}
    names, hint = list(fields), ""
    if "kind" in fields and "kind" in values:
        kind = _read(_type(fields["kind"]), "kind", values["kind"])
        names = [x for x in names if kind in fields[x].metadata.get("kinds", (kind,))]
        hint = f"kind = {kind!r} takes {', '.join(names)}"
    for name in values:
        if name not in names:
            is_plain = isinstance(name, str) and re.fullmatch("[a-z_0-9]{1,60}", name)
            shown = name if is_plain else format_value(name)
            raise ValueError(f"{shown} is not a setting: {hint or nearest(str(name), names)}")
    for name in names:
        if name not in values:
            hint = hint or "every setting is written out (configs/base.py has them all)"
            raise ValueError(f"{name} is missing: {hint}")
    settings = {name: _read(_type(fields[name]), name, values[name]) for name in names}
    return cls(**{**dict.fromkeys(fields), **settings})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def errors_named(path: str) -> Iterator[None]:
    """Prefixes the messages of ValueErrors with the name of a group or a setting."""
    try:
        yield
    except ValueError as error:
        names_setting = re.match(r"[a-z_0-9.]+( =|:| is (missing|not a setting):)", str(error))
        raise ValueError(f"{path}{'.' if names_setting else ': '}{error}") from error


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Returns a hint for an unknown name; allowed names may be dotted."""
    last = {full.rpartition(".")[2]: full for full in allowed}
    near = difflib.get_close_matches(name, allowed, n=1) or [
        last[part] for part in difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    ]
    if near:
        return f"did you mean {near[0]}?"
    return "allowed: " + ", ".join(allowed) if len(allowed) < 12 else "--help-settings lists all"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name, with tuples as lists, as in JSON."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _lists(value)
    return flat


def _lists(value: Any) -> Any:
    return [_lists(x) for x in value] if isinstance(value, tuple | list) else value
