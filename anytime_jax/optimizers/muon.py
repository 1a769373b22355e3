"""Muon: the descent of a run, and the transform that orthogonalizes all matrices of one shape.

With G_t the gradient of a matrix at update t, the momentum M_t and the update U_t are

    M_t = b1 M_{t-1} + (1 - b1) G_t
    U_t = rms sqrt(max(rows, columns)) orthogonalize(N_t)

where N_t is Nesterov's mean b1 M_t + (1 - b1) G_t, with bias corrections; without Nesterov's
look-ahead, N_t is M_t. `orthogonalize` moves all singular values near 1. The root mean square of
U_t is then about `rms` = 0.2, that of Adam's updates, so that one learning rate serves both.

Orthogonalization is approximate. Exactly, it turns a matrix U S V^T (its singular value
decomposition) into U V^T, whose singular values are 1. Five Newton-Schulz steps move singular
values between 0.002 and 1 to values between 0.68 and 1.21. The implementations of these steps:

    name                  agrees with                     cost                   chosen
    `newton_schulz`       NumPy in float64, which acts    5 (4 R^2 C + 2 R^3)    the reference; the
                          on singular values: to 2e-5     FLOPs for each matrix  next two call it
    `orthogonalize`       the reference, for each matrix  the same, split over   by a run
                          of a tree: to rounding          devices
    the same, with        float32: to 10% of the norm     half the memory for    by the argument
    dtype=jnp.bfloat16                                    the stack              `dtype`
    `optax.contrib.muon`  20 of our updates: to 1e-5      the same, whole on     in tests alone
                                                          each device

A parameter may hold many matrices, stacked over its other axes. For the Newton-Schulz steps alone,
`orthogonalize` puts all matrices of one shape, up to transposition, on one axis. The products are
then few and large, and the axis can be split over devices.

Sources: Muon, https://kellerjordan.github.io/posts/muon/; the scale, arXiv 2502.16982.

Shape suffixes: N matrices, R rows, C columns, R <= C.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from anytime_jax.checks import (
    require,
    require_bool,
    require_count,
    require_decay,
    require_positive,
)
from anytime_jax.optimizers.adamw import AdamW
from anytime_jax.optimizers.interface import MatrixAxes, RunInfo, parameter_name
from anytime_jax.optimizers.moments import store_moments
from anytime_jax.optimizers.weight_decay import descend

# Coefficients of x, x^3 and x^5. Five steps move any singular value between 0.002 and 1 to a value
# between 0.68 and 1.21. Coefficients with which values converge to 1 would need more steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)

Scale = Literal["adam", "fans"]


@dataclasses.dataclass(frozen=True)
class Muon(AdamW):
    """Muon for the matrices of the blocks, and AdamW for all other parameters.

    The update of a matrix is its momentum with Nesterov's look-ahead, orthogonalized (the singular
    values are moved near 1), times a scale:

        adam    0.2 sqrt(max(rows, columns)): updates are as large as Adam's, so that one learning
                rate serves all parameters
        fans    sqrt(outputs / inputs): the outputs of a matrix change by as much at any width

    Weight decay acts as in AdamW.

    Attributes:
      momentum: decay of the momentum of matrices.
      scale: the scale of the updates of matrices, "adam" or "fans".
      adam_rate: rate of the other parameters over the rate of the matrices.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1.0), matrix_axes={"w": (-2, -1)})
      >>> optimizer = optimizers.Muon().transform(run)
      >>> params = {"w": jnp.eye(2), "scale": jnp.ones(2)}
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> updates["scale"].round(2)
      Array([-1., -1.], dtype=float32)

    Source: https://kellerjordan.github.io/posts/muon/; the scales are those of arXiv 2502.16982 and
    of arXiv 2310.17813.
    """

    follows_width: ClassVar[bool] = True

    momentum: float = 0.95
    scale: Scale = "adam"
    adam_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay("momentum", self.momentum)
        require_positive("adam_rate", self.adam_rate)

    def scale_matrices(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the direction of the matrices."""
        return scale_by_muon(
            run.matrix_axes,
            self.momentum,
            self.epsilon,
            scale=self.scale,
            constrain_stack=run.constrain_stack,
        )

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        adam = self.adam(run)
        if self.adam_rate != 1:
            adam = optax.chain(adam, optax.scale(self.adam_rate))
        direction = partition_matrices(self.scale_matrices(run), adam, run.matrix_axes)
        direction = store_moments(direction, self.moments)
        return descend(direction, self.weight_decay, run, self.decay_mask)


class MuonState(NamedTuple):
    """State of `scale_by_muon`: number of updates done, and momentum in float32.

    Examples:
      >>> optimizer = optimizers.scale_by_muon({"w": (-2, -1)})
      >>> jax.tree.map(jnp.shape, optimizer.init({"w": jnp.ones((3, 2))}).mu)
      {'w': (3, 2)}
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mu: optax.Updates


def scale_by_muon(
    matrix_axes: MatrixAxes,
    b1: Any = 0.95,
    epsilon: Any = 1e-8,
    *,
    scale: Scale = "adam",
    rms: Any = 0.2,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Orthogonalizes and scales the momentum of parameters, all of which are matrices.

    Args:
      matrix_axes: has exactly the names of the parameters.
      b1: decay of the momentum; at 0 the gradient itself is orthogonalized.
      epsilon: added to norms before dividing by them.
      scale: "adam" makes the root mean square of an update `rms`; "fans" makes its singular values
        sqrt(outputs / inputs).
      rms: root mean square of an update for "adam"; Adam's is 0.2.
      options: other arguments of `orthogonalize_momentum`.

    Examples:
      >>> optimizer = optimizers.scale_by_muon({"w": (-2, -1)}, rms=1.0)
      >>> gradient = {"w": jnp.diag(jnp.array([1.0, 0.5]))}
      >>> updates, _ = optimizer.update(gradient, optimizer.init(gradient))
      >>> (jnp.abs(updates["w"] - jnp.sqrt(2.0) * jnp.eye(2)) < 0.5).all().item()
      True
    """
    orthogonal = orthogonalize_momentum(matrix_axes, b1, epsilon, **options)

    def update(updates, state, params=None, **extra):
        updates, state = orthogonal.update(updates, state, params, **extra)

        def scaled(axes: tuple[int, int], x: jax.Array) -> jax.Array:
            inputs, outputs = (x.shape[axis] for axis in axes)
            if scale == "fans":
                return math.sqrt(outputs / inputs) * x
            # The root of the rank is the norm of an orthogonal matrix.
            return rms * math.sqrt(max(inputs, outputs)) * x

        return map_matrices(scaled, matrix_axes, updates), state

    return optax.GradientTransformationExtraArgs(orthogonal.init, update)


def orthogonalize_momentum(
    matrix_axes: MatrixAxes,
    b1: Any = 0.95,
    epsilon: Any = 1e-8,
    *,
    nesterov: bool = True,
    steps: int = 5,
    dtype: Any = jnp.float32,
    constrain_stack: Callable[[jax.Array], jax.Array] = lambda stack_NxRxC: stack_NxRxC,
) -> optax.GradientTransformationExtraArgs:
    """Moves the singular values of the momentum of matrices near 1.

    Args:
      matrix_axes: has exactly the names of the parameters.
      b1: decay of the momentum; at 0 the gradient itself is orthogonalized.
      epsilon: added to norms before dividing by them.
      nesterov: whether a mean of momentum and gradient is orthogonalized, as in Optax's Muon, and
        not the momentum alone.
      steps: number of Newton-Schulz steps.
      dtype: type of the products in these steps; bfloat16 is usual on accelerators.
      constrain_stack: shards the first axis of an array of N matrices, so that the steps are split
        over the devices. N need not be a multiple of their number: XLA pads the array.

    Raises:
      ValueError: at `init`, if `matrix_axes` lacks a parameter or names one that does not exist.

    Examples:
      >>> optimizer = optimizers.orthogonalize_momentum({"w": (-2, -1)})
      >>> gradient = {"w": jnp.diag(jnp.array([100.0, 50.0]))}
      >>> updates, _ = optimizer.update(gradient, optimizer.init(gradient))
      >>> (jnp.abs(updates["w"] - jnp.eye(2)) < 0.5).all().item()
      True
    """
    require_bool("nesterov", nesterov)
    require_count("steps", steps, least=1)

    def init(params: optax.Params) -> MuonState:
        names = {parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
        allowed = f"axes of exactly the parameters {', '.join(sorted(names))}"
        require(names == set(matrix_axes), "matrix_axes", dict(matrix_axes), allowed)
        return MuonState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params, dtype=jnp.float32))

    def update(updates, state, params=None, **_):
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        direction = mu
        if nesterov:
            weight = b1 * (1 - b1**count) / (1 - b1 ** (count + 1))  # with bias corrections
            direction = jax.tree.map(lambda m, g: weight * m + (1 - b1) * g, mu, updates)
        updates = orthogonalize(direction, matrix_axes, steps, epsilon, dtype, constrain_stack)
        return updates, MuonState(count, mu)

    return optax.GradientTransformationExtraArgs(init, update)


def partition_matrices(
    matrices: optax.GradientTransformation,
    others: optax.GradientTransformation,
    names: Collection[str],
) -> optax.GradientTransformationExtraArgs:
    """Transforms the parameters with these names by `matrices` and all others by `others`.

    Examples:
      >>> optimizer = optimizers.partition_matrices(optax.sgd(1.0), optax.set_to_zero(), {"w"})
      >>> gradient = {"w": jnp.ones(2), "scale": jnp.ones(2)}
      >>> optimizer.update(gradient, optimizer.init(gradient))[0]
      {'scale': Array([0., 0.], dtype=float32), 'w': Array([-1., -1.], dtype=float32)}
    """

    def label(path: Any, _: Any) -> str:
        return "matrices" if parameter_name(path) in names else "others"

    return optax.partition(
        {"matrices": matrices, "others": others},
        lambda params: jax.tree_util.tree_map_with_path(label, params),
    )


def orthogonalize(
    tree: Any,
    matrix_axes: MatrixAxes,
    steps: int = 5,
    epsilon: Any = 1e-8,
    dtype: Any = jnp.float32,
    constrain_stack: Callable[[jax.Array], jax.Array] = lambda stack_NxRxC: stack_NxRxC,
) -> Any:
    """Returns the tree with `newton_schulz` applied to every matrix, in float32.

    Arguments are as in `orthogonalize_momentum`.

    Examples:
      >>> tree = {"w": 100 * jnp.ones((3, 1))}
      >>> jnp.linalg.norm(orthogonalize(tree, {"w": (-2, -1)})["w"]).round(1)
      Array(0.7, dtype=float32)
    """
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    axes = [matrix_axes[parameter_name(path)] for path, _ in paths_and_leaves]
    matrices = [
        jnp.moveaxis(x, at, (-2, -1)) for (_, x), at in zip(paths_and_leaves, axes, strict=True)
    ]
    members = collections.defaultdict(list)
    for i, x in enumerate(matrices):
        members[min(x.shape[-2:]), max(x.shape[-2:])].append(i)
    for (R, C), indices in members.items():
        parts = [_wide(matrices[i]).reshape(-1, R, C) for i in indices]
        stack_NxRxC = constrain_stack(jnp.concatenate(parts).astype(dtype))
        stack_NxRxC = newton_schulz(stack_NxRxC, steps, epsilon).astype(jnp.float32)
        ends = np.cumsum([len(part) for part in parts])
        for i, part in zip(indices, jnp.split(stack_NxRxC, ends[:-1]), strict=True):
            shape = matrices[i].shape
            tall = shape[-2] > shape[-1]
            matrices[i] = (part.mT if tall else part).reshape(shape)
    leaves = [jnp.moveaxis(x, (-2, -1), at) for x, at in zip(matrices, axes, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def _wide(x: jax.Array) -> jax.Array:
    return x.mT if x.shape[-2] > x.shape[-1] else x


def newton_schulz(x_NxRxC: jax.Array, steps: int = 5, epsilon: Any = 1e-8) -> jax.Array:
    """Moves the singular values of every matrix near 1, R <= C: the reference.

    Each matrix is divided by its norm plus `epsilon`. Then an odd polynomial is applied `steps`
    times to the singular values. `optax.contrib` has the same for one parameter, but not in public.

    Examples:
      >>> newton_schulz(jnp.array([[[3.0, 0.0], [0.0, 0.1]]])).round(1)
      Array([[[0.7, 0. ],
              [0. , 1.1]]], dtype=float32)
    """
    a, b, c = _COEFFICIENTS
    x_NxRxC /= (matrix_norm(x_NxRxC, (-2, -1)) + epsilon).astype(x_NxRxC.dtype)
    for _ in range(steps):
        square_NxRxR = x_NxRxC @ x_NxRxC.mT
        x_NxRxC = a * x_NxRxC + (b * square_NxRxR + c * square_NxRxR @ square_NxRxR) @ x_NxRxC
    return x_NxRxC


def matrix_norm(x: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Returns the norm of each matrix, float32; both axes of the matrices stay, with size 1."""
    return jnp.sqrt(jnp.sum(jnp.square(x), axes, jnp.float32, keepdims=True))


def map_matrices(function: Callable[..., jax.Array], matrix_axes: MatrixAxes, tree: Any) -> Any:
    """Returns the tree of `function(axes, leaf)`; `axes` are the two of the leaf's matrices."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(matrix_axes[parameter_name(path)], leaf), tree
    )
