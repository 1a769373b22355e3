"""The optimizer: clip, Adam, weight decay and learning rate under a guard, then the averages."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from anytime_jax import averaging
from anytime_jax.config.schema import GuardConfig, OptimizerConfig
from anytime_jax.training.guard import freeze_if_bad, skip_bad_updates


class Hyperparameters(NamedTuple):
    """What an `OptimizerConfig` says, for a program that takes some of it as data.

    Attributes:
      b1: decay of the first moment, a float or a float32 scalar.
      b2: decay of the second moment, likewise.
      epsilon: added to the root of the second moment, likewise.
      weight_decay: decoupled decay of every parameter, a float.
      clip_norm: largest global norm of the gradient, a float.
    """

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
    """Returns AdamW with a clip by global norm before it and the averages of the weights after it.

    Its `update` takes the loss as `value` and the norm of the gradient as `grad_norm`: an update
    that the guard finds bad is zero. With `update_averages`, a Python bool, the program has
    no condition for moving them (`averaging.average_params`).

    Args:
      config: Adam's constants and the clip.
      schedule: the learning rate.
      averages: averaging rules by label.
      guard: what a bad update is.
      average_every: updates from one move of the averages to the next.

    Source: Section 4, "Architecture and Dataset" (AdamW, no weight decay).
    """
    decay = optax.add_decayed_weights(config.weight_decay) if config.weight_decay else None
    parts = [
        _clip(config.clip_norm),
        _scale_by_adam(config.b1, config.b2, config.epsilon),
        decay,
        optax.scale_by_learning_rate(schedule),
    ]
    adamw = optax.chain(*(part for part in parts if part is not None))
    # The averages come last: they must see the final updates.
    return optax.chain(
        skip_bad_updates(adamw, guard), averaging.average_params(averages, average_every)
    )


def _clip(largest: float) -> optax.GradientTransformationExtraArgs:
    """Scales what is longer than `largest` to that length; its norm is given as `grad_norm`.

    One factor for every element is a part of whatever reads the gradient. Optax divides each by the
    norm, and XLA stores the quotients.
    """

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, Any]:
        del params
        scale = jnp.minimum(1.0, largest / extra["grad_norm"])
        return jax.tree.map(lambda x: x * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _scale_by_adam(b1: Any, b2: Any, epsilon: Any) -> optax.GradientTransformationExtraArgs:
    """Optax's Adam, whose moments stay as they were where `bad`; the update is made from those."""
    adam = optax.scale_by_adam(b1, b2, epsilon)

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, Any]:
        del params
        _, moved = adam.update(updates, state)
        kept = freeze_if_bad(extra["bad"], moved, state)
        mean = optax.tree.bias_correction(kept.mu, b1, kept.count)
        square = optax.tree.bias_correction(kept.nu, b2, kept.count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, square), kept

    return optax.GradientTransformationExtraArgs(adam.init, update)
