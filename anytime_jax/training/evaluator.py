"""Validation loss of the live weights and of every average, over the same windows.

One pass over the windows serves all that is in device memory. A tree that is kept in host memory
comes to the device for a pass of its own, so that no two of them are there together.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import averaging
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder


def weight_trees(state: TrainState) -> dict[str, decoder.Params]:
    """Returns the live weights and every average by label, in the order of their numbers."""
    trees = averaging.averages(state.opt_state)
    # JAX sorts the keys of a dict by letters; people want f6.25 before f100.
    ordered = sorted(trees, key=averaging.label_order)
    return {averaging.LIVE: state.params, **{label: trees[label] for label in ordered}}


class Evaluator:
    """Evaluates weight trees on the first windows of the validation split, the same every time."""

    def __init__(
        self,
        eval_step: Callable[[decoder.Params, jax.Array, jax.Array], jax.Array],
        windows: Windows,
        length: int,
        count: int,
        batch_size: int,
        mesh: Mesh,
    ):
        """Prepares an evaluation.

        Args:
          eval_step: sum of the token losses of a batch (`step.Program.eval_step`).
          windows: the validation split, in stored order and repeating.
          length: tokens predicted in a window.
          count: number of windows to use.
          batch_size: windows evaluated at once.
          mesh: the device mesh.
        """
        self._eval_step = eval_step
        self._windows = windows
        self._length = length
        self._count = count
        self._batch_size = batch_size
        self._mesh = mesh

    def __call__(
        self, state: TrainState, interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Returns the mean token loss in nats of the live weights and every average, by label.

        Args:
          state: what to evaluate.
          interrupted: asked between batches; once true, the evaluation ends and returns None.
        """
        return self.losses(weight_trees(state), interrupted)

    def losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        """Returns the mean token loss in nats of each weight tree; None once `interrupted`.

        Where `eval_step` gives arrays, one loss for each of several runs, so does this.
        """
        away = [label for label, tree in trees.items() if _is_away(tree)]
        here = {label: tree for label, tree in trees.items() if label not in away}
        found: dict[str, Any] = {}
        for part in [here] * bool(here) + [{label: trees[label]} for label in away]:
            losses = self._losses(sharding.to_device_memory(part), interrupted)
            if losses is None:
                return None
            found |= losses
        return {label: found[label] for label in trees}

    def _losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """What `losses` does, of trees in device memory, in one pass."""
        sums: list[dict[str, Any]] = []
        for tokens, weights in self._batches():
            if interrupted():
                return None
            sums.append({k: self._eval_step(tree, tokens, weights) for k, tree in trees.items()})
            # One batch is computed while the next is read; more would pile up on the device.
            if len(sums) > 1:
                sums[-2] = {label: np.asarray(part) for label, part in sums[-2].items()}
        tokens = self._count * self._length
        return {
            label: np.sum([part[label] for part in sums], axis=0, dtype=np.float64) / tokens
            for label in trees
        }

    def _batches(self) -> Iterator[tuple[jax.Array, jax.Array]]:
        size = self._batch_size
        rows = sharding.local_rows(self._mesh, size)
        for start in range(0, self._count, size):
            # The last batch is filled up with windows that weigh nothing.
            weights = (np.arange(start, start + size) < self._count).astype(np.float32)
            tokens = self._windows.batch(start, size, rows)
            yield (
                sharding.put_batch(self._mesh, tokens, size),
                sharding.put_batch(self._mesh, weights[rows], size),
            )


def _is_away(tree: decoder.Params) -> bool:
    return any(map(sharding.is_in_host_memory, jax.tree.leaves(tree)))
