"""JSON files, written atomically, and digests of JSON values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anytime_jax.errors import format_value
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import read_failure, storage_errors
from anytime_jax.storage.files import is_regular_file


def parse_json(
    text: str | bytes, make_object: Callable[[list[tuple[str, Any]]], Any] = dict
) -> Any:
    """Parses JSON; raises a ValueError with a short message if it is damaged or nested too deeply.

    `make_object` makes an object of its pairs of a name and a value. The error never holds the
    text, as the `repr` of a UnicodeDecodeError would.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(text, object_pairs_hook=make_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error


def load_json(path: Path) -> Any:
    """Parses a JSON file; raises a ValueError as `parse_json`, or an OSError."""
    if path.exists() and not is_regular_file(path):
        raise ValueError("it is not a regular file")  # reading a pipe could wait forever
    return parse_json(path.read_bytes())


def read_json(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None if the file is missing or damaged.

    Raises an InputError if it cannot be read, a BucketError if its bucket is out of reach.
    """
    try:
        content = load_json(path)
    except (FileNotFoundError, ValueError):
        return None
    except storage_errors() as error:
        raise read_failure(path, error) from error
    return content if isinstance(content, dict) else None


def as_type(kind: Any, value: Any) -> Any:
    """Returns a JSON value as a type: an object as a dataclass of its names, a list as a tuple.

    The types are these, `Mapping[str, X]`, `X | Y`, str, int, float, None and Any, in one another.
    Names that are no field of the dataclass are left out. Raises a ValueError if a value is of
    another type, or if a field without a default is missing.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        fields = {name: x for name, x in typing.get_type_hints(kind).items() if name in value}
        try:
            return kind(**{name: as_type(x, value[name]) for name, x in fields.items()})  # pyright: ignore[reportCallIssue]
        except TypeError as error:
            raise ValueError(str(error)) from error
    if origin is Mapping and isinstance(value, dict):
        return {name: as_type(arguments[1], x) for name, x in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        return tuple(as_type(*x) for x in zip(kinds, value, strict=True))
    if origin is types.UnionType:
        for choice in arguments:
            try:
                return as_type(choice, value)
            except ValueError:
                continue
    elif type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{format_value(value)} is not {getattr(kind, '__name__', kind)}")


def write_json(path: Path, content: dict[str, Any], scratch: Path) -> None:
    """Writes a JSON object with sorted keys; the temporary file is in `scratch`."""
    with atomic_write(path, scratch) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def json_digest(content: Any) -> str:
    """Computes the SHA-256 of JSON values, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
