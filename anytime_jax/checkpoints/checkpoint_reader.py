"""Reading and verification of checkpoints, independent of the run's configuration and devices."""

import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.array_checksums import checksums, format_checksum, sum_host_words
from anytime_jax.checkpoints.checkpoint_listing import classify
from anytime_jax.checkpoints.tree_names import is_stacked, unflatten_by_name
from anytime_jax.config.fields import flatten
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_differences
from anytime_jax.storage.failures import shorten_error
from anytime_jax.storage.files import check_files, key_value_store
from anytime_jax.storage.json_files import json_digest, load_json

ARRAY_ITEMS = ("params", "opt", "averages")
_THREADS = 8
# Orbax's handler, without the file of each process, which a restore does not need and which may be
# damaged.
_TYPE_HANDLERS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(array_metadata_store=None)),
    (np.ndarray, ocp.type_handlers.NumpyHandler()),
)

Meta = dict[str, Any]


class CheckpointError(RunError):
    """A checkpoint is damaged, or is not the run's.

    Attributes:
      reason: what is wrong.
    """

    def __init__(self, path: Path, reason: str):
        super().__init__(path, reason)
        self.reason = reason

    def __str__(self) -> str:
        return "checkpoint {}: {}".format(*self.args)


def read_meta(path: Path) -> Meta:
    """Returns a checkpoint's metadata.

    Raises a RunError if it is missing or damaged, or belongs to another step or another run.
    """
    try:
        meta = load_json(path / "meta" / "metadata")
        if meta["digest"] != json_digest({k: v for k, v in meta.items() if k != "digest"}):
            raise ValueError("its digest differs")
        if str(meta["step"]) != path.name.partition(".")[0]:
            raise ValueError(f"it belongs to step {meta['step']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(path, f"meta is damaged: {shorten_error(error)}") from error
    _check_run(path, meta)
    return meta


def check_item_files(path: Path, item: str) -> None:
    """Raises a RunError unless all files are regular: TensorStore would wait for a pipe forever."""
    try:
        check_files(path / item)
    except InputError as error:
        raise CheckpointError(path, f"{item} is damaged: {error.reason}") from error


def _check_run(path: Path, meta: Meta) -> None:
    """Raises a RunError unless a checkpoint has the settings and data of the run it lies in."""
    with contextlib.suppress(InputError):  # commands that need the run file report its damage
        run = run_json.read_identity(path.parent.parent) or {}
        saved = flatten({**meta.get("config", {}), "data.fingerprint": meta.get("fingerprint")})
        saved.pop("initial_weights", None)  # this is a path; the digest is in the origin
        saved |= meta.get("origin", {})
        saved = {name: value for name, value in saved.items() if value is not None}
        names = run.keys() & saved.keys()
        was, now = ({name: x[name] for name in names} for x in (run, saved))
        if differences := format_differences(was, now):
            raise CheckpointError(path, f"it belongs to another run ({differences})")


def verify_checkpoint(path: Path) -> Meta:
    """Compares every array of a checkpoint with its checksum and returns the metadata.

    Raises a RunError that names the item if one is missing or damaged.
    """
    check_complete(path)
    meta = read_meta(path)
    for item in ARRAY_ITEMS:
        if names := meta["checksums"][item]:
            check_checksums(path, meta, item, read_arrays(path, item, dict.fromkeys(names)))
    return meta


def check_complete(path: Path) -> None:
    """Raises a RunError if a checkpoint is empty or its save did not finish."""
    if classify(path).kind in ("incomplete", "half-written"):
        raise CheckpointError(path, f"it is {'incomplete' if any(path.iterdir()) else 'empty'}")


def is_intact(path: Path) -> bool:
    """Returns whether a checkpoint passes `verify_checkpoint`."""
    try:
        verify_checkpoint(path)
    except RunError:
        return False
    return True


def check_checksums(path: Path, meta: Meta, item: str, arrays: Any) -> None:
    """Raises a RunError that names the first array whose checksum differs from the saved one."""
    for name, checksum in checksums(arrays).items():
        _check_checksum(path, meta, item, name, checksum)


def _check_checksum(path: Path, meta: Meta, item: str, name: str, checksum: str) -> None:
    if checksum != (saved := meta["checksums"][item].get(name)):
        raise CheckpointError(
            path, f"{item}/{name} is damaged: its checksum is {checksum}, saved with {saved}"
        )


def read_layers(path: Path, meta: Meta, item: str, name: str) -> Iterator[np.ndarray]:
    """Yields an array of an item, one layer's part at a time if it is stacked over layers.

    Raises a RunError if a part cannot be read or, before the last one, if the checksum differs.
    `check_item_files` comes first.
    """
    total = 0
    try:
        key_values = {
            "driver": "ocdbt",
            "base": key_value_store(path / item),
            "path": f"{name.replace('/', '.')}/",
        }
        array: Any = tensorstore.open({"driver": "auto", "kvstore": key_values}).result()
        layers, size = array[None], 1
        if is_stacked(name):  # older checkpoints have chunks of several layers
            layers, size = array, array.chunk_layout.read_chunk.shape[0]
        count = layers.shape[0]
        for start in range(0, count, size):
            end = min(start + size, count)
            chunk = layers[start:end].read().result()
            total += sum(sum_host_words(layer, i) for i, layer in enumerate(chunk, start))
            if end == count:
                checksum = format_checksum(chunk.dtype, array.shape, total)
                _check_checksum(path, meta, item, name, checksum)
            yield from chunk
    except ValueError as error:  # TensorStore raises this for any storage
        raise _reading_error(path, item, error) from error


def read_arrays(path: Path, item: str, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays of an item, "params", "opt" or "averages", by name.

    `targets` has for every name, such as `1/mu/blocks/qkv`, a `jax.ShapeDtypeStruct` with a
    sharding, or None for a NumPy array. Raises a RunError if an array cannot be read.
    """
    check_item_files(path, item)
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=_TYPE_HANDLERS)

    def read(name: str) -> Any:
        if (placeholder := targets[name]) is None:
            placeholder = np.zeros(())
            restore_args = ocp.RestoreArgs(restore_type=np.ndarray)
        else:
            restore_args = ocp.checkpoint_utils.construct_restore_args(placeholder)
        args = ocp.args.PyTreeRestore(
            item=unflatten_by_name({name: placeholder}),
            restore_args=unflatten_by_name({name: restore_args}),
            partial_restore=True,
        )
        (array,) = jax.tree.leaves(handler.restore(epath.Path(str(path / item)), args=args))
        if array is placeholder:  # Orbax returns a placeholder for an unknown name.
            raise ValueError(f"{name} is missing")
        return array

    try:
        # Each array has its own call. If one call read all, the first failure would close the event
        # loop, and every other read would print a traceback from C++. One call is not faster.
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(targets, threads.map(read, targets), strict=True))
    except Exception as error:  # Orbax and TensorStore raise many types of errors.
        raise _reading_error(path, item, error) from error


def _reading_error(path: Path, item: str, error: Exception) -> CheckpointError:
    return CheckpointError(path, f"{item} cannot be read: {shorten_error(error)}")
