"""Decoupled weight decay: a number times the learning rate, or one whose memory grows with the run.

With a number, an update at the rate eta takes `eta * weight_decay` of a parameter, so that it
forgets over a fixed number of updates, 1 / (eta * weight_decay), which is tuned to a horizon. With
"g2", where g = 2, an update that brings the run's time to t takes

    min(g ln(2) dt / t, 0.1)

of the matrices, whatever the rate, where dt is the time that it adds. What a run has at time t has
decayed to its half at `e^(1/g) t`, for any t: the memory is a share of the run, as the windows of
averages are. It begins after the warmup, and where the rate decays to a horizon it falls with it.

    >>> optimizer = optimizers.AdamW(weight_decay="g2")
    >>> rate = optax.constant_schedule(1e-3)
    >>> run = optimizers.RunInfo(rate, warmup_steps=10, matrices=["w"])
    >>> descent = optimizer.transform(run)

Sources: decay tuned to a horizon, arXiv 2405.13698 and arXiv 2505.13738.
"""

import functools
import math
import re
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import is_number, reject, require_choice
from anytime_jax.optimizers.interface import RunInfo, parameter_name

DecayMask = Literal["all", "matrices"]
_LARGEST_SHARE = 0.1  # early in a run, g ln(2) / t is large


def check_weight_decay(weight_decay: float | str, decay_mask: DecayMask) -> None:
    """Raises a ValueError for settings of a decay that are not allowed."""
    is_fraction = is_number(weight_decay) and 0 <= float(weight_decay) <= 1
    if not is_fraction and read_growing(weight_decay) is None:
        allowed = 'a fraction from 0 to 1, or "g" and a number from 0.01 to 100, as in "g2"'
        reject("weight_decay", weight_decay, allowed)
    require_choice("decay_mask", decay_mask, get_args(DecayMask))


def read_growing(weight_decay: float | str) -> float | None:
    """Returns the g of a decay such as "g2"; None for a number, or other text."""
    if not isinstance(weight_decay, str) or not re.fullmatch(r"g\d+(\.\d+)?", weight_decay):
        return None
    g = float(weight_decay[1:])
    return g if 0.01 <= g <= 100 else None


def descend(
    direction: optax.GradientTransformation,
    weight_decay: float | str,
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
    mask = functools.partial(is_decayed, find_mask(weight_decay, decay_mask), run)
    scale = optax.scale_by_learning_rate(run.learning_rate)
    if isinstance(weight_decay, str):
        share = functools.partial(decayed_share, weight_decay, run)
        # Without a count of its own in the state, a branch can change from a number and back.
        taken = (lambda count: -share(count)) if run.relative_time is None else -share(None)
        # It does not follow the rate, so it comes after it.
        return optax.chain(direction, scale, optax.add_decayed_weights(taken, mask))
    decays = [optax.add_decayed_weights(weight_decay, mask)] if weight_decay else []
    return optax.chain(direction, *decays, scale)


def decayed_share(weight_decay: float | str, run: RunInfo, count: Any) -> Any:
    """Returns the share of a parameter that the update after `count`, of Optax, takes."""
    g = read_growing(weight_decay)
    if g is None:
        return jnp.asarray(run.learning_rate(count), jnp.float32) * weight_decay
    if run.relative_time is not None:
        relative_time = run.relative_time()
    else:
        relative_time = jnp.where(count < run.warmup_steps, 0.0, 1 / (count + 1))
    return jnp.minimum(g * math.log(2) * relative_time, _LARGEST_SHARE)


def find_mask(weight_decay: float | str, decay_mask: DecayMask) -> DecayMask:
    """Returns which parameters decay: with a decay that follows the run, the matrices."""
    return "matrices" if isinstance(weight_decay, str) else decay_mask


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
