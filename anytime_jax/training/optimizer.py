"""The optimizer of a run: a clip and the configured method under a guard, then the averages.

The parameters of the state are the iterate at which a method takes its gradients, and the averages
are averages of this iterate. A method that evaluates other weights has read-outs
(`optimizers.readouts`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from anytime_jax import averaging
from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError, format_value
from anytime_jax.models import decoder
from anytime_jax.optimizers import RunInfo
from anytime_jax.training.bad_updates import skip_bad_updates


def make_optimizer(
    config: Config,
    learning_rate: Callable[[Any], Any],
    relative_time: Callable[[], Any] | None = None,
    constrain_stack: Callable[[jax.Array], jax.Array] = lambda stack: stack,
) -> optax.GradientTransformationExtraArgs:
    """Returns the configured method, clipped by global norm and guarded, then the averages.

    Its `update` needs the loss as `value` and the norm of the gradient as `grad_norm`, and accepts
    `time` and `span` (see `averaging.average_params`).

    Args:
      config: the run.
      learning_rate: learning rate as a function of Optax's count.
      relative_time: as in `optimizers.RunInfo`.
      constrain_stack: shards stacks of matrices (`optimizers.RunInfo`).

    Source: Section 4, "Architecture and Dataset" (AdamW, no weight decay).
    """
    axes = decoder.matrix_axes(config.model)
    run = RunInfo(
        learning_rate=learning_rate,
        relative_time=relative_time,
        warmup_steps=config.clock.step_of(config.learning_rate.warmup_end),
        matrix_axes=axes,
        matrices={*axes, "head"},
        constrain_stack=constrain_stack,
        width_growth=config.model.width_growth,
        growing_matrices=(
            decoder.growing_matrices(config.model) if config.model.width_growth != 1 else ()
        ),
    )
    method = config.optimizer.transform(run)
    if not isinstance(method, optax.GradientTransformation):
        raise InputError(
            f"transform() of {type(config.optimizer).__name__} returned {format_value(method)}: "
            "return an optax.GradientTransformation",
            "config.optimizer",
        )
    clipped = optax.chain(_clip(config.clip_norm), method)
    # The averages come last: they must see the final updates.
    return optax.chain(
        skip_bad_updates(clipped, config.guard), averaging.average_params(config.averaging_rules)
    )


def _clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """`optax.clip_by_global_norm` for a norm that is already computed, `grad_norm`.

    All elements are multiplied by one factor, and XLA fuses this product into the operation that
    reads the gradient. Optax divides each element by the norm, and XLA stores the quotients.
    """

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, Any]:
        del params
        scale = jnp.minimum(1.0, max_norm / extra["grad_norm"])
        return jax.tree.map(lambda x: x * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
