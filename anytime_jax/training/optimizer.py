"""The optimizer: clip, Adam, weight decay and learning rate under a guard, then the averages."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax import averaging
from anytime_jax.config.optimization import GuardConfig, OptimizerConfig
from anytime_jax.training.bad_updates import freeze_if_bad, skip_bad_updates


class Hyperparameters(NamedTuple):
    """Fields of an `OptimizerConfig`; in a fleet's program, some are float32 arrays."""

    b1: Any
    b2: Any
    epsilon: Any
    weight_decay: Any
    clip_norm: Any


def make_optimizer(
    config: OptimizerConfig | Hyperparameters,
    schedule: Callable[[Any], Any],
    averages: Mapping[str, averaging.Rule],
    guard: GuardConfig,
    average_every: int = 1,
) -> optax.GradientTransformationExtraArgs:
    """Returns AdamW, clipped by global norm and guarded, followed by the averages of the weights.

    Weight decay, if any, applies to every parameter.
    Its `update` needs the loss as `value` and the norm of the gradient as `grad_norm`, and accepts
    `update_averages` (see `averaging.average_params`).

    Source: Section 4, "Architecture and Dataset" (AdamW, no weight decay).
    """
    decay = [optax.add_decayed_weights(config.weight_decay)] if config.weight_decay else []
    adamw = optax.chain(
        _clip(config.clip_norm),
        _scale_by_adam(config.b1, config.b2, config.epsilon),
        *decay,
        optax.scale_by_learning_rate(schedule),
    )
    # The averages come last: they must see the final updates.
    return optax.chain(
        skip_bad_updates(adamw, guard), averaging.average_params(averages, average_every)
    )


def _clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """`optax.clip_by_global_norm` for a norm that is already computed, `grad_norm`.

    One factor for all elements fuses into the operation that reads the gradient. Optax divides each
    element by the norm, and XLA stores the quotients.
    """

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, Any]:
        del params
        scale = jnp.minimum(1.0, max_norm / extra["grad_norm"])
        return jax.tree.map(lambda x: x * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _scale_by_adam(b1: Any, b2: Any, epsilon: Any) -> optax.GradientTransformationExtraArgs:
    """`optax.scale_by_adam` that freezes its moments if `bad`, and uses the frozen ones."""
    adam = optax.scale_by_adam(b1, b2, epsilon)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, Any]:
        del params
        _, new_state = adam.update(updates, state)
        state = freeze_if_bad(extra["bad"], new_state, state)
        mean = optax.tree.bias_correction(state.mu, b1, state.count)
        square = optax.tree.bias_correction(state.nu, b2, state.count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, square), state

    return optax.GradientTransformationExtraArgs(adam.init, update)
