"""Whose a run directory is: the settings that make a run what it is, written down once."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError

RUN_FILE = "run.json"
_PART = f".{RUN_FILE}.part"
_ADVICE = "choose another run_dir"


def read_identity(run_dir: Path, advice: str = _ADVICE) -> dict[str, Any] | None:
    """Returns the settings that a run wrote down when it began, as `read_run_file`."""
    about = read_run_file(run_dir, advice)
    return None if about is None else about["identity"]


def read_run_file(run_dir: Path, advice: str = _ADVICE) -> dict[str, Any] | None:
    """Returns all that a run wrote down when it began; None if it has not begun.

    Args:
      run_dir: the run's directory.
      advice: what to do if it cannot be read.

    Raises:
      InputError: if it cannot be read.
    """
    file = run_dir / RUN_FILE
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        return {**about, "identity": dict(about["identity"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): {advice}") from error


def check_identity(run_dir: Path, identity: Mapping[str, Any]) -> None:
    """Checks that a run directory is new, or belongs to the run; changes nothing.

    Args:
      run_dir: the run's directory, which need not be there.
      identity: the settings that may not change between starts (`Config.identity`).

    Raises:
      InputError: if it belongs to a run with other settings, which the message names, or to none.
    """
    theirs = read_identity(run_dir)
    if theirs is not None:
        _compare(run_dir, theirs, json.loads(json.dumps(identity)))
    elif run_dir.is_dir() and any(path.name != _PART for path in run_dir.iterdir()):
        raise InputError(
            f"config.run_dir = {str(run_dir)!r} holds files but is no run (it has no {RUN_FILE}): "
            "choose an empty or a new directory"
        )


def initialize(run_dir: Path, identity: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Makes a directory the run's, unless it is already.

    Args:
      run_dir: the run's directory; made if it is not there.
      identity: as for `check`.
      about: what else to write down when the run begins.

    Raises:
      InputError: as `check`, or if the directory cannot be made.
    """
    check_identity(run_dir, identity)
    if (run_dir / RUN_FILE).exists():
        return
    content = json.dumps({"identity": identity, **about}, indent=1)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        part = run_dir / _PART
        part.write_text(content, encoding="utf-8")
        part.replace(run_dir / RUN_FILE)
    except OSError as error:
        raise InputError(
            f"config.run_dir = {str(run_dir)!r} cannot be written ({error.strerror}): choose "
            "another directory"
        ) from error


@contextlib.contextmanager
def lock(run_dir: Path) -> Iterator[None]:
    """Holds a run's directory for this process, inside a `with`.

    Raises:
      InputError: if another process holds it.
    """
    with (run_dir / "lock").open("a") as file:
        try:
            # Held by this process alone and gone with it, however it ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} is in use by another process: wait for it, or "
                "stop it"
            ) from error
        file.truncate(0)
        file.write(f"{socket.gethostname()} {os.getpid()} {time.time():.3f}\n")
        file.flush()
        yield


def lock_holder(run_dir: Path) -> str:
    """Returns the host, the process and the moment that last held a run's directory, or nothing."""
    with contextlib.suppress(OSError):
        return (run_dir / "lock").read_text(encoding="utf-8")
    return ""


def is_locked(run_dir: Path) -> bool:
    """Whether a process holds a run's directory now."""
    try:
        with (run_dir / "lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _compare(run_dir: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    names = sorted(theirs.keys() | ours.keys())
    differences = [
        f"{name} was {theirs.get(name, 'not set')!r}, is {ours.get(name, 'not set')!r}"
        for name in names
        if theirs.get(name) != ours.get(name)
    ]
    if differences:
        raise InputError(
            f"config.run_dir = {str(run_dir)!r} belongs to a run with other settings ("
            + "; ".join(differences)
            + "): set them back, or choose another run_dir"
        )
