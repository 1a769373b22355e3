"""Ownership of a run directory: the run it belongs to, the start that uses it, and its lock."""

import contextlib
import datetime
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints.run_json import RUN_FILE, RunFile, Start, read_run_file
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage import locks
from anytime_jax.storage.failures import check_no_file
from anytime_jax.storage.files import is_directory

LOCK_FILE = "lock"
# Files that a killed start may leave in a directory without a run.
_BEFORE_RUN_FILE = re.compile(f"{re.escape(LOCK_FILE)}|{re.escape(RUN_FILE)}[.][0-9]+[.]tmp")
# Orbax takes them for patterns, TensorStore turns the slash.
_MISREAD = ("[", "\\", "**")


def check_name(run_dir: Path, setting: str, value: str) -> None:
    """Raises an InputError of a setting if its path has characters that a library misreads."""
    if bad := next((x for x in _MISREAD if x in str(run_dir)), None):
        raise InputError(
            f"it has {bad!r} in its path {run_dir}, which Orbax and TensorStore misread: choose "
            "another, or rename it",
            setting,
            value,
        )


def check_identity(run_dir: Path, run_file: RunFile | None, identity: Mapping[str, Any]) -> None:
    """Checks that a directory is new or belongs to the run; changes nothing.

    Raises an InputError if the directory belongs to a run with other identity settings
    (`Config.identity`), which the message names. Raises an InputError if it has other files.
    """
    if run_file is not None:
        if differences := run_file.differences(identity):
            raise InputError(
                f"it belongs to a run with other settings ({differences}): set them back, or "
                "choose another run_dir",
                "config.run_dir",
                str(run_dir),
            )
    elif is_directory(run_dir) and not all(
        _BEFORE_RUN_FILE.fullmatch(path.name) for path in run_dir.iterdir()
    ):
        raise InputError(
            f"it holds files but no {RUN_FILE}: choose an empty or a new directory",
            "config.run_dir",
            str(run_dir),
        )


def new_id() -> str:
    """Returns a new unique id."""
    return uuid.uuid4().hex


def new_start(id: str) -> Start:
    """Returns the start that this process makes now."""
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Start(id, socket.gethostname(), os.getpid(), time)


class LostRunError(RunError):
    """Another start has taken over the run, or its directory was removed."""


def confirm(run_dir: Path, start: str) -> None:
    """Raises a LostRunError if a run has had another start since `start`, or is gone.

    Raises a RunError if `run.json` cannot be read.
    """
    try:
        run_file = read_run_file(run_dir)
    except InputError as error:
        raise RunError(str(error)) from error
    if run_file is None:
        raise LostRunError(
            f"{run_dir / RUN_FILE} is gone: the directory was removed while the run trained"
        )
    if (last := run_file.start).id != start:
        raise LostRunError(
            f"another start has taken over {run_dir}: process {last.process} on {last.host}, at "
            f"{last.time}"
        )


@contextlib.contextmanager
def explain_lost_run(run_dir: Path, start: str) -> Iterator[None]:
    """Turns an error of the block into a LostRunError if the run was lost, as the likely cause.

    For example, a later start removes all incomplete saves, also a save in progress.
    """
    try:
        yield
    except Exception as error:
        try:
            confirm(run_dir, start)
        except LostRunError as cause:
            raise cause from error
        except RunError:
            pass  # the error itself says more
        raise


def lock(run_dir: Path) -> contextlib.AbstractContextManager[None]:
    """Locks a run directory on a disk until the block or the process ends, as `locks.hold` does."""
    return locks.hold(run_dir / LOCK_FILE, f"config.run_dir = {str(run_dir)!r}")


def check_files(run_dir: Path, directories: Sequence[str]) -> None:
    """Raises an InputError if something else is where a run has its lock or a directory."""
    name = f"config.run_dir = {str(run_dir)!r}"
    locks.check(run_dir / LOCK_FILE, name)
    for path in (run_dir / x for x in directories):
        check_no_file(path, f"{name}: {path}", "remove it, or choose another run_dir")


def is_locked(run_dir: Path) -> bool | None:
    """Returns whether any process has locked a run directory, which need not be writable.

    The answer is None for a directory in a bucket, where nothing can be locked.
    """
    return locks.is_held(run_dir / LOCK_FILE)
