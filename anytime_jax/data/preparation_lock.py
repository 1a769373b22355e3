"""Who may work in a dataset's directory while it is prepared, and on what: locks and the plan.

A process that prepares all of it holds `lock` for itself. Shares hold that one together, and each
holds another of its own, in a folder where its temporary files are too. What is done once for all
of them is done in turns. A lock goes with its holder, however that ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from anytime_jax.data.dataset import METADATA_NAME, VOCABULARY_NAME, WORK_NAME, digest_of
from anytime_jax.data.preparation_jobs import read_record, write_record
from anytime_jax.data.sources import Part
from anytime_jax.errors import InputError

_Job = TypeVar("_Job")


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several processes that prepare a dataset together: it does every count-th job.

    Attributes:
      index: which, from 0.
      count: how many there are.
    """

    index: int
    count: int

    def __post_init__(self):
        """Raises InputError unless there is such a share."""
        if not 0 <= self.index < self.count:
            raise _no_share(str(self))

    def __str__(self) -> str:
        """As the command line spells it."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Reads "I/N"; raises InputError where it is none."""
        match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if not match:
            raise _no_share(text)
        return cls(int(match[1]), int(match[2]))

    def of(self, jobs: Sequence[_Job]) -> Sequence[_Job]:
        """The jobs that are this share's."""
        return jobs[self.index :: self.count]


def _no_share(text: str) -> InputError:
    return InputError(f"share {text} is none; give I/N with I from 0 to N - 1, such as 0/64")


class Claim:
    """A dataset's directory, while this process may work in it.

    Attributes:
      output: the directory.
      work: the folder in it for all that is unfinished.
      share: what this process does of the work; None for all.
      scratch: where a share's temporary files go; None for where the files are to be.
    """

    def __init__(self, output: Path, share: Share | None, lock: TextIO):
        """Takes the directory, and the common lock, which this process holds."""
        self.output = output
        self.work = output / WORK_NAME
        self.share = share
        self.scratch = None if share is None else _folder_of(self.work, share)
        self._lock = lock

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until no other share is in here, and keeps them out, inside a `with`."""
        with open(self.work / "turn", "a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def agree_on(self, parts: Sequence[Part]) -> None:
        """Sees to it that all who work at the same time read the same input; in a `turn`.

        Args:
          parts: of the text, as this process sees them.

        Raises:
          InputError: others at work see other ones.
        """
        path = self.work / "parts.json"
        listed = {"parts": digest_of([part.identity for part in parts])}
        there = read_record(path)
        if there == listed:
            return
        if there is not None and not self._alone():
            raise InputError(
                f"the input has other files, or files of other sizes, than for the other shares "
                f"at work in {self.output}; give all of them the same, or wait for those or stop "
                "them"
            )
        write_record(path, listed, self.scratch)
        if self.share is not None:
            _hold(self._lock, fcntl.LOCK_SH, self.output)  # others may join again

    def begin(self, settings: dict[str, Any]) -> None:
        """Removes what a kill left behind, and writes or compares the plan.

        Args:
          settings: asked for.

        Raises:
          InputError: the plan is for others, or damaged.
        """
        leftovers = self.work.rglob("*.tmp") if self.scratch is None else self.scratch.glob("*.tmp")
        # Those in the directory itself may be a live share's.
        beside = self.output.glob("*.tmp") if self.share is None else ()
        for leftover in [*leftovers, *beside]:
            leftover.unlink(missing_ok=True)
        path = self.work / "plan.json"
        with self.turn():
            planned = read_record(path)
            if planned is not None:
                compare_settings(self.output, "is half", planned, settings)
            elif path.exists():
                raise InputError(f"{path} is damaged; delete {self.output} to start anew")
            else:
                write_record(path, settings, self.scratch)

    def forget(self) -> None:
        """Removes the claim, if nothing is done yet that is worth refusing other settings for."""
        if any((self.work / "tokens").glob("*.json")) or not self._alone():
            return
        shutil.rmtree(self.work, ignore_errors=True)
        (self.output / VOCABULARY_NAME).unlink(missing_ok=True)

    def _alone(self) -> bool:
        """Whether no other process works here; a share has lost its lock if one does."""
        if self.share is None:
            return True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def claimed(output: Path, settings: dict[str, Any], share: Share | None = None) -> Iterator[Claim]:
    """Makes a directory ours, for these settings, inside a `with`.

    Args:
      output: the directory.
      settings: what decides what the dataset is.
      share: for a part of the work, beside other shares; by default all of it, alone.

    Yields:
      The claim.

    Raises:
      InputError: the directory cannot be used, or another process is at this work.
    """
    work = output / WORK_NAME
    folder = work if share is None else _folder_of(work, share)
    is_new = not output.exists()
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a directory as output")
    if output.is_dir() and any(output.iterdir()) and not work.is_dir():
        raise InputError(f"{output} holds other files; give a new or empty directory as output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output} cannot be made ({error.strerror}); give another") from error
    with contextlib.ExitStack() as locks:
        lock = locks.enter_context(open(work / "lock", "a+"))
        _hold(lock, fcntl.LOCK_EX if share is None else fcntl.LOCK_SH, output)
        if share is not None:
            own = locks.enter_context(open(folder / "lock", "a+"))
            _hold(own, fcntl.LOCK_EX, f"share {share} of {output}")
        claim = Claim(output, share, lock)
        claim.begin(settings)
        try:
            yield claim
        except InputError:
            claim.forget()
            if is_new:
                with contextlib.suppress(OSError):  # it holds something
                    output.rmdir()
            raise
    # Not before the locks are closed: over NFS, a folder with an open file cannot be removed.
    if (output / METADATA_NAME).is_file():
        shutil.rmtree(work, ignore_errors=True)


def compare_settings(
    output: Path, state: str, there: dict[str, Any], asked: dict[str, Any]
) -> None:
    """Refuses settings that are not those a directory was prepared with.

    Args:
      output: the directory.
      state: what it is, for the message: "is half" or "holds a dataset".
      there: the settings it has.
      asked: the ones given.

    Raises:
      InputError: they differ.
    """
    differences = [
        f"{key} {there.get(key)!r} (asked: {asked.get(key)!r})"
        for key in sorted({*there, *asked})
        if there.get(key) != asked.get(key)
    ]
    if differences:
        raise InputError(
            f"{output} {state} prepared with {', '.join(differences)}; give another output, or "
            "delete that directory to prepare it anew"
        )


def _folder_of(work: Path, share: Share) -> Path:
    return work / f"share-{share.index}-of-{share.count}"


def _hold(lock: TextIO, how: int, what: object) -> None:
    """Locks a file for this process, or says that another one has it."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
        # A process that ended meanwhile may have removed the file, and others locked a new one.
        held = os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except (BlockingIOError, FileNotFoundError):
        held = False
    except OSError as error:
        raise InputError(
            f"{lock.name} cannot be locked ({error.strerror}); give an output on a file system "
            "that has flock"
        ) from error
    if not held:
        raise InputError(f"{what} is being prepared by another process; wait for it or stop it")
