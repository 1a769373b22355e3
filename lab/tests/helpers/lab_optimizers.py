"""Settings of an optimizer of every kind of the laboratory."""

import pytest
from ml_collections import ConfigDict

_LAB = "anytime_lab.optimizers"
_MUON = {"matrices": "muon"}
_EXTRAPOLATED = {"kind": f"{_LAB}:EMANesterov", "ema_decay": 0.9, "extrapolation": 0.5}
KINDS = {
    "normuon": {"kind": f"{_LAB}:NorMuon"},
    "amuse": {"kind": f"{_LAB}:AMUSE", "interpolation": 0.9, "decay_mask": "matrices"},
    "gpa": {"kind": f"{_LAB}:GPA", "interpolation": 0.9, "x_average": "f25"},
    "gpa_muon": {"kind": f"{_LAB}:GPA", "interpolation": 0.9, "x_average": "ema0.9", **_MUON},
    "pace": {"kind": f"{_LAB}:Pace", "pullback": 0.01},
    "ema_nesterov": _EXTRAPOLATED,
    "ema_nesterov_muon": {**_EXTRAPOLATED, **_MUON},
}

FAST = "amuse"  # the kind of the default tests


def kind_parameters():
    """Returns every kind as the parameter of a test, which is slow but for one kind."""
    return [pytest.param(x, marks=() if x == FAST else pytest.mark.slow) for x in KINDS]


def optimizer(kind, **changes):
    """Returns the change of a small run's settings to an optimizer of a kind."""
    return {"optimizer": ConfigDict({"weight_decay": 0.1, **KINDS[kind], **changes})}
