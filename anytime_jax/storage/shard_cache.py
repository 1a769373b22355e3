"""Cache of dataset files of a bucket on the local disk, below a limit of its size.

Windows are read in a random order, so that each batch needs every file: a cache that evicted the
files of a large dataset would download all of it again and again. Files are therefore copied until
the limit, those of other datasets are evicted first, and of the rest the windows are read from the
bucket, one request each.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.paths import bucket_errors, cache_directory, read_range

LIMIT = "ANYTIME_JAX_CACHE_GB"  # environment variable: the limit in units of 10^9 bytes
_DEFAULT_GIGABYTES = 50.0
_DOWNLOADS = 2  # at a time, beside the reads of windows
_CHUNK_BYTES = 8_000_000
_ABANDONED_SECONDS = 3600.0  # after which a download that was killed is removed
_PART = ".part"
_requested: set[Path] = set()  # copies that this process has asked for
_guard = threading.Lock()


class CachedFile:
    """A file of a bucket, read from the bucket until it is copied to the local disk."""

    def __init__(self, path: Path, size: int, checksum: int):
        """Starts the copy in the background; `checksum` tells apart files of the same path."""
        self._path = path
        folder = hashlib.sha256(str(path.parent).encode()).hexdigest()[:16]
        self._copy = cache_directory() / "shards" / folder / f"{path.name}-{checksum:08x}"
        if self._copy.exists():
            self._copy.touch()  # used last
            return
        limit = _limit_bytes()
        with _guard:
            if size <= limit and self._copy not in _requested:
                _requested.add(self._copy)
                _downloads().put((path, size, self._copy, limit))

    def read(self, start: int, stop: int) -> bytes:
        """Reads bytes `start` to `stop`; raises an OSError, or an error of `bucket_errors`."""
        with contextlib.suppress(FileNotFoundError), self._copy.open("rb") as file:
            return os.pread(file.fileno(), stop - start, start)
        return read_range(self._path, start, stop)

    def discard_copy(self) -> bool:
        """Removes the local copy, if there is one: what was read may be damaged there alone."""
        self._copy.unlink(missing_ok=True)
        return True


def check_limit() -> None:
    """Raises an InputError if the limit of the cache is not a number."""
    _limit_bytes()


def _limit_bytes() -> int:
    text = os.environ.get(LIMIT, str(_DEFAULT_GIGABYTES))
    try:
        limit = float(text)
        if not 0 <= limit < 1e9:
            raise ValueError("out of range")
    except ValueError as error:
        raise InputError(
            f"{LIMIT}={text!r} in the environment: give the size of the cache in GB, from 0"
        ) from error
    return int(limit * 1e9)


@functools.cache
def _downloads() -> queue.SimpleQueue[tuple[Path, int, Path, int]]:
    """Returns the queue of downloads, which threads do that end with the process."""
    pending: queue.SimpleQueue[tuple[Path, int, Path, int]] = queue.SimpleQueue()

    def download() -> None:
        while True:
            _download(*pending.get())

    for _ in range(_DOWNLOADS):
        threading.Thread(target=download, name="shards", daemon=True).start()
    return pending


def _download(path: Path, size: int, copy: Path, limit: int) -> None:
    """Copies a file, if the limit allows; the reads of windows report what fails here."""
    # Processes in containers have the same id, also as one that was killed.
    part = copy.with_name(f"{copy.name}.{uuid.uuid4()}{_PART}")
    try:
        if not _reserve(part, size, limit):
            return
        with part.open("r+b") as file:
            for start in range(0, size, _CHUNK_BYTES):
                file.write(read_range(path, start, min(start + _CHUNK_BYTES, size)))
        part.replace(copy)
    except (OSError, *bucket_errors()):
        part.unlink(missing_ok=True)


def _reserve(part: Path, size: int, limit: int) -> bool:
    """Creates a file of a size; returns False if the limit leaves no room for it."""
    root = part.parent.parent
    part.parent.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock"):
        files = {}
        for file in root.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # a part that has become a copy
                files[file] = file.stat()
        for file, status in list(files.items()):
            if file.suffix == _PART and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                file.unlink(missing_ok=True)
                del files[file]
        total = sum(status.st_size for status in files.values())
        others = [file for file in files if file.parent != part.parent and file.suffix != _PART]
        if total - sum(files[file].st_size for file in others) + size > limit:
            return False
        for file in sorted(others, key=lambda file: files[file].st_mtime):
            if total + size <= limit:
                break
            file.unlink(missing_ok=True)
            total -= files[file].st_size
        with part.open("xb") as reserved:
            reserved.truncate(size)
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
