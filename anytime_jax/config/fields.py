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
    require_word,
)
from anytime_jax.errors import InputError

_TYPES = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "True or False",
    tuple: "a tuple such as (6.25, 25.0)",
}
T = TypeVar("T")


class Allowed(NamedTuple):
    """Allowed values of a setting: a description, and a check that raises a ValueError."""

    text: str
    check: Callable[[str, Any], None] = lambda name, value: None


ANY = Allowed("")
FRACTION = Allowed("a fraction from 0 to 1", require_fraction)
POSITIVE = Allowed("above 0", require_positive)
WORD = Allowed("printable characters", require_word)
DIRECTORY = Allowed("a directory", require_directory)
POINT = Allowed("a point")  # parsed by the clock


def count(least: int = 0) -> Allowed:
    """Allows whole numbers from `least` to 2^31 - 1."""
    return Allowed(f"from {least}", functools.partial(require_count, least=least))


def allow(text: str, condition: Callable[[Any], Any]) -> Allowed:
    """Allows the values that satisfy a condition."""
    return Allowed(text, lambda name, value: require(condition(value), name, value, text))


def or_empty(allowed: Allowed) -> Allowed:
    """Allows empty text too."""

    def check(name: str, value: str) -> None:
        if value:
            allowed.check(name, value)

    return Allowed(f"{allowed.text}, or empty", check)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Declaration of a setting, apart from its name and type.

    Attributes:
      meaning: text for the documentation.
      allowed: allowed values, where the type leaves a choice.
      kinds: the group's `kind` values that require the setting; empty for all.
      identity: whether it is an identity setting, which a resume may not change.
      branch: whether a branch "inherits" it from its trunk, may change it if `branch.change` lists
        it ("named"), or may always change it ("free").
      per_run: whether runs of a fleet may differ in it.
      variant: whether a study compares runs that differ in it, instead of treating them as
        replicates or parts of one curve.
    """

    meaning: str
    allowed: Allowed
    kinds: tuple[str, ...] = ()
    identity: bool = True
    branch: Literal["inherits", "named", "free"] = "inherits"
    per_run: bool = False
    variant: bool = True


def setting(meaning: str, allowed: Allowed = ANY, **facts: Any) -> Any:
    """Declares a field as a setting, or as a group of settings.

    `facts` are other attributes of `Setting`; settings of a group inherit its facts by default.
    """
    return dataclasses.field(metadata={"setting": _Declaration(meaning, allowed, facts)})


class _Declaration(NamedTuple):
    meaning: str
    allowed: Allowed
    facts: Mapping[str, Any]


class Group:
    """Base class of frozen dataclasses of settings, which are checked on construction."""

    def __post_init__(self) -> None:
        types = _types(type(self))
        for name, declaration in _declared(type(self)).items():
            value = getattr(self, name)
            if value is None:  # not a setting of this kind
                continue
            if typing.get_origin(types[name]) is Literal:
                require_choice(name, value, typing.get_args(types[name]))
            declaration.allowed.check(name, value)
        self._check()

    def _check(self) -> None:
        """Raises a ValueError if settings of the group do not fit each other."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as nested dictionaries; the inverse of `read`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return {
            name: value.to_dict() if isinstance(value, Group) else value
            for name, value in values.items()
            if value is not None
        }


def _declared(cls: type) -> dict[str, _Declaration]:
    return {x.name: x.metadata["setting"] for x in dataclasses.fields(cls) if x.metadata}


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """Returns the type of every field, without the None of optional ones."""
    hints = typing.get_type_hints(cls)
    return {field.name: _without_none(hints[field.name]) for field in dataclasses.fields(cls)}


def _without_none(hint: Any) -> Any:
    alternatives = typing.get_args(hint)
    if type(None) not in alternatives:
        return hint
    return next(kind for kind in alternatives if kind is not type(None))


def declarations(
    cls: type[Group], prefix: str = "", **facts: Any
) -> Iterator[tuple[str, Any, Setting]]:
    """Yields the dotted name, type and declaration of every setting, including nested groups."""
    for name, (meaning, allowed, own) in _declared(cls).items():
        kind, all_facts = _types(cls)[name], {**facts, **own}
        if isinstance(kind, type) and issubclass(kind, Group):
            yield from declarations(kind, f"{prefix}{name}.", **all_facts)
        else:
            yield f"{prefix}{name}", kind, Setting(meaning, allowed, **all_facts)


def read(cls: type[T], values: Any, path: str = "config") -> T:
    """Returns a dataclass from nested dictionaries, which must have exactly its settings.

    `cls` may be any dataclass, and `path` is its name in messages. An InputError states the
    setting, its value and the allowed values.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"{path} = {format_value(values)} is not allowed: it must be a group of settings"
        )
    types, declared = _types(cls), _declared(cls)
    names, hint = list(types), ""
    if any(x.facts.get("kinds") for x in declared.values()):
        kind = _typed(values, "kind", types["kind"], path)
        with errors_named(path, InputError):
            require_choice("kind", kind, typing.get_args(types["kind"]))
        names = [x for x in names if kind in (declared[x].facts.get("kinds") or (kind,))]
        hint = f"the {path.rpartition('.')[2]} {kind!r} takes {', '.join(names)}"
    _check_names(values, names, path, hint)
    fields: dict[str, Any] = dict.fromkeys(types)
    for name in names:
        if dataclasses.is_dataclass(types[name]):
            fields[name] = read(types[name], values[name], f"{path}.{name}")
        else:
            fields[name] = _typed(values, name, types[name], path)
    with errors_named(path, InputError):
        return cls(**fields)


def _check_names(values: Mapping[str, Any], names: Sequence[str], path: str, hint: str) -> None:
    for name in values:
        if name not in names:
            is_plain = isinstance(name, str) and re.fullmatch(r"\w{1,60}", name)
            full = f"{path}.{name}" if is_plain else f"{path}: {format_value(name)}"
            raise InputError(f"{full} is not a setting: {hint or nearest(str(name), names)}")
    for name in names:
        if name not in values:
            hint = hint or "every setting is written out (configs/base.py has them all)"
            raise InputError(f"{path}.{name} is missing: {hint}")


def _typed(values: Mapping[str, Any], name: str, kind: Any, path: str) -> Any:
    """Returns a value as the declared type; converts int to float and list to tuple."""
    if name not in values:
        _check_names(values, [*values, name], path, "")
    value = values[name]
    kind = str if typing.get_origin(kind) is Literal else kind
    if kind is float and type(value) is int and is_number(value):
        value = float(value)
    if kind is tuple:
        value = _tuples(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        allowed = f"is not allowed: it must be {_TYPES[kind]}"
        raise InputError(f"{path}.{name} = {format_value(value)} {allowed}")
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def errors_named(path: str, error_type: type[ValueError] = ValueError) -> Iterator[None]:
    """Prefixes the messages of ValueErrors with the name of a group or a setting."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        names_setting = re.match(r"[a-z_0-9.]+( =|:)", str(error))
        raise error_type(f"{path}{'.' if names_setting else ': '}{error}") from error


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Returns a hint for an unknown name; allowed names may be dotted."""
    last = {full.rpartition(".")[2]: full for full in allowed}
    near = difflib.get_close_matches(name, allowed, n=1) or [
        last[part] for part in difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    ]
    if near:
        return f"did you mean {near[0]}?"
    return "allowed: " + ", ".join(allowed) if len(allowed) < 12 else "configs/base.py has them all"


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
