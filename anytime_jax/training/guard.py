"""What stands between a bad update and the weights.

An update is bad if its loss or its gradient is NaN or infinite. It never reaches the weights, the
moments or the averages: for them it is an update of zero. Time goes on, in every count, and so do
the data. Whether the run stops there or passes over it is the configuration's choice.

A spike is a loss far above the recent ones: it is counted and reported, and on request it makes an
update bad.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax.config.schema import GuardConfig

LOSS_WINDOW = 128  # updates over which the mean and the spread of the loss are taken
# Where the loss hardly moves from update to update, rounding alone would be many spreads.
_LEAST_SPREAD = 1e-3


class GuardState(NamedTuple):
    """State of `skip_bad_updates`.

    Attributes:
      mean: float32 scalar, mean of the last losses.
      variance: float32 scalar, their variance.
      taken: int32 scalar, losses that the mean was made of.
      spikes: int32 scalar, spikes seen.
      skipped: int32 scalar, updates passed over.
      consecutive_skips: int32 scalar, updates passed over since the last one that was made.
      inner: the state of the transform inside.
    """

    mean: jax.Array
    variance: jax.Array
    taken: jax.Array
    spikes: jax.Array
    skipped: jax.Array
    consecutive_skips: jax.Array
    inner: optax.OptState


def skip_bad_updates(
    inner: optax.GradientTransformationExtraArgs, config: GuardConfig
) -> optax.GradientTransformationExtraArgs:
    """Returns a transform that makes no bad update.

    A bad update is zero and leaves the inner state as it was, but for its counts: every count stays
    the number of updates done. `update` takes the loss as `value`, and the norm of the gradient as
    `grad_norm`; it hands them on to `inner` together with `bad`, a bool scalar.

    What `inner` keeps beside counts it has to keep through `freeze_if_bad`, and to make its update
    from what that returns. Were its state taken back from outside, XLA would make the moments
    twice, once for the update and once to be kept, both from the old ones, which it then copies.

    A loss x is a spike if x > mean + spike * spread, with the mean and the spread (the standard
    deviation) of the losses before it, the last 128 or so by weight. A spike enters them as
    the largest loss that is none.

    Args:
      inner: what makes the updates; told by `bad`, it leaves its state as it was.
      config: what is bad.
    """

    def init(params: optax.Params) -> GuardState:
        # Arrays of their own: a buffer that two leaves share could not be donated.
        mean, variance = (jnp.zeros((), jnp.float32) for _ in range(2))
        taken, spikes, skipped, consecutive_skips = (jnp.zeros((), jnp.int32) for _ in range(4))
        return GuardState(
            mean, variance, taken, spikes, skipped, consecutive_skips, inner.init(params)
        )

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, GuardState]:
        value, grad_norm = extra["value"], extra["grad_norm"]
        finite = jnp.isfinite(value) & jnp.isfinite(grad_norm)
        top = spike_threshold(state, config.spike)
        spike = finite & (value > top)
        bad = ~finite | (spike if config.skip == "spikes" else False)
        made, kept = inner.update(updates, state.inner, params, bad=bad, **extra)
        made = jax.tree.map(lambda x: jnp.where(bad, jnp.zeros_like(x), x), made)
        return made, GuardState(
            *_take_in(state, jnp.where(finite, jnp.minimum(value, top), state.mean), finite),
            spikes=state.spikes + spike,
            skipped=state.skipped + bad,
            consecutive_skips=jnp.where(bad, state.consecutive_skips + 1, 0),
            inner=kept,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def freeze_if_bad(bad: jax.Array, new: Any, old: Any) -> Any:
    """Returns the new state, or the old one after a bad update; its counts always go on."""

    def one(new: jax.Array, old: jax.Array) -> jax.Array:
        return new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(bad, old, new)

    return jax.tree.map(one, new, old)


def spike_threshold(state: GuardState, spike: float) -> jax.Array:
    """Returns the loss above which the next one is a spike: infinite until there are enough."""
    spread = jnp.maximum(jnp.sqrt(state.variance), _LEAST_SPREAD * jnp.abs(state.mean))
    return jnp.where(state.taken < LOSS_WINDOW, jnp.inf, state.mean + spike * spread)


def get_guard_state(opt_state: optax.OptState) -> GuardState:
    """Returns the one `GuardState` inside an optimizer's state."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, GuardState))
    (found,) = [node for node in nodes if isinstance(node, GuardState)]
    return found


def _take_in(
    state: GuardState, value: jax.Array, finite: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean, variance and number of losses with one more: of all at first, later of the last."""
    taken = state.taken + finite
    weight = jnp.where(finite, 1 / jnp.clip(taken, 1, LOSS_WINDOW), 0.0)
    off = value - state.mean
    variance = (1 - weight) * (state.variance + weight * off**2)
    return state.mean + weight * off, variance, taken
