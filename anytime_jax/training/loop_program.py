"""Program of the training loop: the compiled functions of one run, or of a fleet of runs."""

import copy
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.distributed.xla_settings import compiler_options
from anytime_jax.formatting import format_duration
from anytime_jax.training import fleet, step
from anytime_jax.training.batches import Batch
from anytime_jax.training.evaluator import Evaluator, weight_trees
from anytime_jax.training.memory import describe_program
from anytime_jax.training.step import Metrics, Program, TrainState


class LoopProgram:
    """The compiled functions of one run, or of a fleet, as the training loop calls them.

    In a fleet, every leaf of the state, every metric and every loss has a leading axis R.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        mesh: Mesh,
        dataset: DatasetInfo,
        program: Program | None,
        say: Callable[[str], None],
    ):
        """Takes the functions of `program`, that of a single run; None for those of a fleet.

        `say` is called with a line on the first update that is compiled.
        """
        self._say = say
        self._configs, self._mesh, self._is_fleet = configs, mesh, program is None
        self._compiled: dict[Any, jax.stages.Compiled] = {}  # updates, by shape of the tokens
        if program is None:
            constrain = sharding.ShardingConstraint(mesh)
            eval_step = functools.partial(step.eval_step, configs[0].model, constrain)
            eval_step = jax.vmap(eval_step, in_axes=(0, None, None))
            eval_step = jax.jit(eval_step, compiler_options=compiler_options(mesh))
            self._train_step = fleet.vectorize_update(configs, mesh)
        else:
            self._train_step, eval_step = program.train_step, program.eval_step
        first, length = configs[0], configs[0].model.length
        windows = Windows(dataset, "validation", length=length, seed=0, repeat=True, shuffle=False)
        shards = sharding.batch_shards(mesh)
        # A batch beyond all windows would be filled up with windows of weight zero.
        count = first.eval_windows(dataset.splits["validation"].windows)
        batch_size = min(first.eval.batch_size, -(-count // shards) * shards)
        self._evaluator = Evaluator(eval_step, windows, length, count, batch_size, mesh)

    def update(
        self, state: TrainState, batches: Sequence[Batch], update_averages: bool
    ) -> tuple[TrainState, Metrics]:
        """Makes one update of every run, donating `state`; returns the new state and metrics."""
        if self._is_fleet:
            tokens = np.stack([batch.tokens for batch in batches])
        else:
            tokens = sharding.put_batch(self._mesh, *batches[0])
        key = tokens.shape, update_averages
        if key not in self._compiled:
            self._compiled[key] = self._compile(state, tokens, update_averages)
        return self._compiled[key](state, tokens)

    def _compile(
        self, state: TrainState, tokens: jax.Array | np.ndarray, update_averages: bool
    ) -> jax.stages.Compiled:
        began = time.perf_counter()
        compiled = self._train_step.lower(state, tokens, update_averages).compile()
        if not self._compiled:
            seconds = format_duration(time.perf_counter() - began)
            memory = describe_program(compiled, sharding.device_memory(self._mesh))
            self._say(f"update   compiled in {seconds}: {memory}")
        return compiled

    def evaluate(
        self, state: TrainState, runs: Sequence[int], interrupted: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Returns the validation losses of `runs` by label; None if `interrupted`."""
        trees = weight_trees(state)
        if len(runs) < len(self._configs):
            trees = fleet.take(trees, np.asarray(runs))
        return self._evaluator.losses(trees, interrupted)

    def state_of_run(self, state: TrainState, run: int) -> TrainState:
        """Returns the state of one run, for its checkpoint."""
        return fleet.take(state, run) if self._is_fleet else state

    def subset(self, state: TrainState, runs: Sequence[int]) -> tuple["LoopProgram", TrainState]:
        """Returns a program and a state of only these runs of a fleet, to be compiled again."""
        smaller = copy.copy(self)  # with the same evaluator, which has compiled some sizes
        smaller._configs = [self._configs[i] for i in runs]
        smaller._compiled = {}
        smaller._train_step = fleet.vectorize_update(smaller._configs, self._mesh)
        return smaller, fleet.take(state, np.asarray(runs))
