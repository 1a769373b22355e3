"""Training state: what every update changes and every checkpoint stores."""

from typing import NamedTuple

import jax
import optax

from anytime_jax.models import decoder


class TrainState(NamedTuple):
    """State of training.

    Attributes:
      step: int32 scalar, updates done; every count in `opt_state` equals it.
      params: the live weights, float32.
      opt_state: Adam's moments, the guard's statistics of the loss, and the averages.
    """

    step: jax.Array
    params: decoder.Params
    opt_state: optax.OptState
