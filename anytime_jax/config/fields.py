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

Whether a resume or a branch may change a setting is added by `setting`.
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from anytime_jax.checks import is_number, plain_number, reject, require
from anytime_jax.config.kinds import NOBODY, Kind, Kinds, Trust, explain_errors, is_time
from anytime_jax.config.other_names import ABSENT, NAMES
from anytime_jax.errors import InputError, format_value, raise_all, within

_PLAIN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    tuple: "a tuple, in parentheses, or a dictionary",
}
BY_NAME = "by name"  # of a tuple of pairs that is given as a dictionary
_TIME = 'a time in updates, or a point in a run such as "12500 steps", "3.3B tokens" or "4x"'
_SHOWN = "[A-Za-z_][A-Za-z_0-9.]{0,80}"  # names that a message shows as they are
T = TypeVar("T")


class Facts(NamedTuple):
    """Rules for changing a setting: on a resume, and in a branch.

    Attributes:
      identity: whether a resume has to have the same value.
      branch: whether a branch "inherits" the value from its trunk, may have another if
        `branch.change` lists the setting ("named"), or may always have another ("free").
    """

    identity: bool = True
    branch: Literal["inherits", "named", "free"] = "inherits"


def setting(
    default: Any = dataclasses.MISSING,
    *,
    kinds: Kinds | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    **facts: Any,
) -> Any:
    """Declares a field with facts of `Facts`; for a group, they hold for all of its settings.

    A default that is a class is a group of settings. `kinds` makes the field one of these kinds,
    for whose settings `each` has further facts by name.
    """
    metadata = {"facts": facts, "kinds": kinds, "each": each or {}}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Declaration(NamedTuple):
    """A setting as documentation lists it.

    Attributes:
      type: annotation of its field.
      meaning: text of the docstring of its class.
      default: value where none is given; `dataclasses.MISSING` if one has to be.
      facts: what a run does with it.
      kinds: names of the kinds that have it, in a group that has kinds.
    """

    type: Any
    meaning: str
    default: Any
    facts: Facts
    kinds: tuple[str, ...] = ()

    @property
    def type_text(self) -> str:
        """The type as help and documentation name it."""
        plain, words = _alternatives(self.type)
        if is_time(self.type):
            names = ["int", "point"]
        elif _is_by_name(self.type):
            names = ["dictionary"]
        else:
            names = [x.__name__.replace("str", "text") for x in plain]
        return " or ".join([*names, *(f'"{word}"' for word in words)])

    @property
    def default_text(self) -> str:
        """The default as help and documentation name it; empty where there is none."""
        return self.format(None if self.default is dataclasses.MISSING else self.default)

    def format(self, value: Any) -> str:
        """Returns a value as help and documentation show it; empty for None."""
        if value is None:
            return ""
        return repr(dict(value) if _is_by_name(self.type) else value).replace("'", '"')


@functools.cache
def types_of(cls: Any) -> dict[str, Any]:
    """Returns the annotation of every field of a dataclass by name."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # annotations are code
        where = f"the class {cls.__module__}:{cls.__name__}"
        raise ValueError(f"the types of {where} cannot be resolved: {error}") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _alternatives(hint: Any) -> tuple[list[type], tuple[str, ...]]:
    """The plain types and the literal words of an annotation."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    plain, words = [], []
    for part in typing.get_args(hint) if is_union else (hint,):
        if typing.get_origin(part) is typing.Annotated:
            part = typing.get_args(part)[0]
        if typing.get_origin(part) is Literal:
            words += typing.get_args(part)
        elif part is not type(None):
            plain.append(typing.get_origin(part) or part)
    return plain, tuple(words)


def _allowed(hint: Any) -> str:
    plain, words = _alternatives(hint)
    texts = [_TIME] if is_time(hint) else [_PLAIN[x] for x in plain if x in _PLAIN]
    if _is_by_name(hint):
        texts = ['a dictionary, such as {"web": ...}']
    choices = " or ".join(f'"{word}"' for word in words)
    return ", or ".join(filter(None, (*texts, choices)))


def read(cls: type[T], values: Any, trust: Trust = NOBODY) -> T:
    """Returns a dataclass from nested dictionaries of its settings.

    `trust` says which packages may be imported for a kind that is named `package.module:Class`.
    Raises an InputError for each wrong setting.
    """
    require(isinstance(values, Mapping), "config", values, "a group of settings")
    with within("config"):
        return cls(**_read_fields(cls, values, trust, cls))


def _read_fields(
    cls: Any, values: Mapping[str, Any], trust: Trust, root: Any, group: str = "", kind: str = ""
) -> dict[str, Any]:
    """Returns the arguments of a dataclass, a group of `root`, each as its declared type."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    errors = [
        _unknown(str(name), root, group, str(name), list(fields))
        for name in values
        if name not in fields
    ]
    arguments = {}
    for name, field in fields.items():
        kinds, is_group = field.metadata.get("kinds"), dataclasses.is_dataclass(types_of(cls)[name])
        if name in values or kinds or is_group:
            value = values.get(name, {})
            try:
                arguments[name] = _read_value(types_of(cls)[name], kinds, name, value, trust, root)
            except InputError as error:
                errors.append(error)
        elif field.default is field.default_factory is dataclasses.MISSING:
            errors.append(InputError(_why_missing(cls, name, values, group, kind), name))
    raise_all(errors)
    return arguments


def _why_missing(cls: Any, name: str, values: Mapping[str, Any], group: str, kind: str) -> str:
    """Says that a setting is missing, and with which others a kind can be given."""
    allowed, meaning = _allowed(types_of(cls)[name]), meanings(cls).get(name, "")
    allowed += f" ({meaning})" if meaning else ""
    if not kind:
        return f"it is missing, and has no default: give {allowed}"
    required = [
        x.name
        for x in dataclasses.fields(cls)
        if x.init and x.default is x.default_factory is dataclasses.MISSING
    ]
    options = [f"--config.{group}.kind={kind}"]
    for x in required:
        example = "4x" if is_time(types_of(cls)[x]) else "VALUE"
        options += [] if x in values else [f"--config.{group}.{x}={example}"]
    return f"it is missing: kind = {kind!r} needs it, {allowed}; as in {' '.join(options)}"


def _read_value(
    hint: Any, kinds: Kinds | None, name: str, value: Any, trust: Trust, root: Any
) -> Any:
    if kinds is None and not dataclasses.is_dataclass(hint):
        return _convert(hint, name, value)
    require(isinstance(value, Mapping), name, value, "a group of settings")
    with within(name):
        if kinds is None:
            return cast(Any, hint)(**_read_fields(hint, value, trust, root, name))
        rest = dict(value)
        cls = kinds.find(rest.pop("kind", kinds.default), trust)
        _check_types(cls)
        kind = kinds.name_of(cls)
        arguments = _read_fields(cls, rest, trust, root, name, kind)
        with explain_errors([cls.__module__]):
            defaults = {x.name: _default(x) for x in dataclasses.fields(cls) if x.init}
        read_kind = Kind(kind, cls, {**defaults, **arguments})
        return read_kind if kinds.has_times else read_kind.build()


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


@functools.cache
def _check_types(cls: Any) -> None:
    """Raises a ValueError if a field of a kind cannot be a setting."""
    where, hints = f"the class {cls.__module__}:{cls.__name__}", types_of(cls)
    if "kind" in hints:
        raise ValueError(f"{where} has a field kind, which names the class: rename the field")
    for name, hint in hints.items():
        if not all(x in _PLAIN for x in _alternatives(hint)[0]):
            raise ValueError(
                f"{where} has the field {name}, whose type is no setting's: give it one of "
                f"{', '.join(x.__name__ for x in _PLAIN)}, a Literal of text or schedules.Time"
            )


def _convert(hint: Any, name: str, value: Any) -> Any:
    """Returns a value as a declared type: int becomes float, list tuple, and NumPy's Python's."""
    plain, words = _alternatives(hint)
    value = plain_number(value)
    if isinstance(value, str) and value in words:
        return value
    if value is None and type(None) in typing.get_args(hint):
        return None
    if is_time(hint) and type(value) in (int, str):
        return value
    if float in plain and int not in plain and type(value) is int and is_number(value):
        return float(value)
    if tuple in plain and isinstance(value, list | tuple | Mapping):
        return _tuples(value)
    require(type(value) in plain and not is_time(hint), name, value, _allowed(hint))
    return value


def _tuples(value: Any) -> Any:
    """Returns a value with tuples in place of lists, and of pairs in place of dictionaries."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return tuple(_tuples(x) for x in value)
    return plain_number(value)


def _is_by_name(hint: Any) -> bool:
    return BY_NAME in getattr(hint, "__metadata__", ())


@contextlib.contextmanager
def _reading_literal() -> Iterator[None]:
    """Passes over text that is no literal, and over warnings of Python's parser."""
    errors = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
    with contextlib.suppress(*errors), warnings.catch_warnings(action="ignore"):
        yield


def _name_given_twice(text: str) -> str:
    """Returns a key that a dictionary has twice, of which Python would take one; or ''."""
    with _reading_literal():
        for node in ast.walk(ast.parse(text, mode="eval")):
            keys = [ast.unparse(x) for x in node.keys if x] if isinstance(node, ast.Dict) else []
            if twice := {x for x in keys if keys.count(x) > 1}:
                return min(twice)
    return ""


def parse(hint: Any, name: str, text: str) -> Any:
    """Returns the value of a declared type that a text on the command line stands for.

    Raises an InputError that names the setting.
    """
    plain, words = _alternatives(hint)
    if "{" in text and (twice := _name_given_twice(text)):
        reject(name, text, f"names given once, not {twice} twice")
    if text not in words and tuple in plain:
        with _reading_literal():
            if isinstance(value := ast.literal_eval(text), list | tuple | dict):
                return _tuples(value)
    if text in words or plain == [str]:
        return str(text)
    if text == "None" and type(None) in typing.get_args(hint):
        return None
    if is_time(hint):
        return int(text) if text.isdecimal() else str(text)
    for kind in plain:
        with contextlib.suppress(ValueError, OverflowError):
            if kind is bool and text in ("True", "False", "true", "false"):
                return text.lower() == "true"
            if kind is int:
                number = float(text) if "e" in text.lower() else int(text)
                if number == int(number):
                    return int(number)
            if kind is float:
                return float(text)
    if str in plain:
        return str(text)
    return reject(name, text, _allowed(hint))


def change(cls: Any, values: dict[str, Any], changes: Mapping[str, Any], trust: Trust) -> None:
    """Changes settings in nested dictionaries by dotted names, in place.

    A value that is a `Text` is parsed as its setting's type. A new kind keeps the given settings
    that it has too, and drops the others. Raises an InputError for each name that is no setting and
    each text that is no value.
    """
    kinds_first = sorted(changes, key=lambda name: not name.endswith(".kind"))
    errors = []
    with within("config"):
        for name in kinds_first:
            try:
                _change_one(cls, values, name, changes[name], trust)
            except InputError as error:
                errors.append(error)
        raise_all(errors)


class Text(str):
    """A value as it was typed."""


def _change_one(cls: Any, values: dict[str, Any], name: str, value: Any, trust: Trust) -> None:
    *groups, last = name.split(".")
    kinds: Kinds | None = None
    root = cls
    for depth, group in enumerate(groups):
        field, hint = _field(cls, group), types_of(cls).get(group)
        kinds = field.metadata.get("kinds") if field else None
        if not kinds and not dataclasses.is_dataclass(hint):
            rest = ".".join([*groups[depth:], last])
            raise _unknown(name, root, ".".join(groups[:depth]), rest, list(types_of(cls)))
        values = values.setdefault(group, {})
        require(isinstance(values, dict), group, values, "a group of settings")
        if not kinds:
            cls = hint
        elif name != f"{group}.kind":
            with within(group):
                cls = kinds.find(values.get("kind", kinds.default), trust)
    if kinds and last == "kind":
        with within(groups[0]):
            kept = types_of(kinds.find(str(value), trust))
        for other in [x for x in values if x not in kept]:
            del values[other]
        values["kind"] = str(value)
        return
    field = _field(cls, last)
    if field is None:
        of_kind = f" of {kinds.name_of(cls)}" if kinds else ""
        raise _unknown(name, root, ".".join(groups), last, list(types_of(cls)), of_kind)
    hint = types_of(cls)[last]
    if field.metadata.get("kinds") or dataclasses.is_dataclass(hint):
        example = "kind" if field.metadata.get("kinds") else next(iter(types_of(hint)))
        raise InputError(f"it is a group: change one of its settings, as {name}.{example}", name)
    values[last] = parse(hint, name, value) if isinstance(value, Text) else value


def _field(cls: Any, name: str) -> dataclasses.Field[Any] | None:
    return next((x for x in dataclasses.fields(cls) if x.name == name and x.init), None)


def _unknown(
    setting: str, root: Any, group: str, name: str, allowed: Sequence[str], of_kind: str = ""
) -> InputError:
    """The error of a setting whose name in a group of `root` is none."""
    shown = setting if re.fullmatch(_SHOWN, setting) else format_value(setting)
    hint = _hint(root, group, name, allowed)
    return InputError(f"there is no such setting{of_kind}: {hint}", shown)


def _hint(root: Any, group: str, name: str, allowed: Sequence[str]) -> str:
    """Returns what an unknown name in a group of `root` may mean.

    It may be of another kind, a word for a setting of another trainer, of another group, or
    misspelt.
    """
    prefix, last, known = f"{group}." if group else "", name.rpartition(".")[2], declarations(root)
    if (own := known.get(f"{prefix}{name}")) and own.kinds:
        return f"only with kind = {' or '.join(map(repr, own.kinds))}"
    word = last.lower()
    if absent := next((x for x, words in ABSENT.items() if word in words.split()), None):
        return absent
    meant = [x for x in known if word in NAMES.get(x, "").split() or x.rpartition(".")[2] == last]
    if meant:
        meaning = f" ({known[meant[0]].meaning})" if len(meant) == 1 else ""
        return f"did you mean {' or '.join(meant)}{meaning}?"
    return nearest(name.partition(".")[0], [f"{prefix}{x}" for x in allowed])


def to_dict(settings: Any, cls: Any = None) -> dict[str, Any]:
    """Returns settings as nested dictionaries, the inverse of `read`.

    `cls` is a base class whose fields alone are settings, by default the class of `settings`.
    """
    values = {}
    for field in dataclasses.fields(cls or settings):
        value, kinds = getattr(settings, field.name), field.metadata.get("kinds")
        if not field.init or value is None:
            continue
        if kinds:
            values[field.name] = kinds.to_dict(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            values[field.name] = to_dict(value)
        else:
            values[field.name] = value
    return values


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


def declarations(cls: Any, prefix: str = "", **facts: Any) -> dict[str, Declaration]:
    """Returns the declaration of every setting by dotted name.

    In a group that has kinds, these are the settings of all kinds with a short name.
    """
    declared: dict[str, Declaration] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        name, hint = f"{prefix}{field.name}", types_of(cls)[field.name]
        own = {**facts, **field.metadata.get("facts", {})}
        if field.metadata.get("kinds"):
            declared |= _kind_declarations(field, name, meanings(cls).get(field.name, ""), own)
        elif dataclasses.is_dataclass(hint):
            declared |= declarations(hint, f"{name}.", **own)
        else:
            meaning = meanings(cls).get(field.name, "")
            declared[name] = Declaration(hint, meaning, field.default, Facts(**own))
    return declared


def _kind_declarations(
    field: dataclasses.Field[Any], name: str, meaning: str, facts: dict[str, Any]
) -> dict[str, Declaration]:
    kinds, each = field.metadata["kinds"], field.metadata["each"]
    names = kinds.classes
    text = f"{meaning}: {', '.join(names)}, or a class as package.module:Class"
    named = dataclasses.MISSING if kinds.default is None else kinds.default
    own = Facts(**{**facts, **each.get("kind", {})})
    declared: dict[str, Declaration] = {}
    for kind, cls in names.items():
        for x, declaration in declarations(cls, **facts).items():
            shared = declared.get(x)
            with_facts = declaration.facts._replace(**each.get(x, {}))
            with_kind = (*(shared.kinds if shared else ()), kind)
            same = shared is None or shared.default == declaration.default
            default = declaration.default if same else dataclasses.MISSING
            first = shared or declaration
            declared[x] = first._replace(kinds=with_kind, facts=with_facts, default=default)
    for x, declaration in declared.items():
        if len(declaration.kinds) == len(names):
            declared[x] = declaration._replace(kinds=())
    declared = {"kind": Declaration(str, text, named, own), **declared}
    return {f"{name}.{x}": declaration for x, declaration in declared.items()}


def facts_of(settings: Any, cls: Any = None, prefix: str = "", **facts: Any) -> dict[str, Facts]:
    """Returns the facts of every setting of given settings, by dotted name.

    `cls` is a base class whose fields alone are settings, by default the class of `settings`.
    """
    found: dict[str, Facts] = {}
    for field in dataclasses.fields(cls or settings):
        if not field.init:
            continue
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        own = {**facts, **field.metadata.get("facts", {})}
        if field.metadata.get("kinds"):
            each = field.metadata["each"]
            kind = value.cls if isinstance(value, Kind) else type(value)
            declared = {x.name: x.metadata.get("facts", {}) for x in dataclasses.fields(kind)}
            for x in ("kind", *types_of(kind)):
                found[f"{name}.{x}"] = Facts(**{**own, **declared.get(x, {}), **each.get(x, {})})
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= facts_of(value, None, f"{name}.", **own)
        else:
            found[name] = Facts(**own)
    return found


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
