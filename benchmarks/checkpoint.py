"""Time that a save blocks training, and the memory of many saves.

    python -m benchmarks.checkpoint --width=512 --layers=8
    python -m benchmarks.checkpoint --width=256 --layers=8 --saves=40

The state is the small run's with another width and depth. The first command compares a save with a
copy of the state and a write to disk. The arrays are filled with noise, since zeros would be
compressed away. On a CPU `jax.device_get` copies nothing, so a copy of the arrays is timed as well.

The second command makes 40 saves of a state of 218 MB, with one update while a save is written and
one after it. Row 0 is training before the first save. `resident` is the memory of the process, and
`allocated` the part that malloc has handed out. `resident_above` and `allocated_above` are by how
many times the size of the state the peaks are above those of row 0; a negative number is memory of
training that the first save gave back. With `--plain`, Orbax and malloc have their own defaults.
This needs Linux with glibc.
"""

import argparse
import contextlib
import ctypes
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from anytime_jax import __version__
from anytime_jax.checkpoints.array_checksums import checksums_and_nonfinite
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import processes, sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.train_state import TrainState
from anytime_jax.training import step
from benchmarks import harness, record

_PLAIN = "--plain"
_EMPTY_META = Meta(
    config={},
    origin={},
    fingerprint="",
    stages=(),
    vocabulary="",
    microbatches=1,
    version=__version__,
    jax=jax.__version__,
)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.checkpoint", __doc__, rounds=5)
    parser.add_argument(
        "--width", type=positive_int, default=512, help="of the model (default 512)"
    )
    parser.add_argument("--layers", type=positive_int, default=8, help="of the model (default 8)")
    parser.add_argument("--scratch", type=Path, help="directory on the disk to save to")
    parser.add_argument("--saves", type=positive_int, help="measure the memory of so many saves")
    parser.add_argument(_PLAIN, action="store_true", help="with --saves: defaults of others")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    shape = {"width": options.width, "mlp_width": 4 * options.width, "layers": options.layers}
    model = {**shape, "layer_loop": "scan"}
    if options.saves:
        return _measure_memory(
            harness.load_config(
                "small", model=model, batch_size=jax.device_count(), microbatches=1
            ),
            options,
        )
    config = harness.load_config("small", model=model)
    program = step.make_program(config, sharding.make_mesh(config.mesh))
    state = jax.block_until_ready(add_noise(program.init()))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    seconds = _time_saves(config, state, options.rounds, options.scratch)
    rows = [
        {
            "what": operation,
            "seconds": statistics.median(later),
            "fastest": min(later),
            "first_time": first,
            "MB_per_s": size / 1e6 / statistics.median(later),
        }
        for operation, (first, *later) in seconds.items()
    ]
    details = {"bytes": size, "seconds": seconds}
    return record.Result(f"Saving {size / 1e6:,.0f} MB of arrays", rows, details)


def _time_saves(
    config: Config, state: TrainState, rounds: int, scratch: Path | None = None
) -> dict[str, list[float]]:
    """Returns the seconds of each operation of `rounds` saves, after a first save that compiles."""
    seconds: dict[str, list[float]] = {}
    with _scratch_directory(scratch) as directory:
        manager = CheckpointManager(directory, retention_policy(config))
        for i in range(1, rounds + 2):
            state = state._replace(step=jnp.full_like(state.step, i))
            for operation, elapsed in _time_save(manager, state):
                seconds.setdefault(operation, []).append(elapsed)
        manager.close()
    return seconds


@contextlib.contextmanager
def _scratch_directory(parent: Path | None) -> Iterator[str]:
    """Yields a new directory, the same one in every process, and removes it at the end."""
    own = tempfile.mkdtemp(dir=parent) if processes.is_primary() else ""
    directory = processes.broadcast_text(own)
    try:
        yield directory
    finally:
        if processes.is_primary():
            shutil.rmtree(directory)


def add_noise(state: TrainState) -> TrainState:
    noise = np.random.default_rng(0)

    def fill(leaf: jax.Array) -> jax.Array:
        if leaf.ndim == 0:
            return leaf
        values = noise.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        return jax.device_put(values, leaf.sharding)

    return jax.tree.map(fill, state)


def _time_save(manager: CheckpointManager, state: TrainState) -> Iterator[tuple[str, float]]:
    yield "jax.device_get", harness.seconds_per_call(lambda: jax.device_get(state))
    copy = harness.seconds_per_call(lambda: jax.tree.map(np.array, state))
    yield "copy in host memory", copy
    yield "checksums alone", harness.seconds_per_call(lambda: checksums_and_nonfinite(state))
    start = time.perf_counter()
    manager.save(state, _EMPTY_META)
    yield "save returns", time.perf_counter() - start
    manager.wait()
    yield "on disk", time.perf_counter() - start


def _measure_memory(config: Config, options: argparse.Namespace) -> record.Result:
    mesh = sharding.make_mesh(config.mesh)
    program = step.make_program(config, mesh)
    batch = sharding.put_batch(mesh, harness.random_tokens(config)[0], config.batch_size)
    rates = step.rates_at(config, 0)
    state = program.init()
    # The part of this process.
    size = jax.local_device_count() * sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )

    def update() -> None:
        nonlocal state
        state, _ = program.train_step(state, batch, rates)
        jax.block_until_ready(state)

    rows: list[dict[str, Any]] = []
    with _scratch_directory(options.scratch) as directory, _Memory() as memory:
        save, wait, close = (
            _open_plain(directory) if options.plain else open_manager(directory, config)
        )
        for _ in range(5):  # the first compiles
            update()
        memory.reset_peaks()
        for _ in range(5):
            update()
        rows.append({"save": 0, "blocked_s": None, "on_disk_s": None, **memory.columns()})
        for i in range(1, options.saves + 1):
            memory.reset_peaks()
            start = time.perf_counter()
            save(state)
            blocked = time.perf_counter() - start
            update()
            wait()
            times = {"blocked_s": blocked, "on_disk_s": time.perf_counter() - start}
            update()
            rows.append({"save": i, **times, **memory.columns()})
        close()
    for row in rows:
        for kind in ("resident", "allocated"):
            above = row[f"peak_{kind}_MB"] - rows[0][f"peak_{kind}_MB"]
            row[f"{kind}_above"] = above / (size / 1e6)
    shown = {0, 1, 10, options.saves, *range(0, options.saves, max(options.saves // 4, 1))}
    title = f"Memory of {options.saves} saves of {size / 1e6:,.0f} MB of arrays"
    details = {"bytes": size, "saves": rows}
    return record.Result(title, [row for row in rows if row["save"] in shown], details)


_Manager = tuple[Callable[[TrainState], Any], Callable[[], Any], Callable[[], Any]]


def open_manager(directory: str, config: Config) -> _Manager:
    """Returns functions of the trainer's manager that save, wait and close."""
    manager = CheckpointManager(directory, retention_policy(config))
    return lambda state: manager.save(state, _EMPTY_META), manager.wait, manager.close


def _open_plain(directory: str) -> _Manager:
    """Returns functions of Orbax's own manager that save, wait and close."""
    manager = ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(max_to_keep=2))

    def save(state: TrainState) -> None:
        manager.save(int(state.step), args=ocp.args.StandardSave(state))

    return save, manager.wait_until_finished, manager.close


class _MallocInfo(ctypes.Structure):
    """What glibc's malloc has handed out: `hblkhd` bytes in mappings, `uordblks` in heaps."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class _Memory(threading.Thread):
    """Sampler of the memory of this process, in MB, every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._mallinfo = ctypes.CDLL(None).mallinfo2
        self._mallinfo.restype = _MallocInfo
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._peaks = self._now()

    def __enter__(self) -> "_Memory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.003):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            self._peaks = tuple(map(max, self._peaks, self._now()))

    def reset_peaks(self) -> None:
        with self._lock:
            self._peaks = self._now()

    def columns(self) -> dict[str, float]:
        """Returns what is resident and allocated, and the peaks since the last reset."""
        names = ("resident_MB", "allocated_MB", "peak_resident_MB", "peak_allocated_MB")
        self._sample()
        return dict(zip(names, (*self._now(), *self._peaks), strict=True))

    def _now(self) -> tuple[float, ...]:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        info = self._mallinfo()
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, (info.hblkhd + info.uordblks) / 1e6


if __name__ == "__main__":
    if _PLAIN not in sys.argv:
        configure()
    sys.exit(main(sys.argv[1:]))
