"""What lies among a run's checkpoints, and whether it is what was written.

Reads without the run: neither its configuration nor its devices are needed, and nothing is changed.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from anytime_jax.checkpoints.checksums import checksums, digest
from anytime_jax.errors import RunError

DIRECTORY = "checkpoints"
ARRAY_ITEMS = ("params", "opt", "averages")
DAMAGED = ".damaged"  # appended to the name of a checkpoint that is set aside
_COMPLETE = "_CHECKPOINT_METADATA"  # what Orbax puts into a step's directory last
_HALF_WRITTEN = ".orbax-checkpoint-tmp"  # in the name of the directory of a save under way
_READERS = 8  # arrays read at once

Meta = dict[str, Any]
Kind = Literal["complete", "incomplete", "half-written", "set aside", "foreign"]


@dataclasses.dataclass(frozen=True)
class Found:
    """Something that lies among the checkpoints of a run.

    Attributes:
      path: where.
      step: the step it is, or was to be, the checkpoint of; None for a foreign file.
      kind: "complete"; "incomplete", a step's directory that is empty or lacks Orbax's seal;
        "half-written", a save that was cut short; "set aside" as damaged; "foreign".
    """

    path: Path
    step: int | None
    kind: Kind


def survey(run_dir: str | Path) -> list[Found]:
    """Returns all that lies among a run's checkpoints, by step, foreign files last; reads none."""
    directory = Path(run_dir).absolute() / DIRECTORY
    entries = [survey_one(path) for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(entries, key=lambda x: (x.step is None, x.step or 0, x.path.name))


def saved_steps(run_dir: str | Path) -> list[int]:
    """Returns the steps of all complete checkpoints of a run, in order."""
    return [x.step for x in survey(run_dir) if x.kind == "complete" and x.step is not None]


def read_meta(path: Path) -> Meta:
    """Returns what was saved beside the arrays of the checkpoint at `path`.

    Raises:
      RunError: if it is missing or damaged.
    """
    try:
        meta = json.loads((path / "meta" / "metadata").read_text(encoding="utf-8"))
        found = digest({name: value for name, value in meta.items() if name != "digest"})
        if found != meta["digest"]:
            raise ValueError("it is not what was written: its digest differs")
        if str(meta["step"]) != path.name.partition(".")[0]:
            raise ValueError(f"it belongs to step {meta['step']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"checkpoint {path}: meta cannot be used: {brief(error)}") from error
    return meta


def verify(path: Path) -> Meta:
    """Reads every array of the checkpoint at `path` into host memory, an item at a time.

    Needs neither the configuration nor the devices of the run.

    Returns:
      its meta.

    Raises:
      RunError: if a part is missing or damaged; the message names it.
    """
    if survey_one(path).kind in ("incomplete", "half-written"):
        what = "incomplete" if any(path.iterdir()) else "empty"
        raise RunError(f"checkpoint {path} is {what}")
    meta = read_meta(path)
    for item in ARRAY_ITEMS:
        saved = meta["checksums"][item]
        if saved:
            compare(path, item, checksums(read_arrays(path, item, dict.fromkeys(saved))), saved)
    return meta


def bytes_of(path: Path, on_disk: bool = False) -> int:
    """Returns the size of a file, or of all files under a directory.

    Args:
      path: the file or the directory.
      on_disk: count the blocks that the files take, rather than their lengths.
    """
    total = 0
    for file in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a run may be tidying up
            stat = file.stat()
            total += 512 * stat.st_blocks if on_disk else stat.st_size * file.is_file()
    return total


def survey_one(path: Path) -> Found:
    """Returns what lies at a path among a run's checkpoints."""
    step, _, rest = path.name.partition(".")
    kind: Kind = "foreign"
    if step.isdecimal() and path.is_dir():
        if not rest:
            kind = "complete" if (path / _COMPLETE).exists() else "incomplete"
        elif f".{rest}".startswith(_HALF_WRITTEN) and not path.is_symlink():
            kind = "half-written"
        elif f".{rest}".startswith(DAMAGED):
            kind = "set aside"
    return Found(path, None if kind == "foreign" else int(step), kind)


def is_good(path: Path) -> bool:
    """Whether `verify` finds nothing wrong with the checkpoint at `path`."""
    try:
        verify(path)
    except RunError:
        return False
    return True


def compare(path: Path, item: str, found: Mapping[str, str], saved: Mapping[str, str]) -> None:
    """Raises a RunError unless the arrays found have the checksums they were saved with."""
    for name, checksum in found.items():
        if checksum != saved.get(name):
            raise RunError(
                f"checkpoint {path}: {item}/{name} is damaged: its checksum is {checksum}, it was "
                f"saved with {saved.get(name)}"
            )


def read_arrays(path: Path, item: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns some arrays of an item of the checkpoint at `path`.

    Args:
      path: the checkpoint's directory.
      item: "params", "opt" or "averages".
      wanted: by name, such as `1/mu/blocks/qkv`: shape, type and placement to restore to
        (`jax.ShapeDtypeStruct`), or None for an array in host memory.

    Returns:
      the arrays by name.

    Raises:
      RunError: if an array is missing or cannot be read.
    """
    handler = ocp.PyTreeCheckpointHandler()

    def read(name: str) -> Any:
        # One array by itself. Were all read by one call, the first failure would close the loop
        # that the other reads still report to, each with a traceback.
        to = np.zeros(()) if wanted[name] is None else wanted[name]
        args = ocp.args.PyTreeRestore(
            item=nested({name: to}),
            restore_args=nested({name: _restore_args(wanted[name])}),
            partial_restore=True,
        )
        (array,) = jax.tree.leaves(handler.restore(epath.Path(path / item), args=args))
        if array is to:  # what Orbax does with a name that is not there
            raise ValueError(f"it holds no {name}")
        return array

    try:
        with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
            return dict(zip(wanted, readers.map(read, wanted), strict=True))
    except Exception as error:  # Orbax and what it stands on raise many kinds
        # Of the reads that Orbax gave up on: said whenever they are collected.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise RunError(f"checkpoint {path}: {item} cannot be read: {brief(error)}") from error


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by name as dicts in dicts, the way a checkpoint holds them."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree


def _restore_args(to: jax.ShapeDtypeStruct | None) -> ocp.RestoreArgs:
    if to is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.checkpoint_utils.construct_restore_args(to)


def brief(error: Exception) -> str:
    """Returns what an error says, without the description of the storage that is appended to it."""
    text = str(error).split(" [tensorstore_spec")[0].split(". See full TensorStore")[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"
