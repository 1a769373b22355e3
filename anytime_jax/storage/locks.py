"""Locks of runs and preparations on a disk, which end with the process that holds them.

`filelock` locks a file, and the kernel releases it even after a kill. A bucket has no locks, so
nothing is locked there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from anytime_jax.errors import InputError, InUseError
from anytime_jax.storage.buckets import is_remote

_SECONDS = 0.3  # time limit of a wait: `is_held` holds a lock for an instant


def check(path: Path, name: str) -> None:
    """Raises an InputError that begins with `name` if what is at a path cannot be a lock."""
    with contextlib.suppress(OSError):  # there is none, or to lock it says what is wrong
        if not (is_remote(path) or stat.S_ISREG(os.lstat(path).st_mode)):
            raise InputError(
                f"{name}: {path} is not a file that can be locked: remove it, or choose another "
                "directory"
            )


@contextlib.contextmanager
def hold(path: Path, name: str) -> Iterator[None]:
    """Holds the lock of a file until the block or the process ends, even if it is killed.

    Raises an InputError that begins with `name` if another process has the lock, or if the file
    cannot be locked, such as a symbolic link.
    """
    if is_remote(path):
        yield
        return
    check(path, name)
    lock = filelock.FileLock(path, timeout=_SECONDS, thread_local=False)
    try:
        lock.acquire()
        process = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n"
        path.write_text(process, encoding="utf-8")
    except filelock.Timeout as error:
        raise InUseError(name, holder(path)) from error
    except OSError as error:
        advice = "remove it"
        if error.errno == errno.EROFS:
            advice = "let it be written"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free space on that disk"
        raise InputError(
            f"{name}: {path} cannot be locked ({error.strerror or error}): {advice}, or choose "
            "another directory"
        ) from error
    try:
        yield
    finally:
        lock.release()


def holder(path: Path) -> str:
    """Returns process id, host and time of whoever locked a file last, "" if nobody did."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""


def is_held(path: Path) -> bool | None:
    """Returns whether any process holds the lock of a file, which need not be writable.

    In a bucket, where nothing is locked, nobody can tell: the answer is None.
    """
    if is_remote(path):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # the file does not exist, or is not a lock
        return False
    try:
        # filelock would take the lock exclusively; several processes may check it at the same time.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return False
    finally:
        os.close(descriptor)
    return False
