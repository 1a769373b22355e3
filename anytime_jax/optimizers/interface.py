"""Interface between a run and its optimizer: any frozen dataclass with a method `transform`.

The fields of the dataclass are its settings. An optimizer in the terms of Optax is one method:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Adafactor:
    ...     decay_rate: float = 0.8
    ...
    ...     def transform(self, run):
    ...         return optax.adafactor(run.learning_rate, decay_rate=self.decay_rate)
    >>> sgd = Adafactor().transform(optimizers.RunInfo(optax.constant_schedule(1e-2)))
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

# The reduction and the output axis of each matrix by parameter name, the last dict key on a path;
# counted from the end. All other axes of the parameter are batch axes.
MatrixAxes = Mapping[str, tuple[int, int]]


# Metadata of a field that defines the state: a branch keeps its trunk's value.
INHERITED = {"facts": {"branch": "inherits"}}


def _identity(stack_NxRxC: jax.Array) -> jax.Array:
    return stack_NxRxC


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What an optimizer is told about its run; alone, it needs a learning rate.

    Attributes:
      learning_rate: learning rate as a function of Optax's count. The trainer passes the rate to
        the compiled update as an argument, so there the count is ignored.
      warmup_steps: length of the linear warmup of the rate, in updates.
      warmup_init: rate of the first update of the warmup over the rate at its end.
      matrix_axes: the parameters that are matrices, or stacks of them, and the axes of these.
      constrain_stack: shards the first axis of an array of many matrices.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-2))
      >>> optimizer = optimizers.AdamW(b2=0.98).transform(run)
      >>> params = jnp.ones(2)
      >>> optimizer.update(params, optimizer.init(params), params)[0].round(6)
      Array([-0.01, -0.01], dtype=float32)
    """

    learning_rate: Callable[[Any], Any]
    warmup_steps: int = 0
    warmup_init: float = 0.1
    matrix_axes: MatrixAxes = dataclasses.field(default_factory=dict)
    constrain_stack: Callable[[jax.Array], jax.Array] = _identity


class Optimizer(Protocol):
    """The settings of a method, which make its transform.

    The state of the transform may have a node with read-outs (`optimizers.readouts`).

    Examples:
      >>> optimizers.Muon(momentum=0.9)
      Muon(b1=0.9, b2=0.98, epsilon=1e-08, weight_decay=0.0, momentum=0.9)
    """

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns a descent with its learning rate."""
        ...


class SelfFreezing(optax.GradientTransformationExtraArgs):
    """A transform whose `update` takes a bool scalar `bad` and then keeps its float state itself.

    `freeze_state` leaves it alone. The update has to be computed from the state that is kept, or
    XLA computes the moments twice, for the update and for the state, and copies the old ones.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-2))
      >>> isinstance(optimizers.AdamW().transform(run), optimizers.SelfFreezing)
      True
    """


def freeze_state(method: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns a transform that keeps its state after an update that is `bad`.

    `update` takes a bool scalar `bad`. If it is true, only the counts advance: the integer scalars.

    Examples:
      >>> optimizer = optimizers.freeze_state(optax.adam(0.1))
      >>> params = jnp.ones(2)
      >>> state = optimizer.init(params)
      >>> _, state = optimizer.update(jnp.nan * params, state, params, bad=jnp.array(True))
      >>> state[0].mu, int(state[0].count)
      (Array([0., 0.], dtype=float32), 1)
    """
    if isinstance(method, SelfFreezing):
        return method
    inner = optax.with_extra_args_support(method)

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        *,
        bad: Any = False,
        **extra: Any,
    ) -> tuple[optax.Updates, Any]:
        updates, new_state = inner.update(updates, state, params, bad=bad, **extra)
        return updates, freeze_if_bad(bad, new_state, state)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def freeze_if_bad(bad: Any, new_state: Any, old_state: Any) -> Any:
    """Returns the new state; if `bad`, the old state with the new counts, its integer scalars.

    Examples:
      >>> optimizers.freeze_if_bad(True, (jnp.array(1), jnp.nan), (jnp.array(0), jnp.ones(())))
      (Array(1, dtype=int32, weak_type=True), Array(1., dtype=float32))
    """

    def select(new: Any, old: Any) -> Any:
        is_count = jnp.issubdtype(jnp.result_type(new), jnp.integer) and jnp.ndim(new) == 0
        if is_count or jnp.shape(new) != jnp.shape(old):  # no broadcast may hide another shape
            return new
        return jnp.where(bad, old, new)

    return jax.tree.map(select, new_state, old_state)
