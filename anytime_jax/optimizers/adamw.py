"""AdamW, and the descent along the direction of any method."""

import dataclasses
from typing import ClassVar

import optax

from anytime_jax.checks import require_decay, require_fraction, require_positive
from anytime_jax.optimizers.interface import RunInfo


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW: Adam's update, with decoupled weight decay.

    With g the gradient, update t = 1, 2, ... of the parameters theta is

        m     = b1 * m + (1 - b1) * g
        v     = b2 * v + (1 - b2) * g^2
        theta = theta - rate * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)
                                + weight_decay * theta)

    Attributes:
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decoupled decay of every parameter, times the learning rate.

    Examples:
      >>> optimizers.AdamW(weight_decay=0.1)
      AdamW(b1=0.9, b2=0.98, epsilon=1e-08, weight_decay=0.1)

    Source: Decoupled Weight Decay Regularization (arXiv 1711.05101). The defaults are the settings
    of the paper, Section 4.
    """

    kind: ClassVar[str] = "adamw"

    b1: float = 0.9
    b2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require_decay("b1", self.b1)
        require_decay("b2", self.b2)
        require_positive("epsilon", self.epsilon)
        require_fraction("weight_decay", self.weight_decay)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        return descend(optax.scale_by_adam(self.b1, self.b2, self.epsilon), self.weight_decay, run)


def descend(
    direction: optax.GradientTransformation, weight_decay: float, run: RunInfo
) -> optax.GradientTransformationExtraArgs:
    """Returns the descent along a direction, with decoupled weight decay, at the run's rate.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5))
      >>> descent = optimizers.descend(optax.identity(), 0.1, run)
      >>> params = jnp.ones(())
      >>> descent.update(params, descent.init(params), params)[0]
      Array(-0.55, dtype=float32)
    """
    decays = [optax.add_decayed_weights(weight_decay)] if weight_decay else []
    return optax.chain(direction, *decays, optax.scale_by_learning_rate(run.learning_rate))
