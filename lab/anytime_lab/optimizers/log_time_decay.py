"""AdamW or Muon with a weight decay that follows the run.

From time t - 1 to t, an update takes the share

    min(g ln(2) / t, 0.1)

of every matrix, whatever the learning rate. So, without gradients, a weight is halved from any time
t to `e^(1/g) t`. The decay begins after the warmup. Time is the number of updates, so a batch that
grows gives other shares, and a decay of the rate leaves the share as it is.

ADANA has a decay of omega / t that is multiplied by the rate (arXiv 2602.05298). At a constant rate
both are of the form 1 / t.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from anytime_jax.checks import require_choice, require_positive
from anytime_jax.optimizers import INHERITED, AdamW, Muon, RunInfo, is_decayed

_LARGEST_SHARE = 0.1  # early in a run, g ln(2) / t is large


@dataclasses.dataclass(frozen=True)
class LogTimeDecay(Muon):
    """AdamW or Muon with a decay that follows the run, on top of the fixed `weight_decay`.

    Attributes:
      matrices: method of the matrices of the blocks; `momentum` is for "muon".
      g: strength of the decay.

    Examples:
      >>> run = optimizers.RunInfo(optax.constant_schedule(0.5), matrices=["w"])
      >>> optimizer = log_time_decay.LogTimeDecay(g=0.1).transform(run)
      >>> params = {"w": jnp.ones((1, 1)), "scale": jnp.ones(1)}
      >>> zeros = jax.tree.map(jnp.zeros_like, params)
      >>> updates, _ = optimizer.update(zeros, optimizer.init(params), params)
      >>> print(f"{updates['w'].item():.4f}", bool(updates["scale"] == 0))
      -0.0693 True
    """

    follows_width: ClassVar[bool] = False  # which nobody has tried

    matrices: Literal["adam", "muon"] = dataclasses.field(default="adam", metadata=INHERITED)
    g: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("matrices", self.matrices, ("adam", "muon"))
        require_positive("g", self.g)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent; its `update` needs the parameters."""

        def share(count: jax.Array) -> jax.Array:
            taken = jnp.minimum(self.g * math.log(2) / (count + 1), _LARGEST_SHARE)
            return -jnp.where(count < run.warmup_steps, 0.0, taken)

        descent = (Muon if self.matrices == "muon" else AdamW).transform(self, run)
        decay = optax.add_decayed_weights(share, lambda params: is_decayed("matrices", run, params))
        return optax.chain(descent, decay)
