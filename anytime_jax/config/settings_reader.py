"""Settings as fields of frozen dataclasses: strict reading, changes by name, and documentation.

A setting is declared once, as a field with a type and perhaps a default. Its meaning is in the
docstring of its class, under `Attributes:`, and its rules are in `__post_init__`:

    @dataclasses.dataclass(frozen=True)
    class Evaluation:
        '''Evaluation of the weights.

Attributes:
          every: distance between evaluations.
          tokens: tokens of the validation split; "all" for all of them.
        '''

        every: str = "1x"
        tokens: int | Literal["all"] = "all"

    read(Evaluation, {"tokens": 4096})

The types that a setting may have are the rows of `_TYPES`. A field that is declared by `setting`
also says whether a resume or a branch may change the setting (`Facts`).
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from anytime_jax.checks import plain_number, reject, require
from anytime_jax.config.kinds import EVERY_PACKAGE, NOBODY, Kind, Kinds, Trust
from anytime_jax.config.other_names import explain_unknown
from anytime_jax.errors import InputError, format_value, raise_all, within

_BY_NAME, _TIME = "by name", "time"  # marks of `ByName` and of `schedules.Time`
ByName = Annotated[tuple, _BY_NAME]
"""A dictionary, which the setting has as a tuple of pairs of a name and a value."""
_SHOWN = "[A-Za-z_][A-Za-z_0-9.]{0,80}"  # names that a message shows as they are
T = TypeVar("T")


class Facts(NamedTuple):
    """Rules for changing a setting: on a resume, and in a branch.

    Attributes:
      identity: whether a resume has to have the same value.
      branch: "inherits" if a branch must have the value of its trunk; "named" if it may have
        another value where `branch.change` lists the setting; "free" if it may always have another.
    """

    identity: bool = True
    branch: Literal["inherits", "named", "free"] = "inherits"


def setting(
    default: Any = dataclasses.MISSING,
    *,
    kinds: Kinds | None = None,
    kind_facts: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Any:
    """Declares a field with `facts`, which are fields of `Facts`.

    A default that is a class declares a group of settings, and the facts hold for all settings of
    the group. With `kinds`, the field is a group of one of these kinds, and `kind_facts` are
    further facts of the setting that names the kind.
    """
    metadata = {"facts": facts, "kinds": kinds, "kind_facts": kind_facts or {}}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# Types


class Text(str):
    """A value as it was typed on a command line; `read` converts it to the type of its setting."""


class _Type(NamedTuple):
    """A type that a setting may have.

    Attributes:
      name: what documentation calls it.
      allowed: what a message calls its values.
      given: the types of values that are accepted; subclasses of these types are not.
      convert: converts an accepted value; raises an error if this is not possible.
    """

    name: str
    allowed: str
    given: tuple[type, ...]
    convert: Callable[[Any], Any] = lambda value: value


def _tuples(value: Any) -> Any:
    """Returns a value with tuples in place of lists, and tuples of pairs in place of dicts."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return tuple(_tuples(x) for x in value)
    return _typed_values(value)[0] if isinstance(value, Text) else plain_number(value)


def _pairs(value: Any) -> Any:
    """Returns pairs of a name and a value; raises a ValueError for equal names or another value."""
    pairs = _tuples(value)
    ok = all(isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) for x in pairs)
    if not ok or len(dict(pairs)) < len(pairs):
        raise ValueError("no pairs of different names and their values")
    return pairs


_TUPLE = (tuple, list, dict)
_TYPES: dict[Any, _Type] = {
    int: _Type("int", "a whole number", (int,)),
    float: _Type("float", "a number", (float, int), float),
    str: _Type("text", "text", (str,)),
    bool: _Type("bool", "True or False", (bool,)),
    tuple: _Type("tuple", "a tuple, in parentheses with a comma, or a dictionary", _TUPLE, _tuples),
    _BY_NAME: _Type(
        "dictionary", 'a dictionary, such as {"web": ...} or {"8x": ...}', _TUPLE, _pairs
    ),
    _TIME: _Type(
        "int or point",
        'a time in updates, or a point in a run such as "12500 steps", "3.3B tokens" or "4x"',
        (int, str),
    ),
}


class SettingType(NamedTuple):
    """The type of a setting, read from an annotation.

    Attributes:
      types: the types of its values.
      words: texts that are values too.
      takes_none: whether None is a value.
    """

    types: tuple[_Type, ...]
    words: tuple[str, ...]
    takes_none: bool

    @property
    def allowed(self) -> str:
        """The values as a message names them."""
        words = " or ".join(f'"{word}"' for word in self.words)
        return ", or ".join(filter(None, (*(x.allowed for x in self.types), words)))

    def read(self, name: str, value: Any) -> Any:
        """Returns a value, converted to the type of the setting.

        Raises an InputError, which names the setting, for a value of another type.
        """
        for x in _typed_values(value) if isinstance(value, Text) else [plain_number(value)]:
            if (isinstance(x, str) and x in self.words) or (x is None and self.takes_none):
                return x
            for one in self.types:
                # An int may be too large for a float, and a tuple have no pairs.
                with contextlib.suppress(OverflowError, ValueError):
                    if type(x) in one.given:
                        return one.convert(x)
        return reject(name, value, self.allowed)


@functools.cache
def setting_type(hint: Any) -> SettingType:
    """Returns the type that an annotation means; raises a ValueError if no setting may have it."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if is_union else (hint,)
    found, words = [], []
    for part in parts:
        if typing.get_origin(part) is Literal:
            words += typing.get_args(part)
        elif part is not type(None):
            marks = getattr(part, "__metadata__", ())
            key = marks[0] if marks else typing.get_origin(part) or part
            if key not in _TYPES:
                names = ", ".join(x.__name__ for x in _TYPES if isinstance(x, type))
                raise ValueError(
                    f"{part} is the type of no setting: give one of {names}, a Literal of text or "
                    "schedules.Time"
                )
            found.append(_TYPES[key])
    return SettingType(tuple(found), tuple(words), type(None) in parts)


def _typed_values(text: str) -> list[Any]:
    """Returns the values that a text on the command line may stand for, the text itself last."""
    values: list[Any] = [str(text)]
    errors = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
    with contextlib.suppress(*errors), warnings.catch_warnings(action="ignore"):
        literal = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        if isinstance(literal, float) and literal.is_integer():  # 1e3
            values.insert(0, int(literal))
        if not isinstance(literal, str):
            values.insert(0, literal)
    return values


# Reading


class _Field(NamedTuple):
    """A field of a dataclass: a setting, or a group of settings, which may be of several kinds."""

    hint: Any
    default: Any
    is_required: bool
    kinds: Kinds | None
    facts: Mapping[str, Any]
    kind_facts: Mapping[str, Any]

    @property
    def is_group(self) -> bool:
        return self.kinds is not None or dataclasses.is_dataclass(self.hint)


@functools.cache
def _fields_of(cls: Any) -> dict[str, _Field]:
    """The fields that a caller may pass to a dataclass, by name."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # annotations are code
        where = f"the class {cls.__module__}:{cls.__name__}"
        raise ValueError(f"the types of {where} cannot be resolved: {error}") from error
    return {
        x.name: _Field(
            hints[x.name],
            x.default,
            x.default is x.default_factory is dataclasses.MISSING,
            x.metadata.get("kinds"),
            x.metadata.get("facts", {}),
            x.metadata.get("kind_facts", {}),
        )
        for x in dataclasses.fields(cls)
        if x.init
    }


def read(cls: type[T], values: Any, trust: Trust = NOBODY) -> T:
    """Returns a dataclass from nested dictionaries of its settings.

    `trust` says which packages may be imported for a kind that is named `package.module:Class`.
    Raises an InputError for each wrong setting.
    """
    require(isinstance(values, Mapping), "config", values, "a group of settings")
    with within("config"):
        return cls(**_Reader(cls, trust).arguments(cls, values))


def read_kind(kinds: Kinds, values: Mapping[str, Any], trust: Trust = NOBODY) -> Any:
    """Returns a kind from nested dictionaries of its `kind` and its settings, as `read` does."""
    return _Reader(None, trust).kind(kinds, values)


class _Reader(NamedTuple):
    """Reads the groups of a dataclass, the root, or a kind alone.

    `place` is the prefix of the names of a group's settings, such as "model.".
    """

    root: Any
    trust: Trust

    def arguments(self, cls: Any, values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """Returns the arguments of a group's dataclass, each as its declared type."""
        fields, arguments, errors = _fields_of(cls), {}, []
        for name in dict.fromkeys((*fields, *values)):
            try:
                if name not in fields:
                    raise_all(self._unknown(str(name), values[name], place, fields))
                elif name in values or fields[name].is_group:
                    arguments[name] = self._value(fields[name], name, values.get(name, {}), place)
                elif fields[name].is_required:
                    allowed, meaning = setting_type(fields[name].hint).allowed, meanings(cls)
                    text = f"{allowed} ({meaning[name]})" if name in meaning else allowed
                    raise InputError(f"it is missing: give {text}", name)
            except InputError as error:
                errors.append(error)
        raise_all(errors)
        return arguments

    def _value(self, field: _Field, name: str, value: Any, place: str) -> Any:
        if not field.is_group:
            return setting_type(field.hint).read(name, value)
        require(isinstance(value, Mapping), name, value, "a group of settings")
        with within(name):
            if field.kinds:
                return self.kind(field.kinds, value, f"{place}{name}.")
            return field.hint(**self.arguments(field.hint, value, f"{place}{name}."))

    def kind(self, kinds: Kinds, values: Mapping[str, Any], place: str = "") -> Any:
        """Returns one of the kinds from its settings."""
        rest = {name: value for name, value in values.items() if name != "kind"}
        cls = kinds.find(values.get("kind", kinds.default), self.trust)
        fields = _fields_of(cls)
        if "kind" in fields:
            raise ValueError(f"{cls.__name__} has a field kind, which names the class: rename it")
        types = {name: setting_type(field.hint).types for name, field in fields.items()}
        given = self.arguments(cls, rest, place)
        every = {name: given.get(name, field.default) for name, field in fields.items()}
        settings = {name: x for name, x in every.items() if x is not dataclasses.MISSING}
        times = tuple(name for name in settings if _TYPES[_TIME] in types[name])
        kind = Kind(kinds.name_of(cls), cls, settings, times)
        return kind if kinds.has_times else kind.build()

    def _unknown(
        self, name: str, value: Any, place: str, allowed: Collection[str]
    ) -> list[InputError]:
        """The errors of an unknown name, or of every name in an unknown group."""
        known = declarations(self.root) if self.root else {}
        names = flatten({name: value}) or [name]
        shown = {x: x if re.fullmatch(_SHOWN, x) else format_value(x) for x in names}
        reasons = {x: explain_unknown(f"{place}{x}", allowed, known) for x in names}
        return [InputError(reasons[x], shown[x]) for x in names]


def change(cls: Any, settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Changes settings in nested dictionaries by dotted names, in place, for `read` to check.

    After a change of the kind, settings that the new kind has as well stay; the others are dropped.
    """
    kinds = {f"{name}.kind": x.kinds for name, x in _fields_of(cls).items() if x.kinds}
    for name in sorted(changes, key=lambda name: name not in kinds):
        *groups, last = name.split(".")
        group = settings
        for x in groups:
            group = group.setdefault(x, {})
            with within("config"):
                require(isinstance(group, dict), name, changes[name], f"no part of {x}")
        if name in kinds:
            with contextlib.suppress(ValueError):  # of a kind that is none, `read` tells
                kept = _fields_of(kinds[name].find(changes[name], EVERY_PACKAGE))
                for other in group.keys() - kept.keys():
                    del group[other]
        group[last] = changes[name]


def to_dict(settings: Any, cls: Any = None) -> dict[str, Any]:
    """Returns settings as nested dictionaries, the inverse of `read`.

    Only the fields of `cls`, the class of `settings` or a base class, are settings.
    """
    values = {}
    for name, field in _fields_of(cls or type(settings)).items():
        value = getattr(settings, name)
        if field.kinds:
            values[name] = field.kinds.to_dict(value)
        elif value is not None:
            values[name] = to_dict(value) if field.is_group else value
    return values


# Documentation


class Declaration(NamedTuple):
    """A setting as documentation lists it.

    Attributes:
      hint: annotation of the field.
      meaning: text of the field in the docstring of the class.
      default: the default; `dataclasses.MISSING` for a setting that has to be given.
      facts: whether a resume or a branch may change the setting.
      kinds: names of the kinds that have the setting, in a group that has kinds.
    """

    hint: Any
    meaning: str
    default: Any
    facts: Facts
    kinds: tuple[str, ...] = ()

    @property
    def type_text(self) -> str:
        """The type as help and documentation name it."""
        types, words, _ = setting_type(self.hint)
        return " or ".join([*(x.name for x in types), *(f'"{word}"' for word in words)])

    @property
    def default_text(self) -> str:
        """The default as help and documentation name it; empty where there is none."""
        return self.format(None if self.default is dataclasses.MISSING else self.default)

    def format(self, value: Any) -> str:
        """Returns a value as help and documentation show it; empty for None."""
        if value is None:
            return ""
        is_by_name = _TYPES[_BY_NAME] in setting_type(self.hint).types
        shown = dict(value) if is_by_name and not isinstance(value, str) else value
        return repr(shown).replace("'", '"')


@functools.cache
def meanings(cls: Any) -> dict[str, str]:
    """Returns the text of every field in the section `Attributes:` of a class's docstring."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = inspect.cleandoc(base.__doc__ or "").split("\n")
        if "Attributes:" not in lines:
            continue
        name = ""
        for line in lines[lines.index("Attributes:") + 1 :]:
            if line and not line.startswith(" "):
                break
            match = re.match(r"  (\w+): (.*)", line)
            if match:
                name = match[1]
                found[name] = match[2]
            elif name and line:
                found[name] += " " + line.strip()
    return {name: text.rstrip(".") for name, text in found.items()}


def declarations(
    cls: Any, settings: Any = None, prefix: str = "", **facts: Any
) -> dict[str, Declaration]:
    """Returns the declaration of every setting by dotted name.

    In a group that has kinds, `settings` say which kind's settings are declared. Without
    `settings`, those of all kinds with a short name are declared.
    """
    declared: dict[str, Declaration] = {}
    for name, field in _fields_of(cls).items():
        meaning, own = meanings(cls).get(name, ""), {**facts, **field.facts}
        value = getattr(settings, name, None)
        if field.kinds:
            declared |= _kind_declarations(field, value, f"{prefix}{name}.", meaning, own)
        elif field.is_group:
            declared |= declarations(field.hint, value, f"{prefix}{name}.", **own)
        else:
            declared[f"{prefix}{name}"] = Declaration(
                field.hint, meaning, field.default, Facts(**own)
            )
    return declared


def _kind_declarations(
    field: _Field, value: Any, prefix: str, meaning: str, facts: Mapping[str, Any]
) -> dict[str, Declaration]:
    assert field.kinds is not None
    classes = field.kinds.classes if value is None else {"": getattr(value, "cls", type(value))}
    text = f"{meaning}: {', '.join(classes)}, or a class as package.module:Class"
    default = dataclasses.MISSING if field.kinds.default is None else field.kinds.default
    declared: dict[str, Declaration] = {}
    for kind, cls in classes.items():
        for name, one in declarations(cls, **facts).items():
            first = declared.get(name, one)
            same = first.default == one.default
            declared[name] = first._replace(
                kinds=(*first.kinds, kind), default=one.default if same else dataclasses.MISSING
            )
    of_all = [name for name, one in declared.items() if len(one.kinds) == len(classes)]
    declared |= {name: declared[name]._replace(kinds=()) for name in of_all}
    named = Declaration(str, text, default, Facts(**{**facts, **field.kind_facts}))
    return {f"{prefix}{name}": one for name, one in {"kind": named, **declared}.items()}


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
