"""Reading and verification of checkpoints, independent of the run's configuration and devices."""

import concurrent.futures
import contextlib
import dataclasses
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
from anytime_jax.checkpoints.run_json import RunFile, StageEntry
from anytime_jax.checkpoints.tree_names import is_stacked, unflatten_by_name
from anytime_jax.config.settings_reader import flatten
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_differences
from anytime_jax.storage.failures import shorten_error
from anytime_jax.storage.files import check_files, key_value_store
from anytime_jax.storage.json_files import as_type, json_digest, load_json

ARRAY_ITEMS = ("params", "opt", "averages")
_THREADS = 8
# Orbax's handler, without the file of each process, which a restore does not need and which may be
# damaged.
_TYPE_HANDLERS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(array_metadata_store=None)),
    (np.ndarray, ocp.type_handlers.NumpyHandler()),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meta:
    """Metadata of a checkpoint.

    Attributes:
      step: number of updates. By then `samples` and `tokens` were seen, which are `multiple` times
        the Chinchilla budget.
      config: the settings of the run, as JSON has them.
      origin: digests of what the run starts from, by their names among the identity settings.
      fingerprint: fingerprint of the data of the first stage.
      stages: the stages of the run.
      vocabulary: SHA-256 of the vocabulary of the data.
      microbatches: number of microbatches of the first batch size.
      averages: labels of the averages in the checkpoint.
      averages_since: for each average by label, the step whose weights it started from.
      interval: metrics of the updates since the last row of records, by name.
      rows: number of rows of records before the step.
      version: version of this package; `jax` is the version of JAX.
      checksums: for each item, the checksum of every array by name.
      iterates: for each further iterate of the method by label, the prefix of the names of its
        arrays in the item `opt`.
      readouts: for each read-out by label, the coefficients of the iterates by their labels.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    multiple: float = 0.0
    config: Mapping[str, Any]
    origin: Mapping[str, str]
    fingerprint: str
    stages: tuple[StageEntry, ...]
    vocabulary: str
    microbatches: int
    averages: tuple[str, ...] = ()
    averages_since: Mapping[str, int] = dataclasses.field(default_factory=dict)
    interval: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    rows: int = 0
    version: str
    jax: str
    checksums: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    iterates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    readouts: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of all metadata."""
        return json_digest(dataclasses.asdict(self))

    def to_json(self) -> dict[str, Any]:
        """Returns the metadata as a checkpoint stores them, with the digest."""
        return {**dataclasses.asdict(self), "digest": self.digest}


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


def read_meta(path: Path, run_file: RunFile | None = None) -> Meta:
    """Returns a checkpoint's metadata.

    `run_file` is the content of `run.json` in the run's directory; by default it is read. Raises a
    RunError if the metadata are missing or damaged, or belong to another step or run.
    """
    try:
        content = load_json(path / "meta" / "metadata")
        meta = as_type(Meta, content)
        if content.get("digest") != meta.digest:
            raise ValueError("its digest differs")
        if str(meta.step) != path.name.partition(".")[0]:
            raise ValueError(f"it belongs to step {meta.step}")
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"meta is damaged: {shorten_error(error)}") from error
    if run_file is None:
        with contextlib.suppress(InputError):  # commands that need the run file report its damage
            run_file = run_json.read_run_file(path.parent.parent)
    if run_file is not None:
        _check_run(path, meta, run_file)
    return meta


def check_item_files(path: Path, item: str) -> None:
    """Raises a RunError unless all files of an item are regular.

    TensorStore would wait forever for a pipe.
    """
    try:
        check_files(path / item)
    except InputError as error:
        raise CheckpointError(path, f"{item} is damaged: {error.reason}") from error


def _check_run(path: Path, meta: Meta, run_file: RunFile) -> None:
    """Raises a RunError unless a checkpoint has the settings and data of the run around it."""
    saved = flatten({**meta.config, "data.fingerprint": meta.fingerprint})
    saved.pop("initial_weights", None)  # this is a path; the digest is in the origin
    saved |= meta.origin
    names = run_file.identity.keys() & saved.keys()
    was, now = ({name: x[name] for name in names} for x in (run_file.identity, saved))
    if differences := format_differences(was, now):
        raise CheckpointError(path, f"it belongs to another run ({differences})")


def verify_checkpoint(path: Path, run_file: RunFile | None = None) -> Meta:
    """Compares every array of a checkpoint with its checksum; returns the metadata.

    Raises the errors of `read_meta`, and a RunError that names an item that is missing or damaged.
    """
    check_complete(path)
    meta = read_meta(path, run_file)
    for item in ARRAY_ITEMS:
        if names := meta.checksums[item]:
            check_checksums(path, meta, item, read_arrays(path, item, dict.fromkeys(names)))
    return meta


def check_complete(path: Path) -> None:
    """Raises a RunError if a checkpoint is empty or its save did not finish."""
    if classify(path).state in ("incomplete", "half-written"):
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
    if checksum != (saved := meta.checksums[item].get(name)):
        raise CheckpointError(
            path, f"{item}/{name} is damaged: its checksum is {checksum}, saved with {saved}"
        )


def read_layers(path: Path, meta: Meta, item: str, name: str) -> Iterator[np.ndarray]:
    """Yields an array of an item; an array that is stacked over layers is yielded layer by layer.

    Raises a RunError if a part cannot be read. If the checksum of the array differs, raises a
    RunError before the last part is yielded. Call `check_item_files` first.
    """
    total = 0
    try:
        key_values = {
            "driver": "ocdbt",
            "base": key_value_store(path / item),
            "path": f"{name.replace('/', '.')}/",
        }
        array: Any = tensorstore.open({"driver": "auto", "kvstore": key_values}).result()
        layers = array if is_stacked(name) else array[None]
        for i in range(layers.shape[0]):
            layer = layers[i].read().result()
            total += sum_host_words(layer, i)
            if i + 1 == layers.shape[0]:
                checksum = format_checksum(layer.dtype, array.shape, total)
                _check_checksum(path, meta, item, name, checksum)
            yield layer
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
