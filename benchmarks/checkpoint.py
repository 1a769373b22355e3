"""Time that a save blocks training, compared with a copy of the state and a write to disk.

    python -m benchmarks.checkpoint --width=512 --layers=8

The state is the small run's with another width and depth, filled with noise, since zeros would be
compressed away. On a CPU `jax.device_get` copies nothing, so a copy of the arrays is timed as well.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax import __version__
from anytime_jax.checkpoints.array_checksums import checksums_and_nonfinite
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.train_state import TrainState
from anytime_jax.training import step
from benchmarks import harness, record

EMPTY_META = Meta(
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
    parser.add_argument("--width", type=int, default=512, help="of the model (default 512)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default 8)")
    parser.add_argument("--scratch", type=Path, help="directory on the disk to save to")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    shape = {"width": options.width, "mlp_width": 4 * options.width, "layers": options.layers}
    config = harness.load_config("small", model={**shape, "layer_loop": "scan"})
    program = step.make_program(config, sharding.make_mesh(config.mesh))
    state = jax.block_until_ready(add_noise(program.init()))
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        manager = CheckpointManager(scratch, retention_policy(config))
        for i in range(1, options.rounds + 2):  # the first save compiles
            state = state._replace(step=jnp.full_like(state.step, i))
            for operation, elapsed in _time_save(manager, state):
                seconds.setdefault(operation, []).append(elapsed)
        manager.close()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
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
    manager.save(state, EMPTY_META)
    yield "save returns", time.perf_counter() - start
    manager.wait()
    yield "on disk", time.perf_counter() - start


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
