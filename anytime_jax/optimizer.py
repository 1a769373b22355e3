"""The optimizer: clip, Adam, weight decay, learning rate, averages, in that order."""

from collections.abc import Mapping

import optax

from anytime_jax import averaging, schedules
from anytime_jax.config import OptimizerConfig


def make_optimizer(
    config: OptimizerConfig,
    schedule: schedules.Schedule,
    averages: Mapping[str, averaging.Rule],
) -> optax.GradientTransformationExtraArgs:
    """Returns AdamW with a clip by global norm before it and the averages of the weights after it.

    Args:
      config: Adam's constants and the clip.
      schedule: the learning rate.
      averages: averaging rules by label.

    Source: Section 4, "Architecture and Dataset" (AdamW, no weight decay).
    """
    decay = optax.add_decayed_weights(config.weight_decay) if config.weight_decay else None
    parts = [
        optax.clip_by_global_norm(config.clip_norm),
        optax.scale_by_adam(config.b1, config.b2, config.epsilon),
        decay,
        optax.scale_by_learning_rate(schedule),
        averaging.average_params(averages),  # last: it must see the final updates
    ]
    return optax.chain(*(part for part in parts if part is not None))
