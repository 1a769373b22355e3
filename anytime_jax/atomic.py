"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.paths import bucket_errors, is_remote, storage_path, upload


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str] | Path, work: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write, and renames it to `path` if the block succeeds.

    A file of a bucket is uploaded from a temporary one on the local disk.

    A reader sees the old file or the new one, never a part. The temporary name holds the process
    id, so that a worker that outlives a killed start cannot write into the file of the next one.

    Args:
      path: the file to create or replace.
      work: folder for the temporary file, on the same filesystem; by default that of `path`.
    """
    path = storage_path(path)
    if is_remote(path):
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory, path.name)
            upload(Path(directory, path.name), path)
        return
    temporary = (work or path.parent) / f"{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_writable_directory(path: Path, setting: str) -> None:
    """Creates a directory if it does not exist, and writes a temporary file to test it.

    Raises:
      InputError: if it cannot be created or written to; `setting`, as written, is in the message.
    """
    try:
        if is_remote(path):
            probe = path / f".{uuid.uuid4()}"
            probe.write_bytes(b"")
            probe.unlink()
            return
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, *bucket_errors()) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{setting} cannot be written to ({reason}): choose another directory"
        ) from error
