"""Plan of a run: what a start has found and checked before it writes anything."""

import dataclasses
import math
from typing import Any

from jax.sharding import Mesh

from anytime_jax.config.schema import Config
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.training import preflight
from anytime_jax.training.branching import Trunk
from anytime_jax.training.pretrained import Pretrained
from anytime_jax.training.step import Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration with what was found for it, from which the run can start.

    Attributes:
      saved_step: step of the latest checkpoint, 0 if there is none.
      step: step from which training goes on: the saved one, or the one where a branch begins.
      stop: step at which it ends, `math.inf` for never.
      reason: why it ends there: "stop", or "data" if all windows are used then.
    """

    config: Config
    mesh: Mesh
    dataset: DatasetInfo
    program: Program
    trunk: Trunk | None
    initial: Pretrained | None
    saved_step: int
    step: int
    stop: float = math.inf
    reason: str = "stop"

    def starting_from(self, step: int) -> "Plan":
        """Returns the plan for another step, and the stop that follows from it.

        Raises an InputError if the data end before the configured stop.
        """
        stop, reason = preflight.find_stop(self.config, self.dataset, step, self.samples(step))
        return dataclasses.replace(self, step=step, stop=stop, reason=reason)

    def samples(self, step: int) -> int:
        """Returns the windows of the dataset consumed after `step` updates."""
        clock, trunk = self.config.clock, self.trunk
        # Only a branch that reads other data than its trunk has not seen the trunk's windows.
        return clock.samples(step) + (trunk.samples - clock.samples(trunk.step) if trunk else 0)

    def unused(self, step: int) -> int:
        """Returns the windows of the dataset that remain after `step` updates."""
        return self.dataset.splits["train"].windows - self.samples(step)

    @property
    def origin(self) -> dict[str, str]:
        """Digests of what the run starts from."""
        origin = {"branch.checkpoint": self.trunk.digest} if self.trunk else {}
        return origin | ({"initial_weights": self.initial.digest} if self.initial else {})

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a directory the run's."""
        return self.config.identity(self.dataset.fingerprint) | self.origin

    @property
    def about(self) -> dict[str, Any]:
        """What every checkpoint says of the run."""
        return {
            "config": self.config.to_dict(),
            "origin": self.origin,
            "fingerprint": self.dataset.fingerprint,
            "vocabulary": self.dataset.vocabulary_sha256,
        }
