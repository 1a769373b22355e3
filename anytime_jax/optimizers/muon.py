"""Muon and NorMuon as Optax transforms that orthogonalize all matrices of one shape at once.

    >>> muon = scale_by_muon({"w": (-2, -1)})
    >>> optimizer = partition_matrices(muon, optax.scale_by_adam(), {"w": (-2, -1)})
    >>> params = {"w": jnp.eye(2), "scale": jnp.ones(2)}
    >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
    >>> updates["scale"].round(2)
    Array([1., 1.], dtype=float32)

The update of a matrix is its momentum with the singular values moved near 1 by Newton-Schulz steps,
scaled to the root mean square of Adam's updates, so that one learning rate serves both:

    M_t = b1 M_{t-1} + (1 - b1) G_t
    U_t = rms sqrt(max(rows, columns)) orthogonalize(N_t)

where N_t is the mean b1 M_t + (1 - b1) G_t of Nesterov, or M_t without it.

Matrices stay inside their parameters: a parameter may hold many, stacked over its other axes. Only
for the Newton-Schulz steps are all matrices of one shape, up to transposition, put on one axis. The
products are then few and large, and the axis can be split over devices.

Sources: Muon, https://kellerjordan.github.io/posts/muon/; the scale, arXiv 2502.16982; NorMuon,
arXiv 2510.05491. Optax has Muon too (`optax.contrib.muon`), one program for each parameter.

Shape suffixes: N matrices, R rows, C columns, R <= C.
"""

import collections
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from anytime_jax.checks import require, require_count

# The reduction and the output axis of each matrix by parameter name, the last dict key on a path;
# counted from the end. All other axes of the parameter are batch axes.
MatrixAxes = Mapping[str, tuple[int, int]]

# Coefficients of x, x^3 and x^5. Five steps move any singular value from 0.002 to 1 to one between
# 0.68 and 1.21; with coefficients that converge to 1, more steps would be needed.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def _identity(stack_NxRxC: jax.Array) -> jax.Array:
    return stack_NxRxC


class MuonState(NamedTuple):
    """State of `scale_by_muon`: number of updates done, momentum, and mean squares of neurons.

    Both trees are float32. Leaves of `nu` differ from the parameters in shape by a reduction axis
    of size 1; without `normalize_rows` there are none.

    Examples:
      >>> optimizer = optimizers.scale_by_muon({"w": (-2, -1)})
      >>> jax.tree.map(jnp.shape, optimizer.init({"w": jnp.ones((3, 2))}).mu)
      {'w': (3, 2)}
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mu: optax.Updates
    nu: optax.Updates


def scale_by_muon(
    matrix_axes: MatrixAxes,
    b1: Any = 0.95,
    b2: Any = 0.95,
    epsilon: Any = 1e-8,
    *,
    nesterov: bool = True,
    normalize_rows: bool = False,
    rms: Any = 0.2,
    steps: int = 5,
    dtype: Any = jnp.float32,
    constrain_stack: Callable[[jax.Array], jax.Array] = _identity,
) -> optax.GradientTransformationExtraArgs:
    """Orthogonalizes the momentum of parameters all of which are matrices.

    With `normalize_rows` this is NorMuon: every neuron of the orthogonalized matrix O, a row in the
    papers and an index of the output axis here, is divided by the root of its mean square, and the
    whole is scaled to the root mean square `rms`:

        v_t = b2 v_{t-1} + (1 - b2) mean(O_t^2, reduction axis)
        U_t = rms sqrt(rows columns) O'_t / |O'_t|,        O'_t = O_t / (sqrt(v_t) + epsilon)

    `update` accepts a bool scalar `bad`: if it is true, momentum and mean squares stay as they are.
    `b1`, `b2`, `epsilon` and `rms` may be traced arrays.

    Args:
      matrix_axes: has exactly the names of the parameters.
      b1: decay of the momentum; at 0 the gradient itself is orthogonalized.
      b2: decay of the mean squares of neurons.
      epsilon: added to the norms by which is divided.
      nesterov: orthogonalizes the mean of momentum and gradient that Optax's Muon does.
      normalize_rows: whether to divide neurons by the roots of their mean squares.
      rms: root mean square of an update; 0.2 is that of Adam's.
      steps: number of Newton-Schulz steps.
      dtype: type of their products; bfloat16 is usual on accelerators.
      constrain_stack: shards the first axis of an array of N matrices, over which the steps are
        then split. N need not be a multiple of the devices: XLA pads the array.

    Raises:
      ValueError: at `init`, if `matrix_axes` lacks a parameter or names one that does not exist.

    Examples:
      >>> optimizer = optimizers.scale_by_muon({"w": (-2, -1)}, rms=1.0)
      >>> gradient = {"w": jnp.diag(jnp.array([1.0, 0.5]))}
      >>> updates, _ = optimizer.update(gradient, optimizer.init(gradient))
      >>> (jnp.abs(updates["w"] - jnp.sqrt(2.0) * jnp.eye(2)) < 0.5).all().item()
      True
    """
    require_count("steps", steps, least=1)

    def init(params: optax.Params) -> MuonState:
        names = {_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
        allowed = f"axes of exactly the parameters {', '.join(sorted(names))}"
        require(names == set(matrix_axes), "matrix_axes", dict(matrix_axes), allowed)
        mu = optax.tree.zeros_like(params, dtype=jnp.float32)
        nu = _map(_mean_squares, matrix_axes, mu) if normalize_rows else ()
        return MuonState(jnp.zeros((), jnp.int32), mu, nu)

    def update(updates, state, params=None, *, bad=False, **_):
        del params

        def move(new: Any, old: Any, decay: Any) -> Any:
            return jax.tree.map(
                lambda x, m: jnp.where(bad, m, decay * m + (1 - decay) * x), new, old
            )

        count = jnp.asarray(optax.safe_increment(state.count))
        mu, nu = move(updates, state.mu, b1), ()
        direction = mu
        if nesterov:
            weight = b1 * (1 - b1**count) / (1 - b1 ** (count + 1))  # with bias corrections
            direction = jax.tree.map(lambda m, g: weight * m + (1 - b1) * g, mu, updates)
        updates = orthogonalize(direction, matrix_axes, steps, epsilon, dtype, constrain_stack)
        if normalize_rows:  # without bias correction: a common factor of nu drops out
            nu = move(_map(_mean_squares, matrix_axes, updates), state.nu, b2)
            updates = jax.tree.map(lambda x, v: x / (jnp.sqrt(v) + epsilon), updates, nu)

        def scale(axes: tuple[int, int], x: jax.Array) -> jax.Array:
            sizes = x.shape[axes[0]], x.shape[axes[1]]
            if not normalize_rows:  # the root of the rank is the norm of an orthogonal matrix
                return rms * math.sqrt(max(sizes)) * x
            return rms * math.sqrt(math.prod(sizes)) / (_norm(x, axes) + epsilon) * x

        return _map(scale, matrix_axes, updates), MuonState(count, mu, nu)

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
        return "matrices" if _name(path) in names else "others"

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
    constrain_stack: Callable[[jax.Array], jax.Array] = _identity,
) -> Any:
    """Returns the tree with the singular values of every matrix moved near 1, in float32.

    Other arguments are those of `scale_by_muon`.
    """
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    axes = [matrix_axes[_name(path)] for path, _ in paths_and_leaves]
    matrices = [
        jnp.moveaxis(x, at, (-2, -1)) for (_, x), at in zip(paths_and_leaves, axes, strict=True)
    ]
    members = collections.defaultdict(list)
    for i, x in enumerate(matrices):
        members[min(x.shape[-2:]), max(x.shape[-2:])].append(i)
    for (R, C), indices in members.items():
        parts = [_wide(matrices[i]).reshape(-1, R, C) for i in indices]
        stack_NxRxC = constrain_stack(jnp.concatenate(parts).astype(dtype))
        stack_NxRxC = _newton_schulz(stack_NxRxC, steps, epsilon).astype(jnp.float32)
        ends = np.cumsum([len(part) for part in parts])
        for i, part in zip(indices, jnp.split(stack_NxRxC, ends[:-1]), strict=True):
            shape = matrices[i].shape
            tall = shape[-2] > shape[-1]
            matrices[i] = (part.mT if tall else part).reshape(shape)
    leaves = [jnp.moveaxis(x, (-2, -1), at) for x, at in zip(matrices, axes, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def _wide(x: jax.Array) -> jax.Array:
    return x.mT if x.shape[-2] > x.shape[-1] else x


def _newton_schulz(x_NxRxC: jax.Array, steps: int, epsilon: Any) -> jax.Array:
    """Applies an odd polynomial to the singular values of every matrix, `steps` times.

    `optax.contrib` has the same for one parameter, but not in public.
    """
    a, b, c = _COEFFICIENTS
    x_NxRxC /= (_norm(x_NxRxC, (-2, -1)) + epsilon).astype(x_NxRxC.dtype)
    for _ in range(steps):
        square_NxRxR = x_NxRxC @ x_NxRxC.mT
        x_NxRxC = a * x_NxRxC + (b * square_NxRxR + c * square_NxRxR @ square_NxRxR) @ x_NxRxC
    return x_NxRxC


def _norm(x: jax.Array, axes: tuple[int, int]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axes, jnp.float32, keepdims=True))


def _mean_squares(axes: tuple[int, int], x: jax.Array) -> jax.Array:
    reduction_axis, _ = axes
    return jnp.mean(jnp.square(x), reduction_axis, keepdims=True)


def _map(function: Callable[..., jax.Array], matrix_axes: MatrixAxes, tree: Any) -> Any:
    """Maps `function(axes, leaf)` over the tree."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(matrix_axes[_name(path)], leaf), tree
    )


def _name(path: tuple[Any, ...]) -> str:
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] if names else ""
