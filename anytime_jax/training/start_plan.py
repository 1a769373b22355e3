"""Plan of a run: what a start has found and checked before it writes anything."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from anytime_jax.config.fields import flatten
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_stages import MODEL_FIELDS, describe_weights
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset_info import DatasetInfo, data_fingerprint
from anytime_jax.training import preflight
from anytime_jax.training.branching import Trunk
from anytime_jax.training.pretrained import Pretrained
from anytime_jax.training.step import Program


def describe_evaluation(config: Config, sets: Mapping[str, DatasetInfo]) -> dict[str, Any]:
    """Returns the entry "evaluated" of a run file, for the datasets of all validation sets."""
    weights = config.set_weights
    shares = {x: [y.fingerprint, weights[x]] for x, y in sets.items() if weights[x]}
    return {"tokens": config.eval.tokens, "sets": shares}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration with what was found for it, from which the run can start.

    Attributes:
      datasets: the dataset of every source, by name.
      sets: the dataset of every validation set, by name.
      programs: the functions of the run, by the model of a stage.
      saved_step: step of the latest checkpoint, 0 if there is none.
      step: step from which training goes on: the saved one, or the one where a branch begins.
      stop: step at which it ends, `math.inf` for never.
      reason: why it ends there: "stop", or "data" if all windows are used then.
    """

    config: Config
    mesh: Mesh
    datasets: Mapping[str, DatasetInfo]
    sets: Mapping[str, DatasetInfo]
    programs: Mapping[ModelConfig, Program]
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
        stop, reason = preflight.find_stop(self.config, self.datasets, step)
        return dataclasses.replace(self, step=step, stop=stop, reason=reason)

    @property
    def program(self) -> Program:
        """The functions of the first stage, whose state is every stage's."""
        return self.programs[self.config.model]

    @property
    def dataset(self) -> DatasetInfo:
        """The dataset of the first source; all have one vocabulary."""
        return next(iter(self.datasets.values()))

    def has_data_to(self, step: int) -> bool:
        """Whether the data are enough for `step` updates."""
        return (
            self.config.data.repeat
            or preflight.find_exhausted(self.config, self.datasets, step) is None
        )

    @property
    def origin(self) -> dict[str, str]:
        """Digests of what the run starts from."""
        origin = {"branch.checkpoint": self.trunk.digest} if self.trunk else {}
        return origin | ({"initial_weights": self.initial.digest} if self.initial else {})

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a directory the run's."""
        return self.config.identity(self._fingerprint) | self.origin

    @property
    def _fingerprint(self) -> str:
        """The fingerprint of the data of the first stage."""
        return data_fingerprint([self.datasets[name] for name, _ in self.config.stages[0].weights])

    @property
    def stages(self) -> list[dict[str, Any]]:
        """What the run file says of the stages, as JSON has it."""
        return [
            {
                "step": stage.step,
                **flatten({name: getattr(stage.model, name) for name in MODEL_FIELDS}),
                "mixture": describe_weights(stage.weights),
                "sources": [[self.datasets[x].fingerprint, weight] for x, weight in stage.weights],
            }
            for stage in self.config.stages
        ]

    @property
    def evaluated(self) -> dict[str, Any]:
        """What the mean loss of an evaluation is of, as JSON has it."""
        return describe_evaluation(self.config, self.sets)

    @property
    def about(self) -> dict[str, Any]:
        """What every checkpoint says of the run."""
        return {
            "config": self.config.to_dict(),
            "origin": self.origin,
            "fingerprint": self._fingerprint,
            "stages": self.stages,
            "vocabulary": self.dataset.vocabulary_sha256,
        }
