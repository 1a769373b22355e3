"""PACE: AdamW whose parameters are pulled towards the exponential average that is evaluated."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import require_choice, require_not_negative
from anytime_jax.optimizers import AdamW
from anytime_jax.optimizers.interface import RunInfo, parameter_name
from anytime_jax.optimizers.weight_decay import is_decayed, mask_name, share_taken
from anytime_jax.optimizers.width_scaling import width_growth

_LEAST_NEWEST = 1e-4  # least weight of the newest iterate in the average


@dataclasses.dataclass(frozen=True)
class Pace(AdamW):
    """PACE: AdamW with a pull of each parameter to the average, strong where gradients are small.

    With theta the parameters, d_t the weight of the newest iterate in their average `ema`, and the
    moments m, v of Adam corrected for their start at zero, update t = 1, 2, ... is

        d_t      = max((1 + t)^(-ema_power), 1e-4)
        theta_t  = theta_{t-1} - rate * (m_t / (sqrt(v_t) + epsilon) + weight_decay * theta_{t-1})
                               + pull_t * (ema_{t-1} - theta_{t-1})
        pull_t   = min(rate * pullback * d_t / (sqrt(v_t) + epsilon), 1),     for each coordinate
        ema_t    = (1 - d_t) * ema_{t-1} + d_t * theta_t,                     ema_0 = theta_0

    Attributes:
      pullback: strength of the pull of the parameters towards `ema`; 0 for AdamW with an average.
      ema_power: power of 1/t at which the newest weight in `ema` falls; 0 makes it the parameters.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5))
      >>> optimizer = pace.Pace(b2=0.999, pullback=1.0).transform(run)
      >>> params = jnp.array(8.0)
      >>> opt_state = optimizer.init(params)
      >>> for _ in range(3):
      ...     updates, opt_state = optimizer.update(jnp.ones(()), opt_state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"{params:.3f} {opt_state.ema:.3f}")
      7.500 7.565
      7.026 7.132
      6.566 6.703

    Source: Training for the Model You Return (arXiv 2606.25086) and the authors' code,
    github.com/leonou2010/pace-optimizer.
    """

    follows_width: ClassVar[bool] = True

    pullback: float = 0.15
    ema_power: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("pullback", self.pullback)
        require_not_negative("ema_power", self.ema_power)
        require_choice("moments", self.moments, ("float32",))

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent; its `update` needs the parameters."""

        def update(
            updates: optax.Updates, state: Any, params: optax.Params | None = None, **_: Any
        ) -> tuple[optax.Updates, PaceState]:
            if params is None:
                raise ValueError("Pace needs the parameters: call update(..., params=params)")
            rate = jnp.asarray(run.learning_rate(state.count), jnp.float32)
            count = jnp.asarray(optax.safe_increment(state.count))
            newest = (1.0 + count.astype(jnp.float32)) ** -self.ema_power
            newest = jnp.maximum(newest, _LEAST_NEWEST)
            mu = optax.tree.update_moment(updates, state.mu, self.b1, 1)
            nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, self.b2, 2)
            mean = optax.tree.bias_correction(mu, self.b1, count)
            square = optax.tree.bias_correction(nu, self.b2, count)

            # As the width grows, gradients fall in proportion; the pull is not to grow.
            epsilon = self.epsilon / run.width_growth
            pullback = self.pullback / run.width_growth

            def move(
                path: Any,
                theta: jax.Array,
                ema: jax.Array,
                m: jax.Array,
                v: jax.Array,
                decays: bool,
            ) -> jax.Array:
                theta, scale = theta.astype(jnp.float32), jnp.sqrt(v) + epsilon
                pull = jnp.minimum(rate * pullback * newest / scale, 1.0)
                direction = m / scale / width_growth(run, parameter_name(path))
                decay = share if decays else 0.0
                return -rate * direction - decay * theta + pull * (ema - theta)

            share = share_taken(self.weight_decay, run, state.count)
            decays = is_decayed(mask_name(self.weight_decay, self.decay_mask), run, params)
            moves = jax.tree_util.tree_map_with_path(move, params, state.ema, mean, square, decays)
            moves = jax.tree.map(lambda step, p: step.astype(p.dtype), moves, params)
            ema = jax.tree.map(
                lambda old, p: old + newest * (p.astype(jnp.float32) - old),
                state.ema,
                optax.apply_updates(params, moves),
            )
            return moves, PaceState(count, mu, nu, ema)

        return optax.GradientTransformationExtraArgs(_init, update)


class PaceState(NamedTuple):
    """State of `Pace`: the count of updates, Adam's moments, and the average in float32.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-3))
      >>> pace.Pace().transform(run).init({"w": jnp.ones(2)}).ema
      {'w': Array([1., 1.], dtype=float32)}
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mu: optax.Updates
    nu: optax.Updates
    ema: optax.Params

    def readouts(self) -> dict[str, dict[str, jax.Array]]:
        """Returns the average as it is stored."""
        return {"ema": {"ema": jnp.ones((), jnp.float32)}}

    def iterates(self) -> dict[str, Any]:
        """Returns the average."""
        return {"ema": self.ema}


def _init(params: optax.Params) -> PaceState:
    # Separate arrays: a buffer shared by two leaves could not be donated.
    ema = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
    mu, nu = (optax.tree.zeros_like(params, dtype=jnp.float32) for _ in range(2))
    return PaceState(jnp.zeros((), jnp.int32), mu, nu, ema)
