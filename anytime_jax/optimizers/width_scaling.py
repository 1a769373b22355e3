"""Updates of a model that is wider than the one for which the learning rate was tuned (muP)."""

from typing import Any

import jax
import optax

from anytime_jax.optimizers.interface import RunInfo, parameter_name


def scale_with_width(
    direction: optax.GradientTransformation, run: RunInfo
) -> optax.GradientTransformation:
    """Divides a direction's updates of `run.growing_matrices` by the growth of the width.

    If a matrix has N times as many inputs, each of its outputs sums N times as many changes. Adam
    makes the changes equally large, whatever the width, and they add up with one sign. So each
    change has to be N times as small.

    Examples:
      >>> rate = optax.constant_schedule(1e-2)
      >>> run = optimizers.RunInfo(rate, width_growth=4.0, growing_matrices={"mlp_in"})
      >>> scale = optimizers.scale_with_width(optax.identity(), run)
      >>> updates = {"head": jnp.ones(2), "mlp_in": jnp.ones(2)}
      >>> scale.update(updates, scale.init(updates))[0]["mlp_in"]
      Array([0.25, 0.25], dtype=float32)

    Source: Tensor Programs V (arXiv 2203.03466), Table 8.
    """
    if run.width_growth == 1:
        return direction

    def update(updates: optax.Updates, _: Any) -> optax.Updates:
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x / width_growth(run, parameter_name(path)), updates
        )

    return optax.chain(direction, optax.stateless(update))


def width_growth(run: RunInfo, name: str) -> float:
    """Returns the number by which `scale_with_width` divides the updates of a parameter."""
    return run.width_growth if name in run.growing_matrices else 1.0
