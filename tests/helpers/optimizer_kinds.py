"""Settings of an optimizer of every kind, and the kinds as parameters of tests."""

import dataclasses
from typing import Any

import optax
import pytest
from ml_collections import ConfigDict

KINDS: dict[str, dict[str, Any]] = {
    "adamw_g2": {"kind": "adamw", "weight_decay": "g2"},
    "muon": {"kind": "muon"},
    "muon_bfloat16": {"kind": "muon", "moments": "bfloat16"},
    "schedule_free_adamw": {"kind": "schedule_free_adamw", "decay_mask": "matrices"},
}

FAST = "schedule_free_adamw"  # the kind of the default tests


def kind_parameters() -> list[Any]:
    """Returns every kind as the parameter of a test, which is slow but for one kind."""
    return [pytest.param(x, marks=() if x == FAST else pytest.mark.slow) for x in KINDS]


def optimizer(kind: str, **changes: Any) -> dict[str, ConfigDict]:
    """Returns the change of a small run's settings to an optimizer of a kind."""
    return {"optimizer": ConfigDict({"weight_decay": 0.1, **KINDS[kind], **changes})}


@dataclasses.dataclass(frozen=True)
class Plain:
    """An optimizer of somebody else: SGD, which knows nothing of the width."""

    def transform(self, run: Any) -> optax.GradientTransformation:
        """Returns the descent."""
        return optax.sgd(run.learning_rate)
