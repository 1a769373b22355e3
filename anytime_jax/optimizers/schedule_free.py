"""Schedule-free AdamW: Optax's, with the average as a read-out of its state."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from anytime_jax.averaging import LIVE
from anytime_jax.checks import (
    conform_to_types,
    require_decay,
    require_inside,
    require_positive,
)
from anytime_jax.optimizers.interface import INHERITED, RunInfo
from anytime_jax.optimizers.moments import MOMENTS, MomentsDtype, store_moments
from anytime_jax.optimizers.weight_decay import DecayMask, check_weight_decay, descend
from anytime_jax.optimizers.width_scaling import scale_with_width


@dataclasses.dataclass(frozen=True)
class ScheduleFreeAdamW:
    """Schedule-free AdamW: gradients are taken between the iterates of Adam and their average.

    The method has three iterates. y are the parameters, at which gradients are taken; z moves by
    the updates; x, the average of the z, is evaluated. With u(y) the update of Adam without a first
    moment, for the gradient and the weight decay at y,

        z = z + u(y)
        x = (1 - c) * x + c * z
        y = interpolation * x + (1 - interpolation) * z

    The weight of an update in x is the square of the largest rate so far. c is this weight divided
    by the sum of all weights so far.

    Attributes:
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decoupled decay of the parameters, as in `AdamW`.
      decay_mask: the parameters that decay, as in `AdamW`.
      moments: type in which the second moment is stored, as in `AdamW`; z is in float32.
      interpolation: weight of the average x in the parameters y.

    Examples:
      >>> optimizer = optimizers.ScheduleFreeAdamW(interpolation=0.8)
      >>> run = optimizers.RunInfo(optax.constant_schedule(1e-2))
      >>> state = optimizer.transform(run).init(jnp.ones(2))
      >>> {name: round(float(a), 2) for name, a in optimizers.readouts(state)["x"].items()}
      {'last': 1.25, 'z': -0.25}

    Source: The Road Less Scheduled (arXiv 2405.15682).
    """

    follows_width: ClassVar[bool] = True

    b2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float | str = 0.0
    decay_mask: DecayMask = "all"
    moments: MomentsDtype = dataclasses.field(default="float32", metadata=MOMENTS)
    interpolation: float = dataclasses.field(default=0.9, metadata=INHERITED)

    def __post_init__(self) -> None:
        conform_to_types(self)
        require_decay("b2", self.b2)
        require_positive("epsilon", self.epsilon)
        check_weight_decay(self.weight_decay)
        require_inside("interpolation", self.interpolation)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns Optax's transform, whose state has read-outs."""
        epsilon = self.epsilon / run.width_growth
        rms = optax.scale_by_rms(self.b2, epsilon, eps_in_sqrt=False, bias_correction=True)
        direction = store_moments(scale_with_width(rms, run), self.moments)
        descent = descend(direction, self.weight_decay, run, self.decay_mask)
        # Optax counts the updates of the wrapper from 1.
        method = optax.contrib.schedule_free(
            descent, lambda count: run.learning_rate(count - 1), self.interpolation
        )

        def init(params: optax.Params) -> ScheduleFreeState:
            return _with_readouts(method.init(params))

        def update(
            updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra: Any
        ) -> tuple[optax.Updates, ScheduleFreeState]:
            updates, new_state = method.update(updates, state, params, **extra)
            return updates, _with_readouts(new_state)

        return optax.GradientTransformationExtraArgs(init, update)


class ScheduleFreeState(optax.contrib.ScheduleFreeState):
    """State of Optax's schedule-free methods, with the read-out "x" from the iterate "z".

    Examples:
      >>> optimizer = optax.contrib.schedule_free_sgd(0.1, b1=0.5)
      >>> state = optimizers.ScheduleFreeState(*optimizer.init(jnp.ones(2)))
      >>> state.readouts()["x"]["last"]
      Array(2., dtype=float32)
    """

    def readouts(self) -> dict[str, dict[str, jax.Array]]:
        """Returns x = z + (y - z) / b."""
        b = jnp.asarray(self.b1, jnp.float32)
        return {"x": {LIVE: 1 / b, "z": 1 - 1 / b}}

    def iterates(self) -> dict[str, Any]:
        """Returns z."""
        return {"z": self.z}


def _with_readouts(state: Any) -> ScheduleFreeState:
    return ScheduleFreeState(*state)
