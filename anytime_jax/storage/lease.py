"""Lease: the lock of a directory in a bucket, where no lock ends with its holder.

The holder rewrites a file at an interval, on condition that nobody else wrote it. A process that
sees the file unchanged for several intervals, by its own clock, may take the lease. A holder that
was suspended that long finds out at its next write, which it does before every save.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from anytime_jax.errors import InUseError, RunError
from anytime_jax.storage.conditional_writes import Version, read_version, replace

RENEWAL_SECONDS = 10.0
EXPIRY_SECONDS = 45.0
_POLL_SECONDS = 2.0
_RELEASE_SECONDS = 10.0
_WORDS = 4  # format of the content: host, process, time and a unique name


class Lease:
    """A lease that this process holds, and renews in a thread until it is released."""

    def __init__(self, path: Path, content: bytes, generation: bytes):
        self._path, self._content, self._generation = path, content, generation
        self._is_ours = True
        self._guard = threading.Lock()
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def confirm(self) -> None:
        """Renews the lease; raises a RunError if another process has taken it."""
        with self._guard:
            if not self._is_renewed():
                raise self._lost()

    def _is_renewed(self, seconds: float | None = None) -> bool:
        """Renews the lease, whose guard is held; returns false if another process has taken it."""
        if self._is_ours:
            generation = replace(self._path, self._content, self._generation, seconds)
            self._is_ours, self._generation = generation is not None, generation or b""
        return self._is_ours

    def explain(self, error: Exception) -> Exception:
        """Returns `error`, or if the lease was lost, a RunError that says so, the real cause.

        Asks the bucket, since a process that was suspended may fail before it renews.
        """
        if self._guard.acquire(timeout=_RELEASE_SECONDS):
            with contextlib.suppress(OSError):
                self._is_renewed(_RELEASE_SECONDS)
            self._guard.release()
        return error if self._is_ours else self._lost()

    def release(self) -> None:
        """Ends the lease, so that others need not wait; gives up if the server does not answer."""
        self._released.set()
        if not self._guard.acquire(timeout=_RELEASE_SECONDS):
            return
        with contextlib.suppress(OSError):
            if self._is_ours:
                replace(self._path, None, self._generation, _RELEASE_SECONDS)
        self._guard.release()

    def _lost(self) -> RunError:
        now = holder(self._path) or "none"
        return RunError(f"another process has taken {self._path.parent}: {now}")

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError, RunError):  # `confirm` before a save reports it
                self.confirm()


@contextlib.contextmanager
def hold(path: Path, name: str, report: Callable[[str], None]) -> Iterator[Lease]:
    """Holds the lease of a file in a bucket until the block ends.

    Waits until the lease of a killed process has expired, and tells `report` so. Raises an
    InputError that begins with `name` if another process renews the lease. Once another process has
    taken the lease, it may remove what this one writes, so any error of the block becomes a
    RunError that says so.
    """
    content = f"{describe_process()} {uuid.uuid4()}\n".encode()
    lease = Lease(path, content, _take(path, name, content, report))
    try:
        yield lease
    except Exception as error:
        if (failure := lease.explain(error)) is error:
            raise
        raise failure from error
    finally:
        lease.release()


def describe_process() -> str:
    """Returns host, id and current time of this process."""
    return f"{socket.gethostname()} {os.getpid()} {time.time():.3f}"


def holder(path: Path) -> str:
    """Returns the content of a lease, "" if nobody holds it or the bucket is out of reach."""
    with contextlib.suppress(OSError):
        return _name(read_version(path))
    return ""


def is_held(path: Path) -> bool:
    """Returns whether a lease was renewed recently, by this machine's clock."""
    try:
        return time.time() - path.stat().st_mtime < EXPIRY_SECONDS
    except FileNotFoundError:
        return False


def _take(path: Path, name: str, content: bytes, report: Callable[[str], None]) -> bytes:
    """Waits for the lease, takes it and returns its generation."""
    seen: Version | None = None
    unchanged, last = 0.0, time.monotonic()
    while True:
        now = read_version(path)
        # A bucket that is slow here is slow for the holder too, so that time does not count.
        unchanged += min(time.monotonic() - last, 2 * _POLL_SECONDS)
        last = time.monotonic()
        if not _is_held(now) or (now == seen and unchanged > EXPIRY_SECONDS):
            if generation := replace(path, content, now.generation):
                return generation
        elif seen is None:
            report(f"waiting up to {EXPIRY_SECONDS:g} s for the lease {path} of {_name(now)}")
            seen, unchanged = now, 0.0
        elif now != seen:
            raise InUseError(name, _name(now))
        time.sleep(_POLL_SECONDS)


def _is_held(version: Version) -> bool:
    """Returns whether this is a lease, not a missing file or a copied directory's lock file."""
    return len(_name(version).split()) == _WORDS


def _name(version: Version) -> str:
    return (version.content or b"").decode("utf-8", "replace").strip()
