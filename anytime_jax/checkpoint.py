"""Checkpoints: complete or invisible, checked when read, each part readable alone.

A checkpoint of a run lies in `RUN/checkpoints/STEP` and holds four items, written by Orbax:

    params    the live weights
    opt       the optimizer's state without the averages
    averages  the averages of the weights, by label
    meta      JSON: step, samples, tokens, configuration, versions, and a checksum of every array

Only the copy of the arrays to host memory blocks the caller. A checksum is a sum modulo 2^32 of the
array's words, each times an odd number made from its position: the same on any layout of devices,
and any single changed word changes it. Restoring computes it again.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from anytime_jax import averaging
from anytime_jax.errors import RunError
from anytime_jax.model import Params
from anytime_jax.step import TrainState

DIRECTORY = "checkpoints"
ARRAY_ITEMS = ("params", "opt", "averages")
_COMPLETE = "_CHECKPOINT_METADATA"  # what Orbax puts into a step's directory last

Meta = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Restored:
    """What `Checkpoints.restore` gives.

    Attributes:
      state: the state as it was saved.
      meta: what was saved beside it.
      added: labels of averages that the checkpoint did not have; they start from its live weights.
      dropped: labels of averages that the checkpoint has and the run no longer keeps.
    """

    state: TrainState
    meta: Meta
    added: tuple[str, ...]
    dropped: tuple[str, ...]


def saved_steps(run_dir: str | Path) -> list[int]:
    """Returns the steps of all complete checkpoints of a run, in order."""
    found = (Path(run_dir) / DIRECTORY).glob(f"[0-9]*/{_COMPLETE}")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdecimal())


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: str | Path, keep: int, keep_forever: Callable[[int], bool]):
        """Opens, and creates if need be, the checkpoints of a run.

        Args:
          run_dir: the run's directory.
          keep: number of latest checkpoints kept.
          keep_forever: whether the checkpoint of a step is kept whatever its age.
        """
        self.directory = Path(run_dir).absolute() / DIRECTORY
        for left in self.directory.glob("[0-9]*"):
            if left.name.isdecimal() and not (left / _COMPLETE).exists():
                aside = left.with_name(f"{left.name}.incomplete")  # Orbax would count it
                shutil.rmtree(aside, ignore_errors=True)
                left.rename(aside)
        kept = [checkpoint_managers.LatestN(keep), _KeepSteps(keep_forever)]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(kept),
            enable_async_checkpointing=True,
        )
        self._manager = ocp.CheckpointManager(
            self.directory, item_names=(*ARRAY_ITEMS, "meta"), options=options
        )

    def save(self, state: TrainState, meta: Mapping[str, Any]) -> None:
        """Saves a state; returns once it is copied to host memory.

        Args:
          state: the state; its arrays may be donated as soon as this returns.
          meta: plain data to save beside it.
        """
        step = int(state.step)
        items = _items(state)
        sums = {name: checksums(tree) for name, tree in items.items()}
        # Orbax has no empty items: a run may keep no averages.
        arrays = {name: ocp.args.PyTreeSave(tree) for name, tree in items.items() if tree}
        about = {"step": step, "checksums": sums, "averages": list(items["averages"])}
        args = ocp.args.Composite(**arrays, meta=ocp.args.JsonSave({**meta, **about}))
        with self._saving():
            self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Returns once every save is on disk; raises a RunError if one failed."""
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for every save and lets go of the directory; raises a RunError if one failed."""
        with self._saving():
            self._manager.close()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of this save, or of one that was still being written
            last = saved_steps(self.directory.parent)[-1:]
            raise RunError(
                f"a checkpoint could not be saved in {self.directory}: {_brief(error)}; the last "
                f"good one is {f'that of step {last[0]:,}' if last else 'none'}"
            ) from error

    def meta(self, step: int) -> Meta:
        """Returns what was saved beside the arrays of a step."""
        return self._read(step, "meta", ocp.args.JsonRestore())

    def restore(self, step: int, abstract: TrainState) -> Restored:
        """Restores a state on any layout of devices and checks every array.

        Args:
          step: the step to restore.
          abstract: shapes, types and placement to restore to (`Program.abstract_state`).

        Raises:
          RunError: if a part is missing or damaged; the message names it.
        """
        meta = self.meta(step)
        if not {"checksums", "averages"} <= meta.keys():
            raise RunError(f"checkpoint {self.directory / str(step)}: its meta is not complete")
        wanted = _items(abstract)
        averages = wanted.pop("averages")
        restored = {name: self._arrays(step, name, tree) for name, tree in wanted.items()}
        stored = list(meta["averages"])
        common = {label: averages[label] for label in averages if label in stored}
        restored["averages"] = self.averages(step, common)
        for name, tree in restored.items():
            self._verify(step, name, tree, meta)
        added = tuple(label for label in averages if label not in stored)
        trees = {
            label: restored["averages"][label] if label in stored else _copy(restored["params"])
            for label in averages
        }
        opt_state = averaging.replace_averages(restored["opt"], trees)
        counter = jax.device_put(jnp.asarray(step, jnp.int32), abstract.step.sharding)
        state = TrainState(counter, restored["params"], opt_state)
        dropped = tuple(label for label in stored if label not in averages)
        return Restored(state, meta, added, dropped)

    def averages(self, step: int, abstract: Mapping[str, Params]) -> dict[str, Params]:
        """Returns some of a checkpoint's averages, reading only those.

        Args:
          step: the step to read.
          abstract: shapes, types and placement by label.
        """
        return self._arrays(step, "averages", dict(abstract)) if abstract else {}

    def _arrays(self, step: int, item: str, abstract: Any) -> Any:
        args = ocp.args.PyTreeRestore(
            item=abstract,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=True,  # some of the averages
        )
        return self._read(step, item, args)

    def _read(self, step: int, item: str, args: Any) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**{item: args}))[item]
        except Exception as error:  # Orbax and what it stands on raise many kinds
            raise RunError(
                f"checkpoint {self.directory / str(step)}: {item} cannot be read: {_brief(error)}. "
                "Remove that directory to go on from the checkpoint before it"
            ) from error

    def _verify(self, step: int, item: str, tree: Any, meta: Meta) -> None:
        expected = meta["checksums"][item]
        for name, found in checksums(tree).items():
            if found != expected.get(name):
                raise RunError(
                    f"checkpoint {self.directory / str(step)}: {item}{name} is damaged: its "
                    f"checksum is {found}, it was saved with {expected.get(name)}. Remove that "
                    "directory to go on from the checkpoint before it"
                )


@dataclasses.dataclass
class _KeepSteps(checkpoint_managers.PreservationPolicy):
    """Preserves the checkpoints whose step satisfies a predicate."""

    keep: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        del context
        return [self.keep(checkpoint.step) for checkpoint in checkpoints]


def checksums(tree: Any) -> dict[str, int]:
    """Returns a checksum of every array of a tree, by its path.

        sum_i (2 * h(i) + 1) * word_i  mod 2^32

        h(i) = (m ^ (m >> 12)) * 0x297A2D39,   m = (i ^ (i >> 15)) * 0x2C1B3C6D   mod 2^32

    with word_i the bits of the i-th element of the array in row-major order.

    Args:
      tree: arrays of 16- or 32-bit elements, on any layout of devices.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        return {}
    sums = jax.device_get(_checksum_all([leaf for _, leaf in leaves]))
    return {
        jax.tree_util.keystr(path): int(value)
        for (path, _), value in zip(leaves, sums, strict=True)
    }


@jax.jit
def _checksum_all(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(leaf) for leaf in leaves]


def _checksum(x: jax.Array) -> jax.Array:
    unsigned = {2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    words = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    position = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        position = position * jnp.uint32(size % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    mixed = (position ^ (position >> 15)) * jnp.uint32(0x2C1B3C6D)
    mixed = (mixed ^ (mixed >> 12)) * jnp.uint32(0x297A2D39)
    return jnp.sum(words * (2 * mixed + 1), dtype=jnp.uint32)


@jax.jit
def _copy(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) + 0, tree)


def _items(state: TrainState) -> dict[str, Any]:
    return {
        "params": state.params,
        "opt": averaging.replace_averages(state.opt_state, {}),
        "averages": averaging.averages(state.opt_state),
    }


def _brief(error: Exception) -> str:
    """What an error says, without the description of the storage that TensorStore appends."""
    text = str(error).split(" [tensorstore_spec")[0].split(". See full TensorStore")[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"
