"""Settings of an optimizer of every kind, and the kinds as parameters of tests."""

from collections.abc import Sequence
from typing import Any

import pytest
from ml_collections import ConfigDict

_COMMON = {"b2": 0.98, "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
_MUON = {"momentum": 0.95, "normalize_rows": False}
_EXTRAPOLATED = {"b1": 0.9, "ema_decay": 0.9, "extrapolation": 0.5}
_OWN: dict[str, dict[str, Any]] = {
    "muon": {"b1": 0.9, **_MUON},
    "schedule_free_adamw": {"interpolation": 0.9},
    "schedule_free_muon": {**_MUON, "interpolation": 0.9, "interpolation_power": 1.0},
    "gpa": {"b1": 0.9, "interpolation": 0.9, "x_average": "f25"},
    "gpa_muon": {"b1": 0.9, "interpolation": 0.9, "x_average": "ema0.9", **_MUON},
    "pace": {"b1": 0.9, "pullback": 0.01, "ema_power": 0.2},
    "ema_nesterov": _EXTRAPOLATED,
    "ema_nesterov_muon": {**_EXTRAPOLATED, **_MUON},
}  # fmt: skip

KINDS = {kind: {"kind": kind, **_COMMON, **own} for kind, own in _OWN.items()}


def kind_parameters(fast: Sequence[str] = ("schedule_free_muon", "pace")) -> list[Any]:
    """Returns every kind as the parameter of a test, which is slow but for some kinds."""
    return [pytest.param(x, marks=() if x in fast else pytest.mark.slow) for x in KINDS]


def optimizer(kind: str, **changes: Any) -> dict[str, ConfigDict]:
    """Returns the change of a small run's settings to an optimizer of a kind."""
    return {"optimizer": ConfigDict({**KINDS[kind], **changes})}
