"""CheckpointManager: complete or invisible, checked when read, each part readable alone.

A checkpoint of a run lies in `RUN/checkpoints/STEP` and holds four items, written by Orbax:

    params    the live weights
    opt       the optimizer's state without the averages
    averages  the averages of the weights, by label
    meta      JSON: step, samples, tokens, configuration, versions, a checksum of every array, and
              a digest of all this

Only the copy of the arrays to host memory blocks the caller. Reading computes every checksum again.
"""

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from anytime_jax import averaging
from anytime_jax.checkpoints import checkpoint_directory, checkpoint_reader
from anytime_jax.checkpoints.checkpoint_directory import DAMAGED_SUFFIX, Entry
from anytime_jax.checkpoints.checkpoint_reader import ARRAY_ITEMS, Meta
from anytime_jax.checkpoints.checksums import checksums, checksums_and_nonfinite, json_digest
from anytime_jax.checkpoints.retention import RetentionPolicy, checkpoint_bytes, free_bytes
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.checkpoints.tree_names import flatten_by_name, unflatten_by_name
from anytime_jax.distributed import processes
from anytime_jax.distributed.sharding import is_in_host_memory
from anytime_jax.errors import RunError
from anytime_jax.models.decoder import Params

_FULL = ("No space left on device", "Disk quota exceeded")  # what the system says


@dataclasses.dataclass(frozen=True)
class RestoredCheckpoint:
    """A state read back.

    Attributes:
      state: the state as it was saved.
      meta: what was saved beside it.
      added_averages: labels of averages that the checkpoint lacks; they start from
        its live weights.
      dropped_averages: labels of averages that the checkpoint has and the run no longer keeps.
    """

    state: TrainState
    meta: Meta
    added_averages: tuple[str, ...]
    dropped_averages: tuple[str, ...]


class CheckpointManager:
    """The checkpoints of one run directory, held by this process."""

    def __init__(
        self,
        run_dir: str | Path,
        policy: RetentionPolicy,
        say: Callable[[str], None] = lambda text: None,
    ):
        """Opens, and creates if need be, the checkpoints of a run.

        Args:
          run_dir: the run's directory.
          policy: which checkpoints stay.
          say: is told what is found that is no checkpoint.
        """
        self.directory = Path(run_dir).absolute() / checkpoint_directory.DIRECTORY
        self._say = say
        self._bytes = 0  # of the save under way
        if processes.is_primary():
            for found in checkpoint_directory.list_entries(run_dir):
                if found.kind == "half-written":
                    shutil.rmtree(found.path)
                    say(f"removed {found.path.name}: the save was cut short")
                elif found.kind == "foreign":
                    say(f"passing over {found.path}: it is no checkpoint")
        processes.barrier()
        rolling = checkpoint_managers.LatestN(policy.rolling)
        kept = checkpoint_managers.AnyPreservationPolicy([rolling, _Keep(policy.keeps_forever)])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=kept, enable_async_checkpointing=True
        )
        self._manager = ocp.CheckpointManager(
            self.directory, item_names=(*ARRAY_ITEMS, "meta"), options=options
        )

    def save(self, state: TrainState, meta: Mapping[str, Any]) -> None:
        """Saves a state; returns once it is copied to host memory.

        Args:
          state: the state; its arrays may be donated as soon as this returns.
          meta: plain data to save beside it.

        Raises:
          RunError: if the state holds a NaN or an infinity, if the disk is full, or if the save
            before this one has failed meanwhile; the message names the last good checkpoint.
        """
        step, items = int(state.step), _items(state)
        sums, bad = checksums_and_nonfinite(items)
        # Orbax has no empty items: a run may keep no averages.
        arrays = {
            name: ocp.args.PyTreeSave(
                unflatten_by_name(flatten_by_name(jax.tree.map(_detached, tree)))
            )
            for name, tree in items.items()
            if tree
        }
        about = {**meta, "step": step, "averages": list(items["averages"])}
        about["checksums"] = {item: _of_item(item, sums) for item in items}
        about["digest"] = json_digest(about)
        args = ocp.args.Composite(**arrays, meta=ocp.args.JsonSave(about))
        self.wait()
        with self._saving():
            if bad:
                raise RunError(f"{bad[0]} holds a NaN or an infinity at step {step:,}")
            self._bytes = self._needed(items)
            if free_bytes(self.directory) < self._bytes:
                raise RunError(self._missing())
            self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Returns once every save is on disk; raises a RunError if one failed."""
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for every save and lets go of the directory; raises a RunError if one failed."""
        with self._saving():
            self._manager.close()

    def restore(self, step: int, abstract: TrainState) -> RestoredCheckpoint:
        """Waits for saves under way, then does what the function `restore` does for a step."""
        self.wait()
        return restore_checkpoint(self.directory / str(step), abstract)

    def restore_latest(self, abstract: TrainState, fall_back: bool) -> RestoredCheckpoint | None:
        """Restores the newest checkpoint; None if there is none.

        Args:
          abstract: as for `restore`.
          fall_back: whether to set a damaged one aside and go on from the newest good one. Nothing
            is deleted.

        Raises:
          RunError: if it is damaged; the message names the newest good one.
        """
        kinds, found = (
            ("complete", "incomplete"),
            checkpoint_directory.list_entries(self.directory.parent),
        )
        steps = [x for x in found if x.kind in kinds]
        while (step := processes.broadcast(int(steps.pop().path.name) if steps else -1)) >= 0:
            path = self.directory / str(step)
            steps = [x for x in steps if int(x.path.name) < step]
            try:
                return self._restore_whole(path, abstract)
            except RunError as error:
                self._set_aside(path, error, steps, fall_back)
        return None

    def _restore_whole(self, path: Path, abstract: TrainState) -> RestoredCheckpoint:
        """Restores a checkpoint that the first process has found."""
        with processes.fail_together("see a checkpoint", RunError):
            if (
                processes.wait_until_visible(path.exists)
                and checkpoint_directory.classify(path).kind == "incomplete"
            ):
                checkpoint_reader.verify_checkpoint(path)  # says what is wrong with it
        return self.restore(int(path.name), abstract)

    def _set_aside(
        self, path: Path, error: RunError, older: Sequence[Entry], fall_back: bool
    ) -> None:
        """Renames a damaged checkpoint where that is allowed, and raises where it is not."""
        if processes.broadcast(processes.is_primary() and checkpoint_reader.is_intact(path)):
            raise error  # reading it failed for a reason that is not on disk
        if not fall_back:
            good = next((x for x in reversed(older) if checkpoint_reader.is_intact(x.path)), None)
            advice = (
                f"The newest good one is that of step {good.step:,}: --fall_back sets the damaged "
                "ones aside and goes on from there"
                if good
                else "There is no good one: give another run_dir, or --fall_back to begin again"
            )
            raise RunError(f"{error}. {advice}") from error
        names = (f"{path.name}{DAMAGED_SUFFIX}{f'.{n}' if n else ''}" for n in itertools.count())
        aside = next(x for name in names if not (x := path.with_name(name)).exists())
        if processes.is_primary():
            path.rename(aside)
        processes.barrier()
        self._manager.reload()
        self._say(f"set aside as {aside.name}: {error}")

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of this save, or of one that was still being written
            last = checkpoint_directory.saved_steps(self.directory.parent)[-1:]
            what = (
                str(error)
                if isinstance(error, RunError)
                else checkpoint_reader.shorten_error(error)
            )
            if any(sign in str(error) for sign in _FULL):
                what = self._missing()
            raise RunError(
                f"a checkpoint could not be saved in {self.directory}: {what}; the last "
                f"good one is {f'that of step {last[0]:,}' if last else 'none'}"
            ) from error

    def _needed(self, items: Any) -> int:
        """The disk space of a checkpoint: its arrays, or what the last one took if that is more."""
        last = checkpoint_directory.saved_steps(self.directory.parent)[-1:]
        taken = [
            checkpoint_directory.disk_usage(self.directory / str(step), blocks=True)
            for step in last
        ]
        arrays = sum(leaf.nbytes for leaf in jax.tree.leaves(items))
        return max([checkpoint_bytes(arrays), *taken])

    def _missing(self) -> str:
        """How much space a save lacks, now that what it had begun to write is on the disk."""
        found = checkpoint_directory.list_entries(self.directory.parent)
        half = [x.path for x in found if x.kind == "half-written"]
        begun = [checkpoint_directory.disk_usage(path, blocks=True) for path in half]
        free = free_bytes(self.directory) + sum(begun)
        lack = max(0, self._bytes - free)
        missing = f"{lack:,} are missing" if lack else "but something else filled it meanwhile"
        return f"the disk is full: it needs {self._bytes:,} bytes, {free:,} are free, {missing}"


def restore_checkpoint(path: Path, abstract: TrainState) -> RestoredCheckpoint:
    """Restores a state on any layout of devices and checks every array; changes nothing on disk.

    Args:
      path: directory of the checkpoint, of this run or another.
      abstract: shapes, types and placement to restore to (`Program.abstract_state`).

    Raises:
      RunError: if a part is missing or damaged; the message names it.
    """
    wanted = _items(abstract)
    averages = wanted.pop("averages")
    with processes.fail_together("read its part of a checkpoint", RunError):
        meta = checkpoint_reader.read_meta(path)
        stored = list(meta["averages"])
        restored = {item: _read(path, item, tree) for item, tree in wanted.items()}
        common = {label: averages[label] for label in averages if label in stored}
        restored["averages"] = read_averages(path, common)
    sums = checksums({item: restored[item] for item in ARRAY_ITEMS})
    for item in ARRAY_ITEMS:
        checkpoint_reader.check_checksums(path, item, _of_item(item, sums), meta["checksums"][item])
    trees = {
        label: restored["averages"][label]
        if label in stored
        else jax.tree.map(_placed, _copy(restored["params"]), averages[label])
        for label in averages
    }
    opt_state = averaging.replace_averages(restored["opt"], trees)
    counter = jax.device_put(jnp.asarray(meta["step"], jnp.int32), abstract.step.sharding)
    return RestoredCheckpoint(
        TrainState(counter, restored["params"], opt_state),
        meta,
        added_averages=tuple(label for label in averages if label not in stored),
        dropped_averages=tuple(label for label in stored if label not in averages),
    )


def read_averages(path: Path, abstract: Mapping[str, Params]) -> dict[str, Params]:
    """Returns some of a checkpoint's averages, reading only those.

    Args:
      path: directory of the checkpoint.
      abstract: shapes, types and placement by label.
    """
    return _read(path, "averages", dict(abstract)) if abstract else {}


@dataclasses.dataclass
class _Keep(checkpoint_managers.PreservationPolicy):
    """Preserves the checkpoints whose step satisfies a predicate."""

    keep: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        del context
        return [self.keep(checkpoint.step) for checkpoint in checkpoints]


def _of_item(item: str, sums: Mapping[str, str]) -> dict[str, str]:
    """The checksums of one item, by the names inside it."""
    inside = [name for name in sums if name.startswith(f"{item}/")]
    return {name.removeprefix(f"{item}/"): sums[name] for name in inside}


def _read(path: Path, item: str, abstract: Any) -> Any:
    """The arrays of an item in the tree's own structure."""
    arrays = checkpoint_reader.read_arrays(path, item, flatten_by_name(abstract))
    return jax.tree.unflatten(jax.tree.structure(abstract), arrays.values())


@jax.jit
def _copy(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) + 0, tree)


def _placed(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(x, like.sharding) if is_in_host_memory(like) else x


def _detached(x: Any) -> Any:
    """The array; a copy of one in host memory, which Orbax reads where it is while it saves."""
    return jax.device_put(x, x.sharding, may_alias=False) if is_in_host_memory(x) else x


def _items(state: TrainState) -> dict[str, Any]:
    return {
        "params": state.params,
        "opt": averaging.replace_averages(state.opt_state, {}),
        "averages": averaging.averages(state.opt_state),
    }
