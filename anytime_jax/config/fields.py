"""Strict reading of nested settings: every error names the setting in full."""

import contextlib
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from anytime_jax.checks import format_value, is_number
from anytime_jax.errors import InputError

_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "True or False",
    tuple: "a tuple such as (6.25, 25.0)",
}


# What may change between starts of one run. All else is the run's identity. The data set counts by
# its fingerprint, not by where it lies, and repeating it changes no sample of the first pass; the
# mesh and the ways to compute the same thing move the rounding of sums only; and a run that met a
# bad update may be told to pass over it. The trunk of a branch counts by the digest of the
# checkpoint that the branch began from, initial weights by that of their files. How often the
# averages move and where they are kept reaches no weight.
NOT_IDENTITY = (
    "name", "run_dir", "initial_weights", "stop", "averages", "average_every", "average_memory",
    "microbatches", "mesh", "guard", "eval", "checkpoint", "log",
    "data.path", "data.builtin_megabytes", "data.repeat",
    "model.attention", "model.layer_loop", "model.remat",
    "branch.from_run", "branch.data", "branch.change",
)  # fmt: skip


class Section:
    """A group of settings, read strictly."""

    def __init__(self, path: str, given: Any):
        """Wraps the settings found at `path`.

        Raises:
          InputError: if they are not a group.
        """
        if not isinstance(given, Mapping):
            raise InputError(
                f"{path} = {format_value(given)} is not allowed: it must be a group of settings"
            )
        self._path = path
        self._given = given

    def section(self, name: str) -> "Section":
        """Returns the group of settings under a name."""
        return Section(f"{self._path}.{name}", self._given[name])

    def check_names(self, allowed: Sequence[str], hint: str = "") -> None:
        """Raises an InputError, which ends in the hint, unless exactly these settings are there."""
        for name in self._given:
            if name not in allowed:
                hint = hint or nearest(str(name), allowed)
                plain = isinstance(name, str) and re.fullmatch(r"\w{1,60}", name)
                full = f"{self._path}.{name}" if plain else f"{self._path}: {format_value(name)}"
                raise InputError(f"{full} is not a setting: {hint}")
        for name in allowed:
            if name not in self._given:
                hint = hint or "every setting is written out (configs/base.py has them all)"
                raise InputError(f"{self._path}.{name} is missing: {hint}")

    def typed(self, name: str, kind: type) -> Any:
        """Returns a setting, or raises an InputError if it is of another type."""
        if name not in self._given:
            self.check_names([*self._given, name])
        value = self._given[name]
        if kind is float and type(value) is int and is_number(value):
            value = float(value)
        if kind is tuple and isinstance(value, list):
            value = tuple(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(
                f"{self._path}.{name} = {format_value(value)} is not allowed: it must be "
                f"{_KINDS[kind]}"
            )
        return value

    def build(self, cls: type) -> Any:
        """Returns a dataclass made of this group, which must hold its fields and no others."""
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        self.check_names(names)
        values = {}
        for name in names:
            is_choice = typing.get_origin(hints[name]) is Literal
            values[name] = self.typed(name, str if is_choice else hints[name])
        with self.errors():
            return cls(**values)

    @contextlib.contextmanager
    def errors(self, setting: str = "") -> Iterator[None]:
        """Turns a ValueError raised inside into an InputError that names this group.

        Args:
          setting: the one setting that is read inside, if it is one.
        """
        try:
            yield
        except InputError:
            raise
        except ValueError as error:
            path = f"{self._path}.{setting}: " if setting else self._path
            named = re.match(r"[a-z_0-9.]+ = ", str(error))
            raise InputError(f"{path}{'' if setting else '.' if named else ': '}{error}") from error


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Returns a hint for a name that is not among the allowed ones, which may be dotted."""
    last = {full.rpartition(".")[2]: full for full in allowed}
    near = difflib.get_close_matches(name, allowed, n=1) or [
        last[part] for part in difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    ]
    if near:
        return f"did you mean {near[0]}?"
    return "allowed: " + ", ".join(allowed) if len(allowed) < 12 else "configs/base.py has them all"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every setting of a nested group with its dotted name, tuples as lists."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _lists(value)


def _lists(value: Any) -> Any:
    """A value as JSON has it: lists for tuples, inside too."""
    return [_lists(each) for each in value] if isinstance(value, tuple | list) else value


def without(tree: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of a nested group, flat, but for those named and all in groups named."""
    return {
        name: value
        for name, value in flatten(tree)
        if not any(name == out or name.startswith(f"{out}.") for out in names)
    }
