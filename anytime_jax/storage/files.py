"""Operations on files and directories that path methods do not do alike on disks and in buckets."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError
from anytime_jax.storage import conditional_writes
from anytime_jax.storage.buckets import file_system, is_remote
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
    return _type(path) == "directory" if is_remote(path) else path.is_dir()


def is_regular_file(path: Path) -> bool:
    """Returns whether a file exists; unlike `is_file`, raises an error if that cannot be known."""
    return _type(path) == "file" if is_remote(path) else path.is_file()


def _type(path: Path) -> str | None:
    files, key = file_system(path)
    try:
        return files.info(key)["type"]
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


def create_file(path: Path, content: bytes, partial: Path) -> None:
    """Creates a file with its content, or not at all.

    On a disk the file is written as `partial` first, which a kill may leave behind. Raises a
    FileExistsError if the file exists with other content.
    """
    if is_remote(path):
        conditional_writes.create(path, content)
        return
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() != content:
            raise FileExistsError(f"{path} exists")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # mode "x" follows no symbolic link
        file.write(content)
    partial.replace(path)


def list_files(path: Path) -> list[Path]:
    """Returns the files below a directory, which another process may be deleting, in order."""
    if is_remote(path):
        files, key = file_system(path)  # a bucket needs one request per thousand files
        names = (str(name) for name in files.find(key))
        return sorted((path / name.removeprefix(f"{key}/") for name in names), key=str)
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
        return sorted(folder.rglob(name), key=str)
    return sorted(Path(x) for x in walk(folder) if os.path.basename(x) == name)


def file_sizes(directory: Path) -> dict[str, int]:
    """Returns the size in bytes of every regular file below a directory, by its relative name."""
    if is_remote(directory):
        files, key = file_system(directory)
        found = files.find(key, detail=True).items()
        return {str(name).removeprefix(f"{key}/"): x["size"] for name, x in found}
    return {
        file.relative_to(directory).as_posix(): file.stat().st_size
        for file in list_files(directory)
        if file.is_file()
    }


def remove_directory(path: Path, missing_ok: bool = False) -> None:
    """Removes a directory and everything in it."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=missing_ok)
    elif not missing_ok or path.exists():
        files, key = file_system(path)
        files.rm(key, recursive=True)


def rename_directory(path: Path, target: Path) -> None:
    """Renames a directory; in a bucket, copies its files there and removes it."""
    if not is_remote(path):
        path.rename(target)
        return
    files, key = file_system(path)
    for file in list_files(path):
        copy = target / str(file).removeprefix(f"{path}/")
        files.cp_file(file_system(file)[1], file_system(copy)[1])
    files.rm(key, recursive=True)


def can_rename_directories(path: Path) -> bool:
    """Returns whether a rename is atomic, so that a directory appears complete under its name."""
    return not is_remote(path)


def directory_id(path: Path) -> int | None:
    """Returns a number that tells a directory from a later one at the same path, or None.

    None means that there is no directory. In a bucket, where a directory is only a part of file
    names, the number is 0.
    """
    if is_remote(path):
        return 0
    try:
        return path.stat().st_ino if path.is_dir() else None
    except OSError:
        return None


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
