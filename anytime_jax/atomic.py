"""Files that are complete or absent, whatever kills their writer, and a place to put them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], work: Path | None = None) -> Iterator[Path]:
    """Gives a temporary path to write, and renames it to `path` when the block succeeds.

    Args:
      path: the file to create or replace.
      work: folder for the temporary file, on the same filesystem; by default that of `path`.

    Yields:
      The temporary path. Its name holds the process id, so that a worker that outlives a killed
      run cannot write into the file of the run that took over.
    """
    path = Path(path)
    temporary = (work or path.parent) / f"{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Makes a directory, if it is not there, and tries whether files can be written into it.

    Raises:
      OSError: if it cannot be made, or nothing can be written.
    """
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        pass
