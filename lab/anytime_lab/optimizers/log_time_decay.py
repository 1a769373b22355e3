"""AdamW and Muon with a weight decay that follows the run, in place of a fixed one.

From time t - 1 to t, an update takes the share

    min(g ln(2) / t, 0.1)

of every matrix, whatever the learning rate, so that without gradients a weight is halved from any
time t to `e^(1/g) t`. The decay begins after the warmup. Time counts updates: the batch is not to
grow. ADANA's decay of omega / t, times the rate, is of this form (arXiv 2602.05298).
"""

import dataclasses
import math

import jax.numpy as jnp
import optax

from anytime_jax.checks import require_positive
from anytime_jax.optimizers import AdamW, Muon, RunInfo, is_decayed

_LARGEST_SHARE = 0.1  # early in a run, g ln(2) / t is large


def take_share(g: float, run: RunInfo) -> optax.GradientTransformation:
    """Returns a transform that adds the decay to updates; it needs the parameters.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5), matrices=["w"])
      >>> decay = log_time_decay.take_share(0.1, run)
      >>> params = {"w": jnp.ones((1, 1)), "scale": jnp.ones(1)}
      >>> zeros = jax.tree.map(jnp.zeros_like, params)
      >>> updates, _ = decay.update(zeros, decay.init(params), params)
      >>> print(f"{updates['w'].item():.4f} {updates['scale'].item():.4f}")
      -0.0693 0.0000
    """

    def share(count: jnp.ndarray) -> jnp.ndarray:
        taken = jnp.minimum(g * math.log(2) / (count + 1), _LARGEST_SHARE)
        return -jnp.where(count < run.warmup_steps, 0.0, taken)

    return optax.add_decayed_weights(share, lambda params: is_decayed("matrices", run, params))


@dataclasses.dataclass(frozen=True)
class LogTimeAdamW(AdamW):
    """AdamW with a decay that follows the run.

    Attributes:
      g: strength of the decay; the fixed `weight_decay` comes on top of it.

    Examples:
      >>> log_time_decay.LogTimeAdamW(g=2.0).g
      2.0
    """

    g: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("g", self.g)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        return optax.chain(super().transform(run), take_share(self.g, run))


@dataclasses.dataclass(frozen=True)
class LogTimeMuon(Muon):
    """Muon with a decay that follows the run; attributes as of `LogTimeAdamW`.

    Examples:
      >>> log_time_decay.LogTimeMuon(g=2.0).g
      2.0
    """

    g: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("g", self.g)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent."""
        return optax.chain(super().transform(run), take_share(self.g, run))
