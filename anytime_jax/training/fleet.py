"""Programs of the training loop: one run by itself, or a fleet of runs of one shape vectorised.

One small model leaves most of a device idle; a fleet trains many at once. The state of every run
gets a leading axis R, and one call updates all of them (`jax.vmap`). Seed, order of the text,
learning rate and Adam's constants may differ between runs. Losses agree with those of a run by
itself up to the rounding of sums in another order.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes
from anytime_jax.training import preflight, step
from anytime_jax.training.batches import Batch
from anytime_jax.training.evaluator import Evaluator, weight_trees
from anytime_jax.training.optimizer import Hyperparameters
from anytime_jax.training.step import Metrics, Program, TrainState


class LoopProgram:
    """The compiled functions of one run, or of a fleet, as the training loop calls them.

    In a fleet, every leaf of the state, every metric and every loss has a leading axis R.
    """

    def __init__(
        self, configs: Sequence[Config], mesh: Mesh, dataset: DatasetInfo, program: Program | None
    ):
        """Takes the functions of `program`, that of a single run; None for those of a fleet."""
        self._configs, self._mesh, self._is_fleet = configs, mesh, program is None
        if program is None:
            constrain = sharding.ShardingConstraint(mesh)
            eval_step = functools.partial(step.eval_step, configs[0].model, constrain)
            eval_step = jax.jit(jax.vmap(eval_step, in_axes=(0, None, None)))
            self._train_step = vectorize_update(configs, mesh)
        else:
            self._train_step, eval_step = program.train_step, program.eval_step
        first, length = configs[0], configs[0].model.length
        windows = Windows(dataset, "validation", length=length, seed=0, repeat=True, shuffle=False)
        self._evaluator = Evaluator(
            eval_step, windows, length, first.eval_windows, first.eval.batch_size, mesh
        )

    def update(
        self, state: TrainState, batches: Sequence[Batch], update_averages: bool
    ) -> tuple[TrainState, Metrics]:
        """Makes one update of every run, donating `state`; returns the new state and metrics."""
        if self._is_fleet:
            tokens = np.stack([batch.tokens for batch in batches])
        else:
            tokens = sharding.put_batch(self._mesh, *batches[0])
        return self._train_step(state, tokens, update_averages)

    def evaluate(
        self, state: TrainState, runs: Sequence[int], interrupted: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Returns the validation losses of `runs` by label; None if `interrupted`."""
        trees = weight_trees(state)
        if len(runs) < len(self._configs):
            trees = _take(trees, np.asarray(runs))
        return self._evaluator.losses(trees, interrupted)

    def state_of_run(self, state: TrainState, run: int) -> TrainState:
        """Returns the state of one run, for its checkpoint."""
        return _take(state, run) if self._is_fleet else state

    def keep(self, state: TrainState, runs: Sequence[int]) -> tuple["LoopProgram", TrainState]:
        """Returns a program and a state of only these runs of a fleet, to be compiled again."""
        smaller = copy.copy(self)  # with the same evaluator, which has compiled some sizes
        smaller._configs = [self._configs[i] for i in runs]
        smaller._train_step = vectorize_update(smaller._configs, self._mesh)
        return smaller, _take(state, np.asarray(runs))


def check_memory(configs: Sequence[Config], mesh: Mesh) -> None:
    """Raises an InputError if the device's memory is too small for all runs."""
    available = sharding.device_memory(mesh)
    each = preflight.measure_memory(configs[0], mesh)
    if available is not None and len(configs) * each.least > available:
        raise InputError(
            f"{len(configs)} runs of {format_bytes(each.least)} each take more than the device's "
            f"{format_bytes(available)}: --fleet={max(1, available // each.total)} or fewer at once"
        )


def vectorize_update(configs: Sequence[Config], mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the jitted update of several runs, `(state, tokens_RxBxT, update_averages)`.

    It is `step.Program.train_step` with a leading axis R, on one device; `state` is donated.
    """
    first, constrain = configs[0], sharding.ShardingConstraint(mesh)
    columns = ([getattr(x.optimizer, name) for x in configs] for name in Hyperparameters._fields)
    numbers = Hyperparameters(*map(_as_data, columns))
    axes: Any = Hyperparameters(*(0 if isinstance(x, np.ndarray) else None for x in numbers))

    def update(
        states: TrainState, tokens_RxBxT: jax.Array, update_averages: bool
    ) -> tuple[TrainState, Metrics]:
        def update_one(state: Any, tokens_BxT: jax.Array, rate: jax.Array, numbers: Any) -> Any:
            inputs = state, tokens_BxT, update_averages
            return step.train_step(first, lambda count: rate, numbers, constrain, None, *inputs)

        rates_R = jnp.stack([x.learning_rate(states.step[i]) for i, x in enumerate(configs)])
        update_all = jax.vmap(update_one, in_axes=(0, 0, 0, axes))
        return update_all(states, tokens_RxBxT, rates_R, numbers)

    return jax.jit(update, static_argnums=2, donate_argnums=0)


def _as_data(values: Sequence[float]) -> Any:
    """Returns the number if it is the same for all runs, else a float32 array of one for each."""
    return values[0] if len(set(values)) == 1 else np.asarray(values, np.float32)


def stack(states: Sequence[TrainState], mesh: Mesh) -> TrainState:
    """Returns the states of several runs stacked along a leading axis R, and deletes the originals.

    The stacking is on the host. On the device it would be a program with an operand for every array
    of every run, which takes a minute to compile for 256 runs.
    """

    def stack_leaves(*leaves: jax.Array) -> jax.Array:
        of_all = np.stack(leaves)
        for leaf in leaves:
            leaf.delete()
        return jax.device_put(of_all, sharding.replicated(mesh))

    return jax.tree.map(stack_leaves, *states)


@jax.jit
def _take(tree: Any, runs: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[runs], tree)
