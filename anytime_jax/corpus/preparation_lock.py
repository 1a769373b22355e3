"""Work directory of a preparation: its locks, and the settings that its processes have in common.

A process that prepares the whole dataset holds `lock` exclusively. Shares hold it together, and
each holds another lock of its own. The kernel releases a lock when its process ends. In a bucket,
where a lock is a lease, only processes that do the same exclude each other: others write the same
files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from anytime_jax.data.dataset import METADATA_NAME, SPLITS, VOCABULARY_NAME, WORK_NAME
from anytime_jax.errors import InputError
from anytime_jax.json_files import read_json, write_json
from anytime_jax.storage import lease
from anytime_jax.storage.paths import is_remote, list_files, remove_directory


@dataclasses.dataclass(frozen=True)
class Share:
    """Share I of N of a preparation: every N-th part, from part I on."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parses "I/N"; raises InputError for anything else."""
        match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"share {text!r} is not I/N with I from 0 to N - 1, such as 0/64")
        return cls(int(match[1]), int(match[2]))


class WorkDirectory(NamedTuple):
    """Directories of a preparation; `scratch` is for temporary files of this process alone."""

    output: Path
    results: Path
    scratch: Path


@contextlib.contextmanager
def lock_preparation(
    output: Path, settings: dict[str, Any], share: Share | None = None
) -> Iterator[WorkDirectory]:
    """Locks a dataset's directory while this process prepares the dataset or a share of it.

    After an InputError before any part is finished, the directory is as it was. Once the dataset is
    complete, the work directory is deleted.
    """
    is_new = not output.exists()
    work = _make_work_directory(output)
    scratch = work / ("all" if share is None else f"share-{share.index}-of-{share.count}")
    directories = WorkDirectory(output, work / "parts", scratch)
    lock = _lock_bucket if is_remote(output) else _lock_disk
    with lock(directories, share) as is_alone:
        previous = read_json(work / "settings.json")
        if previous is not None:
            check_settings(output, "is half", previous, settings)
        else:
            write_json(work / "settings.json", settings, scratch)
        try:
            yield directories
        except InputError:
            # Unless something is finished, or others are at work.
            if not list_files(directories.results) and is_alone():
                remove_directory(work, missing_ok=True)
                (output / VOCABULARY_NAME).unlink(missing_ok=True)
                for split in SPLITS:
                    remove_directory(output / split, missing_ok=True)
                if is_new:
                    with contextlib.suppress(OSError):  # not empty
                        output.rmdir()
            raise
    # After the locks are closed: over NFS, a directory with open files cannot be removed.
    if (output / METADATA_NAME).is_file():
        remove_directory(work, missing_ok=True)


@contextlib.contextmanager
def _lock_disk(work: WorkDirectory, share: Share | None) -> Iterator[Callable[[], bool]]:
    """Locks a work directory on a disk; yields a function that says whether no other holds it."""
    with contextlib.ExitStack() as locks:
        lock = locks.enter_context(open(work.scratch.with_name("lock"), "a+"))
        _lock(lock, fcntl.LOCK_EX if share is None else fcntl.LOCK_SH, work.output)
        if share is not None:
            own = locks.enter_context(open(f"{work.scratch}.lock", "a+"))
            _lock(own, fcntl.LOCK_EX, f"share {share} of {work.output}")
        shutil.rmtree(work.scratch, ignore_errors=True)  # temporary files of a killed process
        for directory in (work.results, work.scratch):
            directory.mkdir(exist_ok=True)
        yield lambda: _try_lock(lock, fcntl.LOCK_EX)


@contextlib.contextmanager
def _lock_bucket(work: WorkDirectory, share: Share | None) -> Iterator[Callable[[], bool]]:
    """As `_lock_disk`, in a bucket."""
    own = work.scratch.with_name(f"{work.scratch.name}.lock")
    with lease.hold(own, lambda text: print(text, file=sys.stderr, flush=True)):
        yield lambda: [file.name for file in own.parent.glob("*.lock")] == [own.name]


def check_settings(
    output: Path, state: str, previous: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raises InputError if `output`, which "is half" or "holds a dataset", has other settings."""
    differences = [
        f"{key} {previous.get(key)!r} (asked: {settings.get(key)!r})"
        for key in sorted({*previous, *settings})
        if previous.get(key) != settings.get(key)
    ]
    if differences:
        raise InputError(
            f"{output} {state} prepared with {', '.join(differences)}; give another output, or "
            "delete that directory to prepare it again"
        )


def _make_work_directory(output: Path) -> Path:
    work = output / WORK_NAME
    if output.is_dir() and any(output.iterdir()) and not work.is_dir():
        raise InputError(f"{output} holds other files; give a new or empty directory as output")
    if is_remote(work):  # where a directory exists while it has files
        return work
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file is in the way, or a directory is read-only
        raise InputError(
            f"{output} cannot be created ({error.strerror}); give another output"
        ) from error
    return work


def _lock(file: TextIO, mode: int, name: object) -> None:
    if not _try_lock(file, mode):
        raise InputError(f"{name} is being prepared by another process; wait for it or stop it")


def _try_lock(file: TextIO, mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
        # A process that has ended since may have deleted the file, and others locked a new one.
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise InputError(
            f"{file.name} cannot be locked ({error.strerror}); give an output on a file system "
            "that has flock"
        ) from error
