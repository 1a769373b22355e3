"""The quickstart with another optimizer: muon, schedule_free_adamw, gpa, pace, ...

    python -m anytime_jax.main --config=configs/optimizers.py:muon

docs/optimizers.md has the methods and what they evaluate; docs/evidence/leaderboard.md says how
good they are.

Cost:   that of the quickstart, about 3 minutes on two CPU cores.
Result: validation losses beside those of the quickstart, in runs/quickstart_KIND.
"""

from typing import Any

from ml_collections import ConfigDict

from anytime_jax.errors import InputError
from configs import quickstart

_MUON = {"momentum": 0.95, "normalize_rows": False}
# Settings of the methods besides those of AdamW: the authors' own, or the best of the study of
# rivals. The growing average of `gpa_muon` is this project's.
SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "muon": _MUON,
    "schedule_free_adamw": {"interpolation": 0.9},
    "schedule_free_muon": {"interpolation": 0.9, "interpolation_power": 1.0, **_MUON},
    "gpa": {"interpolation": 0.7, "x_average": "ema0.9967"},
    "gpa_muon": {"interpolation": 0.7, "x_average": "f25", **_MUON},
    "pace": {"pullback": 0.15, "ema_power": 0.2},
    "ema_nesterov": {"ema_decay": 0.99, "extrapolation": 0.5},
    "ema_nesterov_muon": {"ema_decay": 0.99, "extrapolation": 0.5, **_MUON},
}


def get_config(kind: str = "") -> ConfigDict:
    """Returns the quickstart with an optimizer of this kind and a constant rate."""
    config = quickstart.get_config()
    config.name = f"quickstart_{kind}"
    config.run_dir = f"runs/{config.name}"
    config.schedule = ConfigDict(
        {"kind": "constant", "peak": 1e-2, "warmup": "48 steps", "warmup_init": 0.1}
    )
    set_optimizer(config, kind)
    return config


def set_optimizer(config: ConfigDict, kind: str, **settings: Any) -> None:
    """Sets the optimizer of a run, with the settings above unless `settings` has others."""
    if kind not in SETTINGS:
        raise InputError(
            f"optimizer {kind!r}: give one of {', '.join(SETTINGS)}, as --config=optimizers:muon"
        )
    config.optimizer = ConfigDict({**config.optimizer, "kind": kind, **SETTINGS[kind], **settings})
    if kind.startswith("schedule_free"):
        del config.optimizer.b1  # the average is their momentum
