"""Validation loss of the live weights and of every average, on the same windows."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import averaging, optimizers
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.training.step import Program


def weight_trees(state: TrainState) -> dict[str, decoder.Params]:
    """Returns the live weights, every average, and the read-outs of the optimizer, by label.

    Averages are ordered by the labels' numbers.
    """
    averages = averaging.averages(state.opt_state)
    # JAX sorts the keys of a dict as strings, f100 before f6.25.
    labels = sorted(averages, key=averaging.label_order)
    opt_state = averaging.replace_averages(state.opt_state, {})
    stored = optimizers.iterates(opt_state)
    mixed = _mixtures(opt_state, state.params) if stored else {}
    read_out = jax.eval_shape(optimizers.readouts, opt_state)
    of_optimizer = {label: stored[label] if label in stored else mixed[label] for label in read_out}
    averages = {label: averages[label] for label in labels}
    return {averaging.LIVE: state.params, **averages, **of_optimizer}


@jax.jit
def _mixtures(opt_state: Any, params: decoder.Params) -> dict[str, decoder.Params]:
    """Returns the read-outs that must be computed.

    Those that the state stores as they are, are left out: jit would copy them.
    """
    stored = optimizers.iterates(opt_state)
    trees = optimizers.eval_params(opt_state, params)
    return {label: tree for label, tree in trees.items() if label not in stored}


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates weight trees on the first `count` windows of the validation split.

    All trees are evaluated in one pass over the windows. `eval_step` returns the sum of the token
    losses of a batch (`step.Program.eval_step`). `windows` is in stored order and repeats; `length`
    is the number of tokens predicted in a window.
    """

    eval_step: Callable[[decoder.Params, jax.Array, jax.Array], jax.Array]
    windows: Windows
    length: int
    count: int
    batch_size: int
    mesh: Mesh

    def losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Returns the mean token loss in nats of each tree.

        `interrupted` is called before every batch; once it returns true, the result is None.
        """
        sums: list[dict[str, Any]] = []
        size, rows = self.batch_size, sharding.local_rows(self.mesh, self.batch_size)
        for start in range(0, self.count, size):
            if interrupted():
                return None
            # The last batch is filled up with windows of weight zero.
            weights = (np.arange(start, start + size) < self.count).astype(np.float32)[rows]
            batch = self.windows.batch(start, size, rows), weights
            inputs = [sharding.put_batch(self.mesh, array, size) for array in batch]
            sums.append({label: self.eval_step(tree, *inputs) for label, tree in trees.items()})
            # One batch is computed while the next is read; more would pile up on the device.
            if len(sums) > 1:
                sums[-2] = {label: float(value) for label, value in sums[-2].items()}
        tokens = self.count * self.length
        return {label: math.fsum(float(x[label]) for x in sums) / tokens for label in trees}


def make_evaluator(config: Config, mesh: Mesh, dataset: DatasetInfo, program: Program) -> Evaluator:
    """Returns the evaluator of a run."""
    length, shards = config.model.length, sharding.batch_shards(mesh)
    windows = Windows(dataset, "validation", length=length, seed=0, repeat=True, shuffle=False)
    # A batch beyond all windows would be filled up with windows of weight zero.
    count = config.eval_windows(dataset.splits["validation"].windows)
    batch_size = min(config.eval.batch_size, -(-count // shards) * shards)
    return Evaluator(program.eval_step, windows, length, count, batch_size, mesh)
