"""Checkpoint manager: saves and restores training states, with a checksum for every array.

A checkpoint is the directory `RUN/checkpoints/STEP` with four items, written by Orbax:

    params    the live weights
    opt       the optimizer state without the averages
    averages  the averages of the weights, by label
    meta      JSON: `checkpoint_reader.Meta`, with the checksums of all arrays, and its digest

Saves are atomic and asynchronous: only the copy of the arrays to host memory blocks the caller. On
a disk, a save ends with the renaming of its directory. In a bucket nothing can be renamed, so the
last file that Orbax writes completes a checkpoint.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from anytime_jax import averaging, optimizers
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader
from anytime_jax.checkpoints.array_checksums import checksums_and_nonfinite
from anytime_jax.checkpoints.retention import RetentionPolicy, checkpoint_bytes
from anytime_jax.checkpoints.tree_names import flatten_by_name, is_stacked, unflatten_by_name
from anytime_jax.distributed import jax_settings, lost_process_exit, processes
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.storage.failures import is_temporary, shorten_error
from anytime_jax.storage.files import (
    check_files,
    describe_free,
    free_bytes,
    is_link,
    remove_directory,
)
from anytime_jax.storage.paths import absolute_path
from anytime_jax.train_state import TrainState

# Orbax's time limit of a save: by the system's clock, which may be set forward during a save.
_TIMEOUT_SECONDS = 10 * 365 * 86_400
_DISK_FULL = ("No space left on device", "Disk quota exceeded")


@dataclasses.dataclass(frozen=True)
class RestoredCheckpoint:
    """A restored training state and the metadata of its checkpoint.

    `added_averages` are labels missing from the checkpoint; they start from its live weights.
    `dropped_averages` are labels in the checkpoint that the run no longer tracks.
    """

    state: TrainState
    meta: checkpoint_reader.Meta
    added_averages: tuple[str, ...]
    dropped_averages: tuple[str, ...]


class CheckpointManager:
    """Manager of the checkpoints of one run directory, which the primary process has locked."""

    def __init__(
        self,
        run_dir: str | Path,
        policy: RetentionPolicy,
        report: Callable[[str], None] = lambda text: None,
    ):
        """Removes half-written saves; reports every other entry that is not a checkpoint."""
        self._run_dir, self._policy = absolute_path(run_dir), policy
        self._directory = self._run_dir / checkpoint_listing.DIRECTORY
        self._report = report
        if processes.is_primary():
            for entry in checkpoint_listing.list_entries(run_dir):
                if entry.state == "half-written":
                    remove_directory(entry.path)
                    report(f"removed {entry.path.name}: an interrupted save")
                elif entry.state == "foreign":
                    report(f"ignored {entry.path}: it is not a checkpoint")
        processes.barrier()
        policies = [checkpoint_managers.LatestN(policy.rolling), _Keep(self._is_kept)]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
            enable_async_checkpointing=True,
            async_options=ocp.AsyncOptions(timeout_secs=_TIMEOUT_SECONDS),
        )
        try:
            self._check_marks()
            self._manager = _OrbaxManager(
                str(self._directory),
                item_names=("meta",),
                item_handlers={
                    item: ocp.PyTreeCheckpointHandler(handler_impl=_ArrayWriter())
                    for item in checkpoint_reader.ARRAY_ITEMS
                },
                options=options,
            )
        except (RecursionError, InputError) as error:  # Orbax ignores other damage to these files
            raise RunError(
                f"a {checkpoint_listing.COMPLETE_MARK} in {self._directory} is damaged ({error}): "
                "remove that checkpoint, or choose another run_dir"
            ) from error

    def _check_marks(self) -> None:
        """Raises an InputError if something else is where Orbax reads a file."""
        for step in checkpoint_listing.saved_steps(self._run_dir):
            check_files(self._directory / str(step) / checkpoint_listing.COMPLETE_MARK)

    def _is_kept(self, step: int) -> bool:
        """Returns whether a checkpoint is never deleted; symbolic links are always kept."""
        path = checkpoint_listing.checkpoint_path(self._run_dir, step)
        return self._policy.keeps_forever(step) or is_link(path)

    def save(self, state: TrainState, meta: checkpoint_reader.Meta) -> None:
        """Saves a state with metadata, to which it adds entries about the arrays.

        Returns as soon as the arrays may be donated.

        Raises a RunError if the state has a NaN or an infinity, the disk is full, or the previous
        save failed in the background.
        """
        step, items = int(state.step), _items(state)
        inspected = {item: checksums_and_nonfinite(tree) for item, tree in items.items()}
        readouts = jax.tree.map(float, jax.device_get(optimizers.readouts(items["opt"])))
        meta = dataclasses.replace(
            meta,
            step=step,
            averages=tuple(items["averages"]),
            checksums={item: sums for item, (sums, _) in inspected.items()},
            iterates=_find_iterates(items["opt"], items["params"]),
            readouts=readouts,
        )
        arrays = {
            item: _save_arguments(tree)
            for item, tree in items.items()
            if tree  # Orbax does not save empty items, and a run may track no averages
        }
        needed = checkpoint_bytes(sum(leaf.nbytes for leaf in jax.tree.leaves(items)))
        with self._saving():
            # The save itself waits for every process: one that refuses tells the others before.
            with processes.fail_together("save a checkpoint", RunError):
                self._manager.wait_until_finished()
                for item, (_, names) in inspected.items():
                    if names:
                        raise RunError(
                            f"{item}/{names[0]} has a NaN or an infinity at step {step:,}"
                        )
                if (free := free_bytes(self._directory)) < needed:
                    raise RunError(
                        f"the disk is full: a checkpoint needs {needed:,} bytes, {free:,} are free"
                    )
            jax_settings.return_freed_memory()
            args = ocp.args.Composite(**arrays, meta=ocp.args.JsonSave(meta.to_json()))
            self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Waits until every save is on disk; raises a RunError if one failed."""
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for every save and closes the manager; raises a RunError if a save failed."""
        with self._saving():
            self._manager.close()

    def restore(self, step: int, abstract: TrainState) -> RestoredCheckpoint:
        """Waits for saves in progress, then restores the checkpoint of a step."""
        self.wait()
        return restore_checkpoint(checkpoint_listing.checkpoint_path(self._run_dir, step), abstract)

    def restore_latest(self, abstract: TrainState, fall_back: bool) -> RestoredCheckpoint | None:
        """Restores the latest checkpoint; returns None if there is none.

        If the latest checkpoint is damaged, raises a RunError that names the newest good one. With
        `fall_back`, a damaged checkpoint is set aside instead, without deleting anything, and the
        newest good one is restored.
        """
        entries = checkpoint_listing.list_entries(self._run_dir)
        steps = [int(x.path.name) for x in entries if x.state in ("complete", "incomplete")]
        while (step := processes.broadcast(steps.pop() if steps else -1)) >= 0:
            path = checkpoint_listing.checkpoint_path(self._run_dir, step)
            steps = [earlier for earlier in steps if earlier < step]
            try:
                with processes.fail_together("see a checkpoint", RunError):
                    if processes.wait_until_visible(path.exists):
                        checkpoint_reader.check_complete(path)
                return self.restore(step, abstract)
            except RunError as error:
                if processes.broadcast(
                    processes.is_primary() and checkpoint_reader.is_intact(path)
                ):
                    raise  # the checkpoint itself is not damaged
                if not fall_back:
                    advice = _fall_back_advice(self._run_dir, steps)
                    raise RunError(f"{error}. {advice}") from error
                self._set_aside(path, error)
        return None

    def _set_aside(self, path: Path, error: RunError) -> None:
        damaged = path.name + checkpoint_listing.DAMAGED_SUFFIX
        names = (damaged + (f".{n}" if n else "") for n in itertools.count())
        target = next(x for name in names if not (x := path.with_name(name)).exists())
        if processes.is_primary():
            path.rename(target)
        processes.barrier()
        self._manager.reload()
        self._report(f"set aside as {target.name}: {error}")

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Converts any failure of this save, or of one in the background, into a RunError."""
        try:
            yield
        except Exception as error:
            reason = str(error) if isinstance(error, RunError) else shorten_error(error)
            if any(text in str(error) for text in _DISK_FULL):
                reason = f"the disk is full: {describe_free(self._directory)} are free"
            elif processes.is_sign_of_loss(error):
                raise lost_process_exit.make_error(error) from error
            is_ours = isinstance(error, RunError) or not is_temporary(error, self._directory)
            latest = checkpoint_listing.describe_latest(self._run_dir)
            raise (RunError if is_ours else BucketError)(
                f"a checkpoint could not be saved: {reason}; {latest}"
            ) from error


def restore_checkpoint(path: Path, abstract: TrainState) -> RestoredCheckpoint:
    """Restores a checkpoint of any run and compares every array with its checksum.

    `abstract` has `jax.ShapeDtypeStruct`s with the target shardings, which may differ from those
    of the save. Raises a RunError that names the item if one is missing or damaged.
    """
    items = _items(abstract)
    averages = items["averages"]
    with processes.fail_together("read its part of a checkpoint", RunError):
        meta = checkpoint_reader.read_meta(path)
        stored = meta.averages
        items["averages"] = {label: averages[label] for label in averages if label in stored}
        restored = {item: _restore_item(path, item, tree) for item, tree in items.items()}
    for item, tree in restored.items():
        checkpoint_reader.check_checksums(path, meta, item, tree)
    params, trees = restored["params"], restored["averages"]
    added = tuple(label for label in averages if label not in stored)
    dropped = tuple(label for label in stored if label not in averages)
    trees |= {label: _copy(params) for label in added}
    opt_state = averaging.replace_averages(restored["opt"], {x: trees[x] for x in averages})
    step = jax.device_put(jnp.asarray(meta.step, jnp.int32), abstract.step.sharding)
    return RestoredCheckpoint(TrainState(step, params, opt_state), meta, added, dropped)


class _OrbaxManager(ocp.CheckpointManager):
    """Manager that leaves preemption to `processes.PreemptionSignal`.

    A process that checks for preemption passes JAX a number, and JAX compares the numbers of all
    processes. The signal counts its own checks. Orbax would pass the step among these numbers, and
    a SIGTERM that arrives during a save would be missed.
    """

    def reached_preemption(self, step: int) -> bool:
        del step
        return False


class _ArrayWriter(ocp.BasePyTreeCheckpointHandler):
    """Writer of an item: a sixteenth of the item at a time, or the largest array if that is more.

    Orbax's default of 96 GB would hold a second, compressed copy of most states in memory.
    """

    async def async_save(self, directory: Any, args: Any) -> Any:
        """Copies the arrays of `args.item` to host memory; returns futures of the writes."""
        arrays = jax.tree.leaves(args.item)
        largest = max(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
        share = sum(x.nbytes for x in arrays) // jax.process_count() // 16
        # Orbax admits less than the limit.
        limited = ocp.BasePyTreeCheckpointHandler(save_concurrent_bytes=max(largest, share) + 1)
        return await limited.async_save(directory, args)


@dataclasses.dataclass
class _Keep(checkpoint_managers.PreservationPolicy):
    """Preserves the checkpoints whose step satisfies a predicate."""

    keep: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        del context
        return [self.keep(checkpoint.step) for checkpoint in checkpoints]


def _fall_back_advice(run_dir: Path, steps: Sequence[int]) -> str:
    for step in reversed(steps):
        if checkpoint_reader.is_intact(checkpoint_listing.checkpoint_path(run_dir, step)):
            return (
                f"The newest good one is of step {step:,}: --fall-back sets the damaged ones "
                "aside and resumes from there"
            )
    return "There is no good one: choose another run_dir, or --fall-back to start again"


def _items(state: TrainState) -> dict[str, Any]:
    return {
        "params": state.params,
        "opt": averaging.replace_averages(state.opt_state, {}),
        "averages": averaging.averages(state.opt_state),
    }


def _save_arguments(tree: Any) -> ocp.args.PyTreeSave:
    """Returns arguments for Orbax with which each layer is stored in chunks of its own."""
    arrays = flatten_by_name(tree)
    chunks = {
        name: ocp.SaveArgs(shard_axes=(0,) if is_stacked(name) and x.ndim > 1 else ())
        for name, x in arrays.items()
    }
    return ocp.args.PyTreeSave(unflatten_by_name(arrays), unflatten_by_name(chunks))


def _find_iterates(opt: Any, params: Any) -> dict[str, str]:
    """Returns, by label, the prefix of the names of each further iterate of the method in `opt`."""
    names = {id(leaf): name for name, leaf in flatten_by_name(opt).items()}
    first = next(iter(flatten_by_name(params)))
    return {
        label: names[id(flatten_by_name(tree)[first])].removesuffix(first)
        for label, tree in optimizers.iterates(opt).items()
    }


def _restore_item(path: Path, item: str, abstract: Any) -> Any:
    if not abstract:
        return abstract
    arrays = checkpoint_reader.read_arrays(path, item, flatten_by_name(abstract))
    return jax.tree.unflatten(jax.tree.structure(abstract), arrays.values())


@jax.jit
def _copy(tree: Any) -> Any:
    # The sum allocates a new buffer; `jit` does not for an output that is an input.
    return jax.tree.map(lambda x: x.astype(jnp.float32) + 0, tree)
