"""Work directory of a preparation: its locks, and the settings that its processes share.

A process locks what it prepares, the whole dataset or a share, and then checks that no conflicting
lock is held: the whole dataset conflicts with every share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anytime_jax.data.dataset_info import METADATA_NAME, SPLITS, VOCABULARY_NAME, WORK_NAME
from anytime_jax.errors import InputError, InUseError
from anytime_jax.storage import locks
from anytime_jax.storage.files import list_files, remove_directory
from anytime_jax.storage.json_files import read_json, write_json


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
    own = "all" if share is None else f"share-{share.index}-of-{share.count}"
    directories = WorkDirectory(output, work / "parts", work / own)
    name = str(output) if share is None else f"share {share} of {output}"
    others = "*" if share is None else "all"
    with locks.hold(work / f"{own}.lock", name):
        if held := _held_locks(work, others, own):
            raise InUseError(str(output), locks.holder(held[0]))
        remove_directory(directories.scratch, missing_ok=True)  # a killed process left these files
        for directory in (directories.results, directories.scratch):
            directory.mkdir(exist_ok=True)
        previous = read_json(work / "settings.json")
        if previous is not None:
            check_settings(output, "is half", previous, settings)
        else:
            write_json(work / "settings.json", settings, directories.scratch)
        try:
            yield directories
        except InputError:
            # The directory stays if a part is finished or another process works on it.
            if not (list_files(directories.results) or _held_locks(work, "*", own)):
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
        with contextlib.suppress(OSError):  # another process has begun in it, and finds the dataset
            remove_directory(work, missing_ok=True)


def check_settings(
    output: Path, state: str, previous: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raises InputError if `output`, which "is half" or "holds a dataset", has other settings."""
    differences = [
        f"{key} {previous.get(key)!r} (requested: {settings.get(key)!r})"
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
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file is in the way, or a directory is read-only
        raise InputError(
            f"{output} cannot be created ({error.strerror}); give another output"
        ) from error
    return work


def _held_locks(work: Path, names: str, own: str) -> list[Path]:
    """Returns the locks of a work directory that other processes hold."""
    found = sorted(work.glob(f"{names}.lock"), key=str)
    return [path for path in found if path.name != f"{own}.lock" and locks.is_held(path)]
