"""NorMuon: Muon whose updates are normalized per neuron."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import require_choice
from anytime_jax.optimizers import Muon, RunInfo
from anytime_jax.optimizers.interface import MatrixAxes
from anytime_jax.optimizers.muon import (
    MuonState,
    map_matrices,
    matrix_norm,
    orthogonalize_momentum,
)


@dataclasses.dataclass(frozen=True)
class NorMuon(Muon):
    """NorMuon for the matrices of the blocks, and AdamW for all other parameters.

    Every neuron of the orthogonalized momentum O of a matrix, a row in the paper and an index of
    the output axis here, is divided by the root of its mean square, and the whole is scaled to the
    root mean square 0.2:

        v = b2 * v + (1 - b2) * mean(O^2, reduction axis)
        N = O / (sqrt(v) + epsilon)
        U = 0.2 sqrt(rows * columns) * N / |N|

    Source: NorMuon (arXiv 2510.05491).
    """

    follows_width: ClassVar[bool] = False  # which nobody has tried

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("scale", self.scale, ("adam",))

    def scale_matrices(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the direction of the matrices."""
        return scale_by_normuon(
            run.matrix_axes,
            self.momentum,
            self.b2,
            self.epsilon,
            constrain_stack=run.constrain_stack,
        )


class NorMuonState(NamedTuple):
    """State of `scale_by_normuon`: the momentum, and the mean squares of neurons in float32.

    The mean squares are shaped like the parameters with a reduction axis of size 1.
    """

    momentum: MuonState
    nu: optax.Updates


def scale_by_normuon(
    matrix_axes: MatrixAxes,
    b1: Any = 0.95,
    b2: Any = 0.95,
    epsilon: Any = 1e-8,
    *,
    rms: Any = 0.2,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """`scale_by_muon`, with neurons divided by the roots of their mean squares of decay `b2`."""
    orthogonal = orthogonalize_momentum(matrix_axes, b1, epsilon, **options)

    def init(params: optax.Params) -> NorMuonState:
        state = cast(MuonState, orthogonal.init(params))
        return NorMuonState(state, map_matrices(_mean_squares, matrix_axes, state.mu))

    def update(updates, state, params=None, **extra):
        updates, new = orthogonal.update(updates, state.momentum, params, **extra)
        momentum = cast(MuonState, new)
        squares = map_matrices(_mean_squares, matrix_axes, updates)
        # There is no bias correction, as a common factor of nu drops out.
        nu = optax.tree.update_moment(squares, state.nu, b2, 1)
        updates = jax.tree.map(lambda x, v: x / (jnp.sqrt(v) + epsilon), updates, nu)

        def scale(axes: tuple[int, int], x: jax.Array) -> jax.Array:
            sizes = x.shape[axes[0]], x.shape[axes[1]]
            return rms * math.sqrt(math.prod(sizes)) / (matrix_norm(x, axes) + epsilon) * x

        return map_matrices(scale, matrix_axes, updates), NorMuonState(momentum, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _mean_squares(axes: tuple[int, int], x: jax.Array) -> jax.Array:
    reduction_axis, _ = axes
    return jnp.mean(jnp.square(x), reduction_axis, keepdims=True)
