"""Atomic writes of files and directories: readers see the old or the new one, never a part."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from anytime_jax.errors import InputError
from anytime_jax.storage.buckets import is_remote, upload
from anytime_jax.storage.files import file_sizes, list_files
from anytime_jax.storage.paths import storage_path


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str] | Path, work: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write, and renames it to `path` if the block succeeds.

    For a bucket, the temporary file is on the local disk and is then uploaded. The temporary name
    holds the process id, so that a worker that outlives a killed start cannot write into the file
    of the next one.

    Args:
      path: the file to create or replace.
      work: folder for the temporary file, on the same filesystem; by default the folder of `path`.
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


@contextlib.contextmanager
def atomic_directory(directory: Path, last: str, check: Callable[[], None]) -> Iterator[Path]:
    """Yields a temporary local directory, which replaces `directory` if the block succeeds.

    `check` is called before and after the block; it raises an error if `directory` may not be
    replaced. In a bucket, the file named `last` is uploaded after all others, so readers treat a
    directory without it as incomplete. Raises an InputError if the temporary directory cannot be
    created.
    """
    check()
    if is_remote(directory):
        with tempfile.TemporaryDirectory() as part:
            yield Path(part)
            check()  # the directory may have been created in the meantime
            _upload(Path(part), directory, last)
        return
    directory = directory.resolve()  # resolves links, "." and ".."
    part = directory.with_name(f"{directory.name}.{os.getpid()}.part")
    old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"{directory} cannot be created ({error.strerror}): choose another directory"
        ) from error
    with contextlib.ExitStack() as locks:
        locks.enter_context(_locked(part))
        try:
            yield part
            check()
            if directory.exists():
                locks.enter_context(_locked(directory))
                directory.rename(old)
            part.rename(directory)
        except BaseException:
            if old.exists():
                old.rename(directory)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(directory: Path) -> list[Path]:
    """Removes what killed calls of `atomic_directory` left; returns what it removed.

    Directories of running processes are locked and stay. If a kill came just as an earlier
    directory was replaced, the earlier one is put back.
    """
    if is_remote(directory):
        return []
    directory, removed = directory.resolve(), []
    for path in sorted(directory.parent.glob(f"{glob.escape(directory.name)}.*")):
        number, _, kind = path.name.removeprefix(f"{directory.name}.").partition(".")
        if not (number.isdecimal() and kind in ("part", "old") and path.is_dir()):
            continue
        with _locked(path) as is_unused:
            if not is_unused:
                continue
            if kind == "old" and not directory.exists():
                path.rename(directory)
            else:
                shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _upload(part: Path, directory: Path, last: str) -> None:
    """Uploads files to a bucket, where they replace all earlier ones of a directory."""
    (directory / last).unlink(missing_ok=True)
    names = {file.relative_to(part).as_posix() for file in list_files(part)}
    for file in [*sorted(names - {last}), last]:
        upload(part / file, directory / file)
    for file in file_sizes(directory):
        if file not in names:
            (directory / file).unlink()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Locks a directory until the block or the process ends; yields whether it was unlocked.

    A file system that cannot lock directories, such as NFS, yields False.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            is_unused = filelock.lock_descriptor(descriptor, blocking=False)
        except OSError:
            is_unused = False
        yield is_unused
    finally:
        os.close(descriptor)
