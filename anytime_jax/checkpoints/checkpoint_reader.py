"""What lies among a run's checkpoints, and whether it is what was written.

Reads without the run: neither its configuration nor its devices are needed, and nothing is changed.
"""

import concurrent.futures
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from anytime_jax.checkpoints.checkpoint_directory import classify
from anytime_jax.checkpoints.checksums import checksums, json_digest
from anytime_jax.checkpoints.tree_names import unflatten_by_name
from anytime_jax.errors import RunError

ARRAY_ITEMS = ("params", "opt", "averages")
_READERS = 8  # arrays read at once

Meta = dict[str, Any]


def read_meta(path: Path) -> Meta:
    """Returns what was saved beside the arrays of the checkpoint at `path`.

    Raises:
      RunError: if it is missing or damaged.
    """
    try:
        meta = json.loads((path / "meta" / "metadata").read_text(encoding="utf-8"))
        found = json_digest({name: value for name, value in meta.items() if name != "digest"})
        if found != meta["digest"]:
            raise ValueError("it is not what was written: its digest differs")
        if str(meta["step"]) != path.name.partition(".")[0]:
            raise ValueError(f"it belongs to step {meta['step']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"checkpoint {path}: meta cannot be used: {shorten_error(error)}") from error
    return meta


def verify_checkpoint(path: Path) -> Meta:
    """Reads every array of the checkpoint at `path` into host memory, an item at a time.

    Needs neither the configuration nor the devices of the run.

    Returns:
      its meta.

    Raises:
      RunError: if a part is missing or damaged; the message names it.
    """
    if classify(path).kind in ("incomplete", "half-written"):
        what = "incomplete" if any(path.iterdir()) else "empty"
        raise RunError(f"checkpoint {path} is {what}")
    meta = read_meta(path)
    for item in ARRAY_ITEMS:
        saved = meta["checksums"][item]
        if saved:
            check_checksums(
                path, item, checksums(read_arrays(path, item, dict.fromkeys(saved))), saved
            )
    return meta


def is_intact(path: Path) -> bool:
    """Whether `verify_checkpoint` finds nothing wrong with the checkpoint at `path`."""
    try:
        verify_checkpoint(path)
    except RunError:
        return False
    return True


def check_checksums(
    path: Path, item: str, found: Mapping[str, str], saved: Mapping[str, str]
) -> None:
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
            item=unflatten_by_name({name: to}),
            restore_args=unflatten_by_name({name: _restore_args(wanted[name])}),
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
        raise RunError(
            f"checkpoint {path}: {item} cannot be read: {shorten_error(error)}"
        ) from error


def _restore_args(to: jax.ShapeDtypeStruct | None) -> ocp.RestoreArgs:
    if to is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.checkpoint_utils.construct_restore_args(to)


def shorten_error(error: Exception) -> str:
    """Returns what an error says, without the description of the storage that is appended to it."""
    text = str(error).split(" [tensorstore_spec")[0].split(". See full TensorStore")[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"
