"""Loss of any weight trees on the same windows, in training and of a saved run."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import averaging, optimizers
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset_info import DatasetInfo
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
    """Evaluates weight trees on the first `count` windows of a split.

    Attributes:
      windows: windows of the split in stored order, repeating.
      length: number of tokens predicted in a window.
    """

    program: Program
    windows: Windows
    length: int
    count: int
    batch_size: int
    mesh: Mesh

    def losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Returns the mean token loss in nats of each tree, from one pass over the windows.

        `interrupted` is called at every batch; once it returns true, the result is None.
        """
        eval_step = self.program.eval_step
        sums: list[dict[str, Any]] = []
        for batch in self.batches(self.count):
            if interrupted():
                return None
            sums.append({label: eval_step(tree, *batch) for label, tree in trees.items()})
            # One batch is computed while the next is read; more would pile up on the device.
            if len(sums) > 1:
                sums[-2] = {label: float(value) for label, value in sums[-2].items()}
        tokens = self.count * self.length
        return {label: math.fsum(float(x[label]) for x in sums) / tokens for label in trees}

    def window_losses(self, params: decoder.Params) -> np.ndarray:
        """Returns the mean token loss in nats of each window, float64; in a single process only."""
        losses = [self.program.window_losses(params, x) for x, _ in self.batches(self.count)]
        return np.concatenate(losses).astype(np.float64)[: self.count] / self.length

    def batches(self, count: int) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields the tokens of the first `count` windows in batches, and a weight for each row.

        The last batch is filled up with windows of weight 0; all others have weight 1.
        """
        size, rows = self.batch_size, sharding.local_rows(self.mesh, self.batch_size)
        for start in range(0, count, size):
            weights = (np.arange(start, start + size) < count).astype(np.float32)[rows]
            batch = self.windows.batch(start, size, rows), weights
            tokens_BxT, weights_B = (sharding.put_batch(self.mesh, x, size) for x in batch)
            yield tokens_BxT, weights_B


def make_evaluator(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    program: Program,
    split: str = "validation",
    count: int | None = None,
    batch_size: int | None = None,
) -> Evaluator:
    """Returns an evaluator on a split; count and batch size are by default those of training.

    Batches have at most `count` windows, and a multiple of the mesh's parts of a batch.
    """
    count = count or config.eval_windows(dataset.splits[split].windows)
    windows = Windows(dataset, split, length=dataset.length, seed=0, repeat=True, shuffle=False)
    shards = sharding.batch_shards(mesh)
    size = -(-min(batch_size or config.eval.batch_size, count) // shards) * shards
    return Evaluator(program, windows, dataset.length, count, size, mesh)
