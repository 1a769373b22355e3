"""Decoupled weight decay: a number times the learning rate, or a share that follows the run.

With a number, an update at the rate eta takes the share `eta * weight_decay` of a parameter. At a
constant rate and without gradients, a weight is halved in a fixed number of updates. The best
number depends on the length of the run, which an anytime run does not know.

With a rule such as "g2", where g = 2, every matrix decays, whatever the rate. From time t - dt to
t, an update takes the share

    min(g ln(2) dt / t, 0.1)

so that, without gradients, a weight is halved from any time t to `e^(1/g) t`. The decay begins
after the warmup. A run with such a rule should have a warmup: the share is largest in the first
updates. In the trainer, the share falls with the rate in a decay to a horizon.

    >>> optimizer = optimizers.AdamW(weight_decay="g2")
    >>> rate = optax.constant_schedule(1e-3)
    >>> run = optimizers.RunInfo(rate, warmup_steps=10, matrices=["w"])
    >>> descent = optimizer.transform(run)

Sources: the best fixed decay falls with the length of the run: arXiv 2405.13698 (in inverse
proportion), arXiv 2505.13738 (as a power of the tokens per parameter).
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import is_number, reject, require_choice
from anytime_jax.optimizers.interface import RunInfo, parameter_name

DecayMask = Literal["all", "matrices"]
_LARGEST_SHARE = 0.1  # early in a run, g ln(2) / t is large


def check_weight_decay(weight_decay: float | str) -> None:
    """Raises an InputError unless a weight decay is a number from 0 to 1 or a rule such as "g2"."""
    is_fraction = is_number(weight_decay) and 0 <= float(weight_decay) <= 1
    if not is_fraction and parse_g(weight_decay) is None:
        allowed = 'a fraction from 0 to 1, or "g" and a number from 0.01 to 100, as in "g2"'
        reject("weight_decay", weight_decay, allowed)


def parse_g(weight_decay: float | str) -> float | None:
    """Returns the g of a rule such as "g2"; None for a number or other text."""
    if not isinstance(weight_decay, str) or not re.fullmatch(r"g[0-9]+(\.[0-9]+)?", weight_decay):
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
    check_weight_decay(weight_decay)
    require_choice("decay_mask", decay_mask, get_args(DecayMask))
    mask = functools.partial(is_decayed, mask_name(weight_decay, decay_mask), run)
    scale = optax.scale_by_learning_rate(run.learning_rate)
    before = after = optax.identity()
    if isinstance(weight_decay, str):
        after = _take_share(weight_decay, run, mask)  # whatever the rate
    elif weight_decay:
        before = optax.add_decayed_weights(weight_decay, mask)
    # The state has the same places with any decay, so that a branch may change it.
    return optax.chain(direction, before, scale, after)


def _take_share(
    weight_decay: str, run: RunInfo, mask: Callable[[optax.Params], Any]
) -> optax.GradientTransformation:
    """Takes a share of the masked parameters; without `relative_time`, updates are the time."""
    if run.relative_time is None:
        share = functools.partial(share_taken, weight_decay, run)
        return optax.add_decayed_weights(lambda count: -share(count), mask)

    def take(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        if params is None:
            raise ValueError("a weight decay needs the parameters: call update(..., params=params)")
        share = share_taken(weight_decay, run, None)
        return jax.tree.map(
            lambda x, p, decays: x - share * p if decays else x, updates, params, mask(params)
        )

    return optax.stateless(take)


def share_taken(weight_decay: float | str, run: RunInfo, count: Any) -> Any:
    """Returns the share of a parameter that an update takes; `count` is Optax's, before it."""
    g = parse_g(weight_decay)
    if g is None:
        return jnp.asarray(run.learning_rate(count), jnp.float32) * weight_decay
    if run.relative_time is not None:
        relative_time = run.relative_time()
    else:
        relative_time = jnp.where(count < run.warmup_steps, 0.0, 1 / (count + 1))
    return jnp.minimum(g * math.log(2) * relative_time, _LARGEST_SHARE)


def mask_name(weight_decay: float | str, decay_mask: DecayMask) -> DecayMask:
    """Returns which parameters decay: always "matrices" with a rule such as "g2"."""
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
            "a decay of the matrices alone (decay_mask = 'matrices', or a weight_decay such as "
            f"'g2') needs their names, but RunInfo.matrices = {sorted(run.matrices)} has none of "
            "the parameters"
        )
    return mask
