"""Generalized primal averaging: an average with a fixed or a growing window, in the update."""

import dataclasses
from typing import ClassVar, Literal

import optax

from anytime_jax import averaging
from anytime_jax.checks import reject, require_inside
from anytime_jax.optimizers import INHERITED, AdamW, Muon, RunInfo
from anytime_lab.optimizers.primal_averaging import primal_averaging


@dataclasses.dataclass(frozen=True)
class GPA(Muon):
    """Generalized primal averaging (GPA) around AdamW or Muon.

    With y the parameters and u the update of AdamW or Muon at y,

        z = z + u(y)
        x = (1 - c) * x + c * z
        y = interpolation * x + (1 - interpolation) * z

    where c is the weight of the newest iterate in the average `x_average`. x is evaluated. GPA has
    a constant c; with a growing window, this is the average of the paper inside the update.

    Attributes:
      matrices: method of the matrices of the blocks; `momentum` is for "muon".
      interpolation: weight of x in the parameters.
      x_average: averaging rule of x over z, such as "ema0.9967" or the growing window "f25".

    Source: GPA (arXiv 2512.17131).
    """

    follows_width: ClassVar[bool] = False  # which nobody has tried

    matrices: Literal["adam", "muon"] = dataclasses.field(default="adam", metadata=INHERITED)
    interpolation: float = dataclasses.field(default=0.7, metadata=INHERITED)
    x_average: str = dataclasses.field(default="ema0.9967", metadata=INHERITED)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_inside("interpolation", self.interpolation)
        try:
            averaging.parse_rule(self.x_average)
        except ValueError:
            form = 'the label of an average, such as "ema0.9967", "f25" or "uniform"'
            reject("x_average", self.x_average, form)

    def transform(self, run: RunInfo) -> optax.GradientTransformation:
        """Returns the descent; its `update` takes `time` and `span` as `average_params` does."""
        method = Muon if self.matrices == "muon" else AdamW
        descent, rule = method.transform(self, run), averaging.parse_rule(self.x_average)
        return primal_averaging(descent, self.interpolation, rule)
