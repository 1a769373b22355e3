"""Token losses of weights per window, for paired differences with standard errors.

Shape suffixes: B batch, T = L + 1 tokens of a window.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from anytime_jax.config.model import ModelConfig
from anytime_jax.config.schema import MeshConfig
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.distributed.xla_settings import compiler_options
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.training import step


class Scorer:
    """Losses on a split of a dataset, "train" or "validation", in stored order, on all devices."""

    def __init__(self, config: ModelConfig, dataset: DatasetInfo, split: str, batch_size: int):
        """Opens a split; `batch_size` in windows is rounded up to a multiple of the devices.

        Raises an InputError if its windows are longer than in training.
        """
        if dataset.length > config.length:
            raise InputError(
                f"{dataset.path} has windows of {dataset.length} tokens, longer than the "
                f"{config.length} of training: prepare the text with --length={config.length}"
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
        self._compiled = jax.jit(
            mean_losses,
            in_shardings=(whole, rows),
            out_shardings=whole,
            compiler_options=compiler_options(self.mesh),
        )

    def put(self, params: Params) -> Params:
        """Copies weights to the devices."""
        return jax.device_put(params, sharding.replicated(self.mesh))

    def batches(self, count: int) -> Iterator[tuple[jax.Array, int]]:
        """Yields batches of the first `count` windows, each with its number of unpadded rows."""
        for start in range(0, count, self._batch_size):
            tokens_BxT = self._windows.batch(start, self._batch_size)
            used = min(self._batch_size, count - start)
            yield sharding.put_batch(self.mesh, tokens_BxT, self._batch_size), used

    def losses(self, params: Params, count: int) -> np.ndarray:
        """Returns the mean token loss in nats of each of the first `count` windows, float64."""
        params = self.put(params)
        losses = [(self._compiled(params, x), used) for x, used in self.batches(count)]
        return np.concatenate([np.asarray(part[:used], np.float64) for part, used in losses])


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of values and its standard error, assuming independent windows."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
