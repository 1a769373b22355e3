"""Training state: the arrays that every update changes and every checkpoint stores."""

from typing import NamedTuple

import jax
import optax

from anytime_jax.models import decoder


class TrainState(NamedTuple):
    """Step, live weights and optimizer state of a run.

    `step` is an int32 scalar, the number of updates. A skipped update adds to `step` and to the
    count of the averages, but not to the counts of the optimizer. `params` are float32.
    `opt_state` has Adam's moments, the guard's statistics of the loss, and the averages.
    """

    step: jax.Array
    params: decoder.Params
    opt_state: optax.OptState
