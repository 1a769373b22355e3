"""AMUSE: schedule-free Muon, whose gradients move towards the average as training goes on."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import require_count, require_decay, require_fraction
from anytime_jax.optimizers import (
    RunInfo,
    ScheduleFreeAdamW,
    descend,
    partition_matrices,
    scale_by_muon,
    store_moments,
)
from anytime_lab.optimizers.primal_averaging import primal_averaging, require_coefficient


@dataclasses.dataclass(frozen=True)
class AMUSE(ScheduleFreeAdamW):
    """AMUSE: schedule-free averaging around Muon, and around Adam without momentum for the rest.

    With y the parameters and u the update of Muon or Adam, of the gradient at y and of weight decay
    at z,

        z = z + u
        x = (1 - c) * x + c * z
        y = b * x + (1 - b) * z,        b = 1 - (1 - interpolation) * s^interpolation_power

    c is the share of the newest squared rate in all (`schedule_free_weight`). s is 1 to the end of
    the warmup, and then c / (1 - c) over its value there. x is evaluated.

    Attributes:
      momentum: decay of the momentum of matrices.
      interpolation_power: power of 1/t with which b approaches 1 after the warmup; 0 to leave it
        at `interpolation`, which is schedule-free Muon.
      warmup_init: rate of the first update of the warmup over the rate at its end, the schedule's.

    Source: AMUSE (arXiv 2605.22432), and the authors' code, github.com/kjeiun/amuse.
    """

    follows_width: ClassVar[bool] = False  # which nobody has tried

    momentum: float = 0.95
    interpolation_power: float = 1.0
    warmup_init: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay("momentum", self.momentum)
        require_fraction("interpolation_power", self.interpolation_power)
        require_fraction("warmup_init", self.warmup_init)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent, whose averaging weights depend on the warmup of the run."""
        muon = scale_by_muon(
            run.matrix_axes, self.momentum, self.epsilon, constrain_stack=run.constrain_stack
        )
        others = optax.scale_by_rms(self.b2, self.epsilon, eps_in_sqrt=False, bias_correction=True)
        direction = partition_matrices(muon, others, run.matrix_axes)
        direction = store_moments(direction, self.moments)
        descent = descend(direction, self.weight_decay, run, self.decay_mask)
        weight = schedule_free_weight(run.warmup_steps, self.warmup_init)
        start = max(run.warmup_steps, 3)  # the newest weight is below 1 from this update on
        interpolation = rising_interpolation(
            self.interpolation, start, self.interpolation_power, weight
        )
        return primal_averaging(descent, interpolation, weight, inner_params="z")


def schedule_free_weight(
    warmup_steps: int = 0, warmup_init: float = 0.1
) -> Callable[[jax.Array], jax.Array]:
    """Returns the weight c_t of the newest iterate in schedule-free averages.

        c_t = eta_t^2 / (eta_1^2 + ... + eta_t^2),        c_1 = 1

    for rates eta of a constant schedule with a linear warmup as in `schedules`: update t has the
    rate at count t - 1. Without a warmup the average is the plain mean, c_t = 1 / t.

    Examples:
      >>> [float(amuse.schedule_free_weight()(t)) for t in (1, 2, 4)]
      [1.0, 0.5, 0.25]
      >>> weight = amuse.schedule_free_weight(warmup_steps=2, warmup_init=0.0)
      >>> [float(weight(t)) for t in (2, 3, 4)]  # squared rates 0, 1/4, 1, 1
      [1.0, 0.800000011920929, 0.4444444477558136]

    Source: The Road Less Scheduled (arXiv 2405.15682), Section 3.2, with `weight_lr_power` = 2.
    """
    require_count("warmup_steps", warmup_steps)
    require_fraction("warmup_init", warmup_init)
    rise = (1 - warmup_init) / jnp.maximum(warmup_steps, 1)

    def squares(n: Any) -> Any:
        """The sum of the first n squared rates of the warmup, relative to the peak."""
        means = warmup_init**2 + warmup_init * rise * (n - 1)
        return n * (means + rise**2 * (n - 1) * (2 * n - 1) / 6)

    def weight(count: jax.Array) -> jax.Array:
        t = jnp.asarray(count, jnp.float32)
        in_warmup = jnp.minimum(t, warmup_steps)
        newest = jnp.where(t <= warmup_steps, (warmup_init + rise * (t - 1)) ** 2, 1.0)
        total = squares(in_warmup) + (t - in_warmup)
        return jnp.where(total > 0, newest / jnp.where(total > 0, total, 1.0), 1.0)

    return weight


def rising_interpolation(
    b1: Any,
    start: int,
    rho: Any,
    newest_weight: Callable[[jax.Array], jax.Array] | None = None,
) -> Callable[[jax.Array], jax.Array]:
    """Returns an interpolation b_t that is b1 up to update `start` and then rises towards 1.

        b_t = 1 - S_t^rho * (1 - b1),        S_t = c_t / (1 - c_t) * (1 - c_start) / c_start

    with c_t the weight of the newest iterate in the average, by default 1 / t; then
    S_t = (start - 1) / (t - 1). With rho = 1 the weight of z in y falls like c_t; a smaller rho
    makes it fall slower.

    AMUSE has this b and `schedule_free_weight` as c, with `start` the length of its warmup. Its
    code recomputes x from y with b_t in place of b_{t-1}; `primal_averaging` has the exact x.

    Args:
      b1: above 0 and up to 1.
      start: 2 or more.
      rho: 0 or above.
      newest_weight: c, below 1 from update `start` on.

    Examples:
      >>> interpolation = amuse.rising_interpolation(0.6, start=11, rho=1.0)
      >>> [round(float(interpolation(t)), 3) for t in (1, 11, 21, 101)]
      [0.6, 0.6, 0.8, 0.96]

    Source: AMUSE (arXiv 2605.22432); the authors' `_compute_beta1`, github.com/kjeiun/amuse.
    """
    require_coefficient("b1", b1, lambda b: 0 < b <= 1, "above 0 and up to 1")
    require_count("start", start, least=2)
    require_coefficient("rho", rho, lambda r: r >= 0, "0 or above")
    newest_weight = schedule_free_weight() if newest_weight is None else newest_weight

    def odds(t: Any) -> jax.Array:
        c = newest_weight(t)
        return c / (1 - c)

    def interpolation(count: jax.Array) -> jax.Array:
        t = jnp.maximum(jnp.asarray(count, jnp.float32), start)
        return 1 - (odds(t) / odds(jnp.float32(start))) ** rho * (1 - b1)

    return interpolation
