"""Compiled functions of a run, as the training loop calls them."""

import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.formatting import format_duration
from anytime_jax.training.batches import Batch
from anytime_jax.training.evaluator import Evaluator, weight_trees
from anytime_jax.training.memory import describe_program
from anytime_jax.training.step import Metrics, Program, TrainState


class LoopProgram:
    """The compiled functions of a run, as the training loop calls them."""

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        dataset: DatasetInfo,
        program: Program,
        say: Callable[[str], None],
    ):
        """Compiles nothing yet; `say` is called with a line on the first update that is."""
        self._say, self._mesh, self._train_step = say, mesh, program.train_step
        self._compiled: dict[tuple[int, ...], jax.stages.Compiled] = {}  # by shape of the tokens
        length = config.model.length
        windows = Windows(dataset, "validation", length=length, seed=0, repeat=True, shuffle=False)
        shards = sharding.batch_shards(mesh)
        # A batch beyond all windows would be filled up with windows of weight zero.
        count = config.eval_windows(dataset.splits["validation"].windows)
        batch_size = min(config.eval.batch_size, -(-count // shards) * shards)
        self._evaluator = Evaluator(program.eval_step, windows, length, count, batch_size, mesh)

    def update(
        self, state: TrainState, batch: Batch, rate: np.float32
    ) -> tuple[TrainState, Metrics]:
        """Makes one update, donating `state`; returns the new state and metrics."""
        tokens = sharding.put_batch(self._mesh, *batch)
        if tokens.shape not in self._compiled:
            self._compiled[tokens.shape] = self._compile(state, tokens, rate)
        return self._compiled[tokens.shape](state, tokens, rate)

    def _compile(
        self, state: TrainState, tokens: jax.Array, rate: np.float32
    ) -> jax.stages.Compiled:
        began = time.perf_counter()
        compiled = self._train_step.lower(state, tokens, rate).compile()
        if not self._compiled:
            seconds = format_duration(time.perf_counter() - began)
            memory = describe_program(compiled, sharding.device_memory(self._mesh))
            self._say(f"update   compiled in {seconds}: {memory}")
        return compiled

    def evaluate(
        self, state: TrainState, interrupted: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Returns the validation losses by label; None if `interrupted`."""
        return self._evaluator.losses(weight_trees(state), interrupted)
