"""EMA-Nesterov: gradients are taken ahead of the iterates, along their average displacement.

With theta the iterates of an optimizer and m the average of their displacements, update
t = 1, 2, ... is

    y_{t-1} = theta_{t-1} + beta_{t-1} * m_{t-1}
    theta_t = y_{t-1} + inner update, from the gradient at y_{t-1}
    m_t     = gamma * m_{t-1} + (1 - gamma) * (theta_t - theta_{t-1}),        m_0 = 0

The displacement from the exponential average of the iterates, ema_0 = theta_0, is a multiple of m:

    ema_t = gamma * ema_{t-1} + (1 - gamma) * theta_t
    theta_t - ema_t = gamma / (1 - gamma) * m_t

So the state holds `ema` in place of m, and the parameters that Optax sees are

    y_t = theta_t + kappa_t * (theta_t - ema_t),        kappa = beta * (1 - gamma) / gamma

Source: EMA-Nesterov (arXiv 2605.25395), and the authors' records of modded-nanogpt, pull requests
308 and 309.
"""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax.averaging import LIVE
from anytime_jax.checks import require_inside
from anytime_jax.optimizers import INHERITED, AdamW, Muon, RunInfo
from anytime_lab.optimizers.primal_averaging import (
    Coefficient,
    coefficient_at,
    require_coefficient,
)


@dataclasses.dataclass(frozen=True)
class EMANesterov(Muon):
    """EMA-Nesterov around AdamW or Muon: gradients are taken ahead of theta.

    With u the update of AdamW or Muon at the parameters y, and m the mean displacement of theta in
    an update,

        theta = y + u(y)
        m     = ema_decay * m + (1 - ema_decay) * (theta - its last value)
        y     = theta + extrapolation * m

    theta is evaluated, and `ema`, its exponential average with the same decay. The authors take an
    extrapolation of 0.3 to 0.6 times the rate over its peak, and none in the warmup and near the
    end; here it is constant.

    Attributes:
      matrices: method of the matrices of the blocks; `momentum` is for "muon".
      ema_decay: decay of the average `ema`, and of m.
      extrapolation: displacement of the parameters beyond theta, in mean displacements of an
        update; the parameters grow without bound from 1 on.

    Source: EMA-Nesterov (arXiv 2605.25395).
    """

    follows_width: ClassVar[bool] = False  # which nobody has tried

    matrices: Literal["adam", "muon"] = dataclasses.field(default="adam", metadata=INHERITED)
    ema_decay: float = 0.99
    extrapolation: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_inside("ema_decay", self.ema_decay)
        require_inside("extrapolation", self.extrapolation)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent, whose state has the read-outs "theta" and "ema"."""
        method = Muon if self.matrices == "muon" else AdamW
        return ema_nesterov(method.transform(self, run), self.ema_decay, self.extrapolation)


class EmaNesterovState(NamedTuple):
    """State of `ema_nesterov`: the count of updates, the last kappa, and the average in float32."""

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    kappa: jax.Array
    ema: optax.Params
    inner_state: optax.OptState

    def readouts(self) -> dict[str, dict[str, jax.Array]]:
        """Returns theta, which the parameters are ahead of, and its average."""
        kappa = self.kappa
        theta = {LIVE: 1 / (1 + kappa), "ema": kappa / (1 + kappa)}
        return {"theta": theta, "ema": {"ema": jnp.ones_like(kappa)}}

    def iterates(self) -> dict[str, Any]:
        """Returns the average."""
        return {"ema": self.ema}


def ema_nesterov(
    inner: optax.GradientTransformation, decay: Any = 0.99, extrapolation: Coefficient = 0.5
) -> optax.GradientTransformationExtraArgs:
    """Moves theta by the updates of `inner` from y, and the parameters to the next y.

        y_t - y_{t-1} = inner update + kappa_t * (theta_t - ema_t)

    The authors evaluate theta. Their extrapolation is 0 in a warmup, then a number from 0.3 to 0.6
    times the learning rate relative to its peak, and 0 again near the end of a run.

    Args:
      inner: a descent, with its learning rate. Extra arguments of `update` are passed on to it, and
        its weight decay sees y.
      decay: gamma, above 0 and below 1; a number or an array.
      extrapolation: beta, 0 or above. A function has the count of updates done before the gradient.

    Raises:
      ValueError: for a coefficient out of range, and at `update` without `params`.

    Examples:
      >>> optimizer = ema_nesterov(optax.sgd(1.0), decay=0.5, extrapolation=1.0)
      >>> params = jnp.array(8.0)
      >>> opt_state = optimizer.init(params)
      >>> for _ in range(3):  # theta = 7, 5.5, 3.5
      ...     updates, opt_state = optimizer.update(jnp.ones(()), opt_state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(params, opt_state.ema)
      6.5 7.5
      4.5 6.5
      2.0 5.0
    """
    require_coefficient("decay", decay, lambda g: 0 < g < 1, "above 0 and below 1")
    require_coefficient("extrapolation", extrapolation, lambda beta: beta >= 0, "0 or above")
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> EmaNesterovState:
        # This is a copy, as a buffer shared with the parameters could not be donated.
        ema = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        count, kappa = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        return EmaNesterovState(count, kappa, ema, inner.init(params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, EmaNesterovState]:
        if params is None:
            raise ValueError("ema_nesterov needs the parameters: call update(..., params=y)")
        count = jnp.asarray(optax.safe_increment(state.count))
        gamma = jnp.asarray(decay, jnp.float32)
        kappa = coefficient_at(extrapolation, count) * (1 - gamma) / gamma
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        theta = jax.tree.map(
            lambda y, step: y.astype(jnp.float32) + step.astype(jnp.float32), params, updates
        )
        ema = jax.tree.map(lambda old, new: old + (1 - gamma) * (new - old), state.ema, theta)

        # Computed from the new average: XLA would copy the old one and y if each needed both.
        def move(y: jax.Array, step: jax.Array, new: jax.Array, avg: jax.Array) -> jax.Array:
            return (step.astype(jnp.float32) + kappa * (new - avg)).astype(y.dtype)

        moves = jax.tree.map(move, params, updates, theta, ema)
        return moves, EmaNesterovState(count, kappa, ema, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)
