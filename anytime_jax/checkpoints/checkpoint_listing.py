"""Checkpoint directory of a run: its entries and their sizes, listed without reading an array."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from anytime_jax.storage.failures import storage_errors
from anytime_jax.storage.files import can_rename_directories, file_sizes, is_directory, is_link
from anytime_jax.storage.paths import absolute_path

DIRECTORY = "checkpoints"
DAMAGED_SUFFIX = ".damaged"  # suffix of a checkpoint that was set aside
COMPLETE_MARK = "_CHECKPOINT_METADATA"  # Orbax writes this file last
# Orbax writes this file last of all where it cannot rename directories.
_LAST_MARK = "commit_success.txt"
_TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"  # suffix of a save in progress
# Matches names as a save writes them: 00200 is not step 200.
_STEP = re.compile("0|[1-9][0-9]{0,9}")

EntryState = Literal["complete", "incomplete", "half-written", "set aside", "foreign"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of a checkpoint directory.

    `step` is None for a foreign file. `state` is one of:

        complete       a checkpoint
        incomplete     on a disk, a step's directory without the file that Orbax writes last
        half-written   a save in progress or interrupted; in a bucket, a step's directory without
                       the file that Orbax writes last
        set aside      a damaged checkpoint
        foreign        anything else
    """

    path: Path
    step: int | None
    state: EntryState


def list_entries(run_dir: str | Path) -> list[Entry]:
    """Returns the entries of a run's checkpoint directory in order of step, foreign files last."""
    directory = absolute_path(run_dir) / DIRECTORY
    entries = [classify(path) for path in directory.iterdir()] if is_directory(directory) else []
    return sorted(entries, key=lambda x: (x.step is None, x.step or 0, x.path.name))


def classify(path: Path) -> Entry:
    """Returns the entry at a path, classified by its name and content."""
    step, _, suffix = path.name.partition(".")
    state: EntryState = "foreign"
    if _STEP.fullmatch(step) and is_directory(path):
        if not suffix and can_rename_directories(path):
            state = "complete" if (path / COMPLETE_MARK).exists() else "incomplete"
        elif not suffix:
            state = "complete" if (path / _LAST_MARK).exists() else "half-written"
        elif f".{suffix}".startswith(_TEMPORARY_SUFFIX) and not is_link(path):
            state = "half-written"
        elif f".{suffix}".startswith(DAMAGED_SUFFIX):
            state = "set aside"
    return Entry(path, None if state == "foreign" else int(step), state)


def saved_steps(run_dir: str | Path) -> list[int]:
    """Returns the steps of a run's complete checkpoints in ascending order."""
    return [x.step for x in list_entries(run_dir) if x.state == "complete" and x.step is not None]


def describe_latest(run_dir: str | Path) -> str:
    """Returns a part of a message, which names the last checkpoint on disk."""
    directory = absolute_path(run_dir) / DIRECTORY
    try:
        steps = saved_steps(run_dir)
    except storage_errors() as error:
        return f"the checkpoints in {directory} cannot be listed ({error})"
    last = f"step {steps[-1]:,}" if steps else "none"
    return f"the last good checkpoint in {directory} is {last}"


def format_steps(steps: Sequence[int]) -> str:
    """Returns the last eight steps as text for a message."""
    return ", ".join(["..."] * (len(steps) > 8) + [f"{step:,}" for step in steps[-8:]])


def checkpoint_path(run_dir: str | Path, step: int) -> Path:
    """Returns the path of the checkpoint of a step, whether or not it exists."""
    return absolute_path(run_dir) / DIRECTORY / str(step)


def disk_usage(path: Path) -> int:
    """Returns the size in bytes of a file, or of all files below a directory."""
    return sum(file_sizes(path).values())
