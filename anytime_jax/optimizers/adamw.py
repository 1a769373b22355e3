"""AdamW, and the descent along the direction of any method."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, get_args

import jax
import optax

from anytime_jax.checks import (
    convert_numbers,
    require_choice,
    require_decay,
    require_fraction,
    require_positive,
)
from anytime_jax.optimizers.interface import RunInfo, parameter_name, scale_with_width

DecayMask = Literal["all", "matrices"]


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
      weight_decay: decoupled decay of the parameters, times the learning rate.
      decay_mask: the parameters that decay: "all", or the "matrices" of the blocks and the head,
        without norms and embedding; a head tied to the embedding is the embedding.

    Examples:
      >>> optimizers.AdamW(weight_decay=0.1)
      AdamW(b1=0.9, b2=0.98, epsilon=1e-08, weight_decay=0.1, decay_mask='all')

    Source: Decoupled Weight Decay Regularization (arXiv 1711.05101). The defaults are the settings
    of the paper, Section 4.
    """

    kind: ClassVar[str] = "adamw"
    follows_width: ClassVar[bool] = True

    b1: float = 0.9
    b2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decay_mask: DecayMask = "all"

    def __post_init__(self) -> None:
        convert_numbers(self)
        require_decay("b1", self.b1)
        require_decay("b2", self.b2)
        require_positive("epsilon", self.epsilon)
        require_fraction("weight_decay", self.weight_decay)
        require_choice("decay_mask", self.decay_mask, get_args(DecayMask))

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        return descend(self.adam(run), self.weight_decay, run, self.decay_mask)

    def adam(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns Adam's direction, at the width of the run.

        As the width grows, gradients fall in proportion, and so does epsilon.
        """
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon / run.width_growth)
        return scale_with_width(adam, run)


def descend(
    direction: optax.GradientTransformation,
    weight_decay: float,
    run: RunInfo,
    decay_mask: DecayMask = "all",
) -> optax.GradientTransformationExtraArgs:
    """Returns the descent along a direction, with decoupled weight decay, at the run's rate.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5))
      >>> descent = optimizers.descend(optax.identity(), 0.1, run)
      >>> params = jnp.ones(())
      >>> descent.update(params, descent.init(params), params)[0]
      Array(-0.55, dtype=float32)
    """
    mask = None if decay_mask == "all" else functools.partial(is_decayed, decay_mask, run)
    decays = [optax.add_decayed_weights(weight_decay, mask)] if weight_decay else []
    return optax.chain(direction, *decays, optax.scale_by_learning_rate(run.learning_rate))


def is_decayed(decay_mask: DecayMask, run: RunInfo, params: optax.Params) -> Any:
    """Returns a tree like the parameters that says which of them decay.

    Raises:
      ValueError: if only matrices decay, and the run names no parameter as one.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5), matrices=["w"])
      >>> optimizers.is_decayed("matrices", run, {"w": jnp.eye(2), "scale": jnp.ones(2)})
      {'scale': False, 'w': True}
    """

    def decays(path: Any, _: Any) -> bool:
        return decay_mask == "all" or parameter_name(path) in run.matrices

    mask = jax.tree_util.tree_map_with_path(decays, params)
    if not any(jax.tree.leaves(mask)):
        raise ValueError(
            f"decay_mask = {decay_mask!r} needs the names of the matrices, but RunInfo.matrices = "
            f"{sorted(run.matrices)} has none of the parameters"
        )
    return mask
