"""Token losses of weight trees, window by window, so that differences come with their noise.

Legend of shape suffixes: B batch, T = L + 1 tokens of a window.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from anytime_jax.config.model import ModelConfig
from anytime_jax.config.schema import MeshConfig
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.training import step


class Scorer:
    """Losses on a split of a data set, in stored order, on all devices."""

    def __init__(self, config: ModelConfig, dataset: DatasetInfo, split: str, batch_size: int):
        """Opens a split.

        Args:
          config: the decoder.
          dataset: prepared token windows, of at most the decoder's length.
          split: "train" or "validation".
          batch_size: windows computed at once; rounded up to a multiple of the devices.

        Raises:
          InputError: there is no such split, or its windows are longer than those of training.
        """
        if dataset.length > config.length:
            raise InputError(
                f"{dataset.path} has windows of {dataset.length} tokens, the decoder was trained "
                f"on {config.length}: prepare the text with --length={config.length}"
            )
        self.length = dataset.length
        self.mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, tensor=1))
        self._windows = Windows(
            dataset, split, length=dataset.length, seed=0, repeat=True, shuffle=False
        )
        self._batch_size = -(-batch_size // self.mesh.size) * self.mesh.size
        rows, whole = sharding.batch_sharding(self.mesh), sharding.replicated(self.mesh)
        constrain = sharding.ShardingConstraint(self.mesh)

        def mean_losses(params: Params, tokens_BxT: jax.Array) -> jax.Array:
            return step.batch_token_losses(config, constrain, params, tokens_BxT).mean(axis=1)

        self.mean_losses: Callable[[Params, jax.Array], jax.Array] = mean_losses
        self._compiled = jax.jit(mean_losses, in_shardings=(whole, rows), out_shardings=whole)

    def put(self, params: Params) -> Params:
        """Returns weights on the devices."""
        return jax.device_put(params, sharding.replicated(self.mesh))

    def batches(self, first: int, count: int) -> Iterator[tuple[jax.Array, int]]:
        """Yields the windows from `first` on, each batch with the number that are to count."""
        for start in range(first, first + count, self._batch_size):
            tokens_BxT = self._windows.batch(start, self._batch_size)
            used = min(self._batch_size, first + count - start)
            yield sharding.put_batch(self.mesh, tokens_BxT, self._batch_size), used

    def losses(self, params: Params, first: int, count: int) -> np.ndarray:
        """Returns the mean token loss in nats of each of `count` windows, float64.

        Args:
          params: weights on the devices (`put`).
          first: number of the first window.
          count: of windows.
        """
        found = [(self._compiled(params, x), used) for x, used in self.batches(first, count)]
        return np.concatenate([np.asarray(part[:used], np.float64) for part, used in found])


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of some numbers and its standard error; windows count as independent."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
