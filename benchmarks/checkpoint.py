"""How long a save blocks the loop, beside a copy of the state to host memory and the disk.

    python -m benchmarks.checkpoint --width=512 --layers=8

The state is the quickstart's with another width and depth, filled with noise: zeros would be
compressed away. On a CPU `jax.device_get` copies nothing, so a copy of the arrays is timed as well.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checkpoints.checksums import checksums_and_nonfinite
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.commands.command_line import exit_status
from anytime_jax.distributed import sharding
from anytime_jax.distributed.runtime import configure
from anytime_jax.training import step
from benchmarks import measure, record


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("checkpoint", __doc__, rounds=5)
    parser.add_argument("--width", type=int, default=512, help="of the model (default 512)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default 8)")
    parser.add_argument("--scratch", type=Path, help="directory on the disk to save to")
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    shape = {"width": given.width, "mlp_width": 4 * given.width, "layers": given.layers}
    settings = measure.load_config("quickstart", model={**shape, "layer_loop": "scan"})
    program = step.make_program(settings, sharding.make_mesh(settings.mesh))
    state = jax.block_until_ready(_noisy(program.init()))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        checkpoints = CheckpointManager(scratch, retention_policy(settings))
        for number in range(1, given.rounds + 2):  # the first one compiles, and is left out
            at = state._replace(step=jnp.full_like(state.step, number))
            for what, seconds in _save(checkpoints, at):
                found.setdefault(what, []).append(seconds)
        checkpoints.close()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    rows = [_row(what, seconds, total) for what, seconds in found.items()]
    title, details = f"Saving {total / 1e6:,.0f} MB of arrays", {"bytes": total, "seconds": found}
    record.leave("checkpoint", argv, title, rows, given.output, details)
    return 0


def _noisy(state: TrainState) -> TrainState:
    """The state with noise in every array of more than one number."""
    noise = np.random.default_rng(0)

    def fill(leaf: jax.Array) -> jax.Array:
        if leaf.ndim == 0:
            return leaf
        values = noise.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        return jax.device_put(values, leaf.sharding)

    return jax.tree.map(fill, state)


def _save(checkpoints: CheckpointManager, state: TrainState) -> Iterator[tuple[str, float]]:
    """Saves a state: the seconds of each thing in turn."""
    yield "jax.device_get", measure.repeat(lambda: jax.device_get(state))
    yield (
        "copy in host memory",
        measure.repeat(lambda: jax.tree.map(lambda x: np.array(x, copy=True), state)),
    )
    yield "checksums alone", measure.repeat(lambda: checksums_and_nonfinite(state))
    began = time.perf_counter()
    checkpoints.save(state, {})
    yield "save returns", time.perf_counter() - began
    checkpoints.wait()
    yield "on disk", time.perf_counter() - began


def _row(what: str, seconds: Sequence[float], total: int) -> record.Row:
    first, *later = seconds
    return {
        "what": what,
        "seconds": record.middle(later),
        "fastest": record.rounded(min(later)),
        "first_time": record.rounded(first),
        "MB_per_s": record.rounded(total / 1e6 / record.middle(later)),
    }


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
