"""Interface between a run and its optimizer: any frozen dataclass with a method `transform`.

The fields of the dataclass are settings of the run. Optax's Adafactor, for example, is one field
and one method:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Adafactor:
    ...     decay_rate: float = 0.8
    ...
    ...     def transform(self, run):
    ...         return optax.adafactor(run.learning_rate, decay_rate=self.decay_rate)
    >>> sgd = Adafactor().transform(optimizers.RunInfo(optax.constant_schedule(1e-2)))
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import optax

# By parameter name (the last dict key on its path), the reduction axis and the output axis of a
# matrix, counted from the end. All other axes of the parameter are batch axes.
MatrixAxes = Mapping[str, tuple[int, int]]


# Metadata of a field that defines the state: a branch keeps its trunk's value.
INHERITED = {"facts": {"branch": "inherits"}}


def _identity(stack_NxRxC: jax.Array) -> jax.Array:
    return stack_NxRxC


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What an optimizer is told about its run; only the learning rate is required.

    Attributes:
      learning_rate: learning rate as a function of Optax's count. The trainer passes the rate to
        the compiled update as an argument, and its function ignores the count.
      warmup_steps: length of the linear warmup of the rate, in updates.
      matrix_axes: by name, the reduction and the output axis of each parameter of the blocks that
        is a matrix or a stack of matrices.
      matrices: names of all matrices, inside the blocks and outside. An embedding is not a matrix.
      constrain_stack: shards the first axis of an array of many matrices.
      width_growth: the width divided by the width at which the learning rate was tuned, for a model
        with the parametrization "mup", else 1. An optimizer whose updates depend on
        `width_growth` has the attribute `follows_width = True`.
      growing_matrices: names of the matrices whose rows and columns both grow with the width.
      relative_time: a function, for weight decays that follow the run ("g2"). It returns dt / t,
        where dt is the time that the update adds to the run and t the run's time after the update.
        It returns 0 in the warmup; in a decay to a horizon, the result falls with the rate. It is
        called in every update. None stands for 1 / (count + 1) after the warmup.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-2))
      >>> optimizer = optimizers.AdamW(b2=0.98).transform(run)
      >>> params = jnp.ones(2)
      >>> optimizer.update(params, optimizer.init(params), params)[0].round(6)
      Array([-0.01, -0.01], dtype=float32)
    """

    learning_rate: Callable[[Any], Any]
    warmup_steps: int = 0
    matrix_axes: MatrixAxes = dataclasses.field(default_factory=dict)
    matrices: Collection[str] = ()
    constrain_stack: Callable[[jax.Array], jax.Array] = _identity
    width_growth: float = 1.0
    growing_matrices: Collection[str] = ()
    relative_time: Callable[[], Any] | None = None


def parameter_name(path: tuple[Any, ...]) -> str:
    """Returns the last dict key on the path of a leaf, "" for a path without one."""
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] if names else ""


@runtime_checkable
class Optimizer(Protocol):
    """The settings of a method, which make its transform.

    The state of the transform may have a node with read-outs (`optimizers.readouts`). A class whose
    updates depend on `RunInfo.width_growth` has the attribute `follows_width = True`. A subclass
    whose own updates do not depend on it sets the attribute to False.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-2))
      >>> isinstance(optimizers.AdamW().transform(run), optax.GradientTransformation)
      True
    """

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns a descent with its learning rate."""
        ...
