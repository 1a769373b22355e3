"""Primal averaging: gradients are taken between the iterates of an optimizer and their average.

With y the parameters that Optax sees and z, x starting there, update t = 1, 2, ... is

    z_t = z_{t-1} + inner update, from the gradient at y_{t-1}
    x_t = (1 - c_t) * x_{t-1} + c_t * z_t
    y_t = b_t * x_t + (1 - b_t) * z_t

x is the average to evaluate. It is not stored: x = z + (y - z) / b. Methods are choices of b and c:

- Schedule-free (arXiv 2405.15682): b = 0.9, c the share of the newest squared rate, Adam without
  momentum.
- GPA (arXiv 2512.17131): b = mu_y and c = 1 - mu_x constant, Adam with its momentum.
- AMUSE (arXiv 2605.22432): b rises to 1, c as schedule-free, Muon, and Adam without momentum for
all that is not a matrix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax.averaging import LIVE, Rule
from anytime_jax.checks import is_number, require, require_choice

# A coefficient is a number, or a function of the count of updates t = 1, 2, ...
Coefficient = float | jax.Array | Callable[[jax.Array], Any]


class PrimalAveragingState(NamedTuple):
    """State of `primal_averaging`: the count of updates, b of the last one, and z in float32."""

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    interpolation: jax.Array
    z: optax.Params
    inner_state: optax.OptState

    def readouts(self) -> dict[str, dict[str, jax.Array]]:
        """Returns x = z + (y - z) / b."""
        b = jnp.asarray(self.interpolation, jnp.float32)
        return {"x": {LIVE: 1 / b, "z": 1 - 1 / b}}

    def iterates(self) -> dict[str, Any]:
        """Returns z."""
        return {"z": self.z}


def primal_averaging(
    inner: optax.GradientTransformation,
    interpolation: Coefficient,
    newest_weight: Coefficient | Rule,
    inner_params: str = "y",
) -> optax.GradientTransformationExtraArgs:
    """Moves z by the updates of `inner`, and the parameters to y = b * x + (1 - b) * z.

    The update of y is computed from y - z, which avoids a small difference of large numbers:

        y_t - y_{t-1} = (b_t * (1 - c_t) - b_{t-1}) * (x_{t-1} - z_{t-1})
                        + (1 - b_t + b_t * c_t) * inner update

    If an update is replaced by zero and the state is kept, x, y and z stay the same.

    Args:
      inner: a descent, with its learning rate. Extra arguments of `update` are passed on to it.
      interpolation: b, above 0 and up to 1: the weight of x in y.
      newest_weight: c, from 0 to 1: the weight of the newest z in x. An averaging rule computes c
        itself, from `time` and `span` if `update` gets them, as in `averaging.average_params`.
      inner_params: the parameters that `inner` sees, "y" or "z". Its weight decay shrinks z in
        proportion to them: to y in GPA and Optax's schedule-free, to z in AMUSE.

    Raises:
      ValueError: for a coefficient out of range, and at `update` without `params`.

    Examples:
      >>> mean = primal_averaging(optax.sgd(0.5), 1.0, averaging.Uniform())
      >>> params = jnp.array(8.0)
      >>> opt_state = mean.init(params)
      >>> for _ in range(3):
      ...     updates, opt_state = mean.update(params, opt_state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(params, opt_state.z)
      4.0 4.0
      3.0 2.0
      2.1666665 0.5
    """
    require_coefficient("interpolation", interpolation, lambda b: 0 < b <= 1, "above 0 and up to 1")
    if not isinstance(newest_weight, Rule):
        require_coefficient("newest_weight", newest_weight, lambda c: 0 <= c <= 1, "from 0 to 1")
    require_choice("inner_params", inner_params, ("y", "z"))
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> PrimalAveragingState:
        # This is a copy, as a buffer shared with the parameters could not be donated.
        z = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        count, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32)
        return PrimalAveragingState(count, one, z, inner.init(params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, PrimalAveragingState]:
        if params is None:
            raise ValueError("primal_averaging needs the parameters: call update(..., params=y)")
        count = jnp.asarray(optax.safe_increment(state.count))
        old_b, b = state.interpolation, coefficient_at(interpolation, count)
        if isinstance(newest_weight, Rule):
            c = newest_weight.newest_weight(extra.get("time", count), extra.get("span", 1))
        else:
            c = coefficient_at(newest_weight, count)
        seen = params if inner_params == "y" else _cast_like(state.z, params)
        updates, inner_state = inner.update(updates, state.inner_state, seen, **extra)
        z = jax.tree.map(lambda old, step: old + step.astype(jnp.float32), state.z, updates)

        def move(y: jax.Array, old_z: jax.Array, step: jax.Array) -> jax.Array:
            ahead = (y.astype(jnp.float32) - old_z) / old_b  # x - z
            moved = (b - old_b - b * c) * ahead + (1 - b + b * c) * step.astype(jnp.float32)
            return moved.astype(y.dtype)

        # Computed from the new z, unless `inner` reads the old one: XLA would copy both y and z if
        # each needed the old values of both.
        old_z = state.z if inner_params == "z" else optax.tree.sub(z, updates)
        moves = jax.tree.map(move, params, old_z, updates)
        return moves, PrimalAveragingState(count, b, z, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _cast_like(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, p: x.astype(p.dtype), tree, like)


def require_coefficient(name: str, value: Any, holds: Callable[[Any], bool], allowed: str) -> None:
    """Requires a function, an array, or a number for which `holds`."""
    if not (callable(value) or isinstance(value, jax.Array)):
        require(is_number(value) and holds(value), name, value, f"{allowed}, or a function")


def coefficient_at(value: Any, count: jax.Array) -> jax.Array:
    """Returns the coefficient of update `count`, in float32."""
    return jnp.asarray(value(count) if callable(value) else value, jnp.float32)
