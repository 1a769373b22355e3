"""Conditional writes in buckets: create a file, or replace it if nobody else has changed it.

The server compares the generation of the file, a number that every write changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_ANSWER_SECONDS = 900.0  # for how long TensorStore retries, as in a save


class Version(NamedTuple):
    """Content of a file, None if it does not exist, and its generation."""

    content: bytes | None
    generation: bytes


def read_version(path: Path) -> Version:
    """Reads a file in a bucket; raises an OSError if the bucket cannot be reached."""
    result = _call(path, lambda store: store.read(""))
    return Version(result.value if result.state == "value" else None, result.stamp.generation)


def replace(
    path: Path, content: bytes | None, generation: bytes, seconds: float | None = None
) -> bytes | None:
    """Writes a file in a bucket, or deletes it, if it still has a generation.

    Returns the new generation, or None if the file has changed. A write whose answer was lost is
    repeated by TensorStore: it has not failed if the file has its content. Raises an OSError if
    there is no answer within some seconds.
    """
    stamp = _call(path, lambda store: store.write("", content, if_equal=generation), seconds)
    if stamp.generation:
        return stamp.generation
    now = read_version(path)
    return now.generation if now.content == content else None


def create(path: Path, content: bytes) -> bytes:
    """Creates a file in a bucket and returns its generation.

    Raises a FileExistsError if there is one with other content.
    """
    version = read_version(path)
    if version.content is None and (generation := replace(path, content, version.generation)):
        return generation
    version = read_version(path)
    if version.content != content:
        raise FileExistsError(f"{path} exists")
    return version.generation


def _call(path: Path, call: Callable[[Any], Any], seconds: float | None = None) -> Any:
    bucket, _, key = str(path).removeprefix("gs://").partition("/")
    import tensorstore  # takes a quarter of a second, which commands on a local disk need not wait

    seconds = _ANSWER_SECONDS if seconds is None else seconds
    spec = {"driver": "gcs", "bucket": bucket, "path": key}
    try:
        store = tensorstore.KvStore.open(spec).result(timeout=seconds)
        return call(store).result(timeout=seconds)
    except TimeoutError as error:
        raise OSError(f"{path}: no answer for {seconds:g} s") from error
    except ValueError as error:  # TensorStore raises this for any server error
        raise OSError(f"{path}: {' '.join(str(error).split())[:200]}") from error
