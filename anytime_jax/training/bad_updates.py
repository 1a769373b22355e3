"""Guard against bad updates: an Optax wrapper that makes them zero.

An update is bad if its loss or its gradient is NaN or infinite. After a bad update:

    stay       the weights and the state of the optimizer, with the counts of bias corrections
    advance    the step of the run, the learning rate and the position in the data
    averages   count the same weights once more

The configuration chooses whether the run stops or skips the update.

A spike is a loss far above recent losses. Spikes are counted, and the configuration may call them
bad.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax import averaging
from anytime_jax.config.run_settings import GuardConfig

LOSS_WINDOW = 128  # updates over which the mean and the standard deviation of the loss are taken
# Least standard deviation, relative to the mean: rounding of a nearly constant loss is no spike.
_LEAST_DEVIATION = 1e-3


class GuardState(NamedTuple):
    """State of `skip_bad_updates`: float32 and int32 scalars beside the inner state.

    Mean and variance are those of recent losses; `loss_count` is the number of finite losses so
    far. `skipped` counts bad updates, `consecutive_skips` the bad updates since the last good one.
    """

    loss_mean: jax.Array
    loss_variance: jax.Array
    loss_count: jax.Array
    spikes: jax.Array
    skipped: jax.Array
    consecutive_skips: jax.Array
    inner_state: optax.OptState


def skip_bad_updates(
    inner: optax.GradientTransformationExtraArgs, config: GuardConfig
) -> optax.GradientTransformationExtraArgs:
    """Returns `inner` with bad updates replaced by zero.

    `update` needs the loss as `value` and the norm of the gradient as `grad_norm`, and passes both
    to `inner`. After a bad update, `inner` has its old state.

    A loss is a spike if it exceeds mean + `config.spike` * deviation, where mean and deviation are
    those of about the last `LOSS_WINDOW` losses. In mean and deviation, this limit stands for the
    loss of a spike.
    """

    def init(params: optax.Params) -> GuardState:
        # Separate arrays: a buffer shared by two leaves could not be donated.
        mean, variance = (jnp.zeros((), jnp.float32) for _ in range(2))
        counts = [jnp.zeros((), jnp.int32) for _ in range(4)]
        return GuardState(mean, variance, *counts, inner_state=inner.init(params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, GuardState]:
        loss = extra["value"]
        finite = jnp.isfinite(loss) & jnp.isfinite(extra["grad_norm"])
        threshold = spike_threshold(state, config.spike)
        spike = finite & (loss > threshold)
        bad = ~finite | (spike if config.skip == "spikes" else False)
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        updates = jax.tree.map(lambda x: jnp.where(bad, jnp.zeros_like(x), x), updates)
        loss = jnp.where(finite, jnp.minimum(loss, threshold), state.loss_mean)
        return updates, GuardState(
            *_observe(state, loss, finite),
            spikes=state.spikes + spike,
            skipped=state.skipped + bad,
            consecutive_skips=jnp.where(bad, state.consecutive_skips + 1, 0),
            inner_state=_keep_if_bad(bad, inner_state, state.inner_state),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def spike_threshold(state: GuardState, spike: float) -> jax.Array:
    """Returns the loss above which the next loss is a spike; inf before `LOSS_WINDOW` losses."""
    deviation = jnp.maximum(
        jnp.sqrt(state.loss_variance), _LEAST_DEVIATION * jnp.abs(state.loss_mean)
    )
    return jnp.where(state.loss_count < LOSS_WINDOW, jnp.inf, state.loss_mean + spike * deviation)


def get_guard_state(opt_state: optax.OptState) -> GuardState:
    """Returns the one `GuardState` inside an optimizer's state."""
    (state,) = averaging.find_nodes(opt_state, lambda node: isinstance(node, GuardState))
    return state


def _keep_if_bad(bad: Any, new_state: Any, old_state: Any) -> Any:
    # Counts too: had Adam counted a bad first update, its bias corrections would make the next one
    # too small.
    def select(new: Any, old: Any) -> Any:
        if jnp.shape(new) != jnp.shape(old):  # no broadcast may hide another shape
            return new
        return jnp.where(bad, old, new)

    return jax.tree.map(select, new_state, old_state)


def _observe(
    state: GuardState, loss: jax.Array, finite: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Updates mean, variance and count by one loss.

    The mean is the plain mean of the first losses, and later an exponential average.
    """
    count = state.loss_count + finite
    weight = jnp.where(finite, 1 / jnp.clip(count, 1, LOSS_WINDOW), 0.0)
    difference = loss - state.loss_mean
    variance = (1 - weight) * (state.loss_variance + weight * difference**2)
    return state.loss_mean + weight * difference, variance, count
