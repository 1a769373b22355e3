"""Operations on files and directories that path methods do not do alike on disks and in buckets."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError
from anytime_jax.storage.buckets import file_system, is_remote, upload
from anytime_jax.storage.failures import storage_errors
from anytime_jax.storage.paths import absolute_path

# Reading a pipe or a terminal waits for a writer, possibly forever.
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def is_directory(path: Path) -> bool:
    """Returns whether a directory exists; raises an error if that cannot be known.

    In a bucket, the method `is_dir` returns False on every error.
    """
    return _is_remote_directory(path) is True if is_remote(path) else path.is_dir()


def is_regular_file(path: Path) -> bool:
    """Returns whether a file exists; unlike `is_file`, raises an error if that cannot be known."""
    return _is_remote_directory(path) is False if is_remote(path) else path.is_file()


def is_link(path: Path) -> bool:
    """Returns whether a path is a symbolic link, which a bucket does not have."""
    return not is_remote(path) and path.is_symlink()


def _is_remote_directory(path: Any) -> bool | None:
    """Returns whether a path in a bucket is a directory, None if there is nothing."""
    try:
        return path.stat().is_directory
    except FileNotFoundError:
        return None


def read_file(path: Path) -> bytes:
    """Reads a file; raises as `file_size`."""
    if not is_remote(path):
        file_size(path)
    return path.read_bytes()


def file_size(path: str | os.PathLike[str]) -> int:
    """Returns the size of a local file.

    Raises:
      InputError: it is a directory, a pipe, a socket or a device.
      OSError: it does not exist or is out of reach.
    """
    status = os.stat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise InputError(
            f"{path} is {_KINDS.get(kind, 'of an unknown kind')} where a file is expected; give a "
            "file, or leave it out"
        )
    return status.st_size


def check_files(path: Path) -> None:
    """Raises an InputError as `file_size` for a file, or for those below a directory.

    A missing file passes, and so do all files of a bucket.
    """
    if not is_remote(path):
        for file in list_files(path) if path.is_dir() else [path]:
            with contextlib.suppress(OSError):
                file_size(file)


def read_files(paths: Sequence[Path]) -> dict[Path, bytes]:
    """Returns the contents of the regular files among some paths, all of them in one store.

    Those of a bucket are read at the same time.
    """
    if not (paths and is_remote(paths[0])):
        return {path: path.read_bytes() for path in paths if path.is_file()}
    by_key = {file_system(path)[1]: path for path in paths}
    contents = file_system(paths[0])[0].cat(list(by_key))
    return {path: contents[key] for key, path in by_key.items()}


def list_files(path: Path) -> list[Path]:
    """Returns the files below a directory, which another process may be deleting, in order."""
    if is_remote(path):
        return sorted(path / name for name in file_sizes(path))
    # os.walk leaves out directories that disappear; `Path.rglob` raises an error.
    walk = os.walk(path)
    return sorted(Path(folder, name) for folder, _, names in walk for name in names)


def walk(
    root: str | os.PathLike[str], onerror: Callable[[OSError], object] | None = None
) -> Iterator[str]:
    """Yields the files below a local directory, also of linked directories; each of them once."""
    seen = {os.path.realpath(root)}
    for folder, folders, names in os.walk(root, onerror=onerror, followlinks=True):
        yield from (os.path.join(folder, name) for name in names)
        reals = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name, real in reals.items() if real not in seen]
        seen.update(reals.values())


def find_named(folder: Path, name: str) -> list[Path]:
    """Returns the files of a name below a directory, also of linked directories, in order."""
    if is_remote(folder):
        return [file for file in list_files(folder) if file.name == name]
    return sorted(Path(x) for x in walk(folder) if os.path.basename(x) == name)


def file_sizes(directory: Path) -> dict[str, int]:
    """Returns the size in bytes of every regular file below a directory, by its relative name."""
    return {name: size for name, (size, _) in file_versions(directory).items()}


def file_versions(directory: Path) -> dict[str, tuple[int, float]]:
    """Returns the size and the time of change of every regular file below a directory.

    The sizes are in bytes, the times in seconds since 1970. The path may be that of a file too.
    Files that another process is deleting may be left out.
    """
    if is_remote(directory):
        files, key = file_system(directory)  # one request for a thousand files
        return {
            str(name).removeprefix(f"{key}/"): (info["size"], info["mtime"].timestamp())
            for name, info in files.find(key, detail=True).items()
        }
    found = {}
    for file in list_files(directory) or [directory]:
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                name = file.relative_to(directory).as_posix()
                found[name] = status.st_size, status.st_mtime
    return found


def remove_directory(path: Any, missing_ok: bool = False) -> None:
    """Removes a directory and everything in it."""
    if is_remote(path):
        path.rmtree(missing_ok=missing_ok)
    else:
        shutil.rmtree(path, ignore_errors=missing_ok)


def can_rename_directories(path: Path) -> bool:
    """Returns whether a rename is atomic, so that a directory appears complete under its name."""
    return not is_remote(path)


def can_append(path: Path) -> bool:
    """Returns whether a file can grow; in a bucket, a file is written whole."""
    return not is_remote(path)


@contextlib.contextmanager
def local_directory(path: Path) -> Iterator[Path]:
    """Yields a directory for a library that writes on a disk: `path` itself if it is there.

    For a bucket the directory is temporary, and its files are copied at the end of the block.
    """
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        for file in list_files(Path(folder)):
            upload(file, path / file.relative_to(folder))


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
    except storage_errors() as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{setting} cannot be written to ({reason}): give another directory"
        ) from error


def free_bytes(directory: Path) -> float:
    """Returns the free bytes for a directory, which need not exist yet; infinity in a bucket."""
    return math.inf if is_remote(directory) else shutil.disk_usage(_existing(directory)).free


def describe_free(directory: Path) -> str:
    """Returns text about the disk's free space and inodes, both of which a file needs."""
    if is_remote(directory):
        return "any bytes"
    free = os.statvfs(_existing(directory)).f_favail
    return f"{free_bytes(directory):,} bytes and {free:,} inodes"


def _existing(directory: Path) -> Path:
    """Returns a directory, or the nearest one above it that exists."""
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def key_value_store(directory: Path) -> Any:
    """Returns the files of a directory as TensorStore describes them."""
    path = f"{absolute_path(directory)}/"
    return path if is_remote(directory) else {"driver": "file", "path": path}
