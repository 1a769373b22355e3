"""JSON files, written atomically, and digests of JSON values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def write_json(path: Path, content: dict[str, Any], scratch: Path) -> None:
    """Writes a JSON object with sorted keys; the temporary file is in `scratch`."""
    with atomic_write(path, scratch) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def json_digest(content: Any) -> str:
    """Computes the SHA-256 of JSON values, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
