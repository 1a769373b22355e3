"""AdamW."""

import dataclasses
from typing import ClassVar

import optax

from anytime_jax.checks import conform_to_types, require_decay, require_positive
from anytime_jax.optimizers.interface import RunInfo
from anytime_jax.optimizers.moments import MOMENTS, MomentsDtype, store_moments
from anytime_jax.optimizers.weight_decay import DecayMask, check_weight_decay, descend
from anytime_jax.optimizers.width_scaling import scale_with_width


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
      weight_decay: decoupled decay of the parameters, a number that is multiplied by the learning
        rate; or a rule such as "g2", with g = 2. From time t - dt to t, such a rule takes the share
        g ln(2) dt / t from every matrix, at most 0.1, whatever the rate.
      decay_mask: the parameters that decay: "all", or the "matrices" of the blocks and the head,
        without norms and embedding. A head tied to the embedding does not count as a matrix. A rule
        such as "g2" always decays the matrices alone.
      moments: type in which moments are stored, "float32" or "bfloat16" (`store_moments`).

    Examples:
      >>> optimizers.AdamW(weight_decay=0.1)
      AdamW(b1=0.9, b2=0.98, epsilon=1e-08, weight_decay=0.1, decay_mask='all', moments='float32')

    Source: Decoupled Weight Decay Regularization (arXiv 1711.05101). The defaults are the settings
    of the paper, Section 4.
    """

    follows_width: ClassVar[bool] = True

    b1: float = 0.9
    b2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float | str = 0.0
    decay_mask: DecayMask = "all"
    moments: MomentsDtype = dataclasses.field(default="float32", metadata=MOMENTS)

    def __post_init__(self) -> None:
        conform_to_types(self)
        require_decay("b1", self.b1)
        require_decay("b2", self.b2)
        require_positive("epsilon", self.epsilon)
        check_weight_decay(self.weight_decay)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        direction = store_moments(self.adam(run), self.moments)
        return descend(direction, self.weight_decay, run, self.decay_mask)

    def adam(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns Adam's direction, at the width of the run.

        A wider model has smaller gradients, in inverse proportion, so epsilon is divided too.
        """
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon / run.width_growth)
        return scale_with_width(adam, run)
