"""Growing text files: appended on a local disk, uploaded whole to a bucket at an interval."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Protocol

from anytime_jax.storage import conditional_writes
from anytime_jax.storage.buckets import is_remote, upload
from anytime_jax.storage.failures import storage_errors
from anytime_jax.storage.files import list_files

UPLOAD_SECONDS = 10.0  # a bucket allows one write per second to a file


class GrowingFile(Protocol):
    """A new file: `write` appends text; `sync` returns once all of it is stored."""

    @property
    def size(self) -> int:
        """Characters written."""
        ...

    def write(self, text: str) -> None:
        """Appends text."""
        ...

    def sync(self) -> None:
        """Returns once all text is stored; raises an OSError if it cannot be."""
        ...

    def close(self) -> None:
        """Stores the remaining text and closes the file."""
        ...


def create_growing_file(path: Path, text: str) -> GrowingFile:
    """Creates a file that begins with a text; raises a FileExistsError if there is one."""
    return _BucketFile(path, text) if is_remote(path) else _LocalFile(path, text)


class _LocalFile:
    def __init__(self, path: Path, text: str):
        self._file = path.open("x", encoding="utf-8")
        self.size = 0
        self.write(text)

    def write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
        self.size += len(text)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self._file.close()


class _BucketFile:
    def __init__(self, path: Path, text: str):
        self._path, self._text, self._uploaded = path, text, len(text)
        self._generation = conditional_writes.create(path, text.encode("utf-8"))
        self._uploading = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._upload_at_interval, daemon=True).start()

    @property
    def size(self) -> int:
        return len(self._text)

    def write(self, text: str) -> None:
        self._text += text

    def sync(self) -> None:
        with self._uploading:
            if len(text := self._text) == self._uploaded:
                return
            content = text.encode("utf-8")
            generation = conditional_writes.replace(self._path, content, self._generation)
            if generation is None:
                raise FileExistsError(f"{self._path} was written by another process")
            self._generation, self._uploaded = generation, len(text)

    def close(self) -> None:
        self._closed.set()
        self.sync()

    def _upload_at_interval(self) -> None:
        while not self._closed.wait(UPLOAD_SECONDS):
            with contextlib.suppress(OSError):  # `sync` raises it
                self.sync()


class GrowingDirectory:
    """Directory for a library that appends to local files, such as TensorBoard.

    `local` is the path for the library: on a disk, the directory itself.
    """

    def __init__(self, path: Path):
        self._path = path
        self._temporary = tempfile.TemporaryDirectory() if is_remote(path) else None
        self.local = Path(self._temporary.name) if self._temporary else path

    def upload(self) -> None:
        """Copies the files to the bucket as they are, if it can be reached."""
        if self._temporary is not None:
            with contextlib.suppress(*storage_errors()):
                for file in list_files(self.local):
                    upload(file, self._path / str(file.relative_to(self.local)))
