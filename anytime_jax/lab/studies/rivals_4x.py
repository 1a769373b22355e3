"""The study of rivals with four times the parameters, to 2x: which conclusions move.

    python -m anytime_jax sweep --study=rivals_4x --run --jobs=2
    python -m anytime_jax leaderboard --study=rivals_4x --page=docs/evidence/leaderboard_4x.md

Cost:   189M tokens, an hour on two CPU cores.
Result: docs/evidence/leaderboard_4x.md
"""

from ml_collections import ConfigDict

from anytime_jax.lab.studies import rivals
from anytime_jax.lab.studies.rivals import (
    ADAMW,
    CONSTANT,
    COSINE,
    INVERSE_SQRT,
    MUON,
    Method,
    cosine_space,
    peaks,
)
from anytime_jax.lab.study.plan import Study, chain, grid, values

ROOT = "runs/studies/rivals_4x"


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 393,216 block parameters on Python's standard library, 1x to 2x."
    return Study("rivals_4x", ROOT, chain(*(x.runs(ROOT, decoder) for x in METHODS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: float | str) -> ConfigDict:
    """Returns twice the width: 1x is 1,920 updates."""
    config = rivals.decoder(**schedule)
    config.chinchilla_tokens *= 4
    config.stop = "2x"
    config.model.update(heads=8, width=128, mlp_width=512)
    return config


_WARMUP = values("schedule.warmup", "0.1x")  # 192 updates
_LONG_WARMUP = values("schedule.warmup", "0.4x")

METHODS = (
    Method(
        "cosine",
        ADAMW,
        COSINE,
        best=grid(cosine_space(x1=(1e-2, 3e-2), x2=(1e-2, 3e-2)), _LONG_WARMUP),
        reported=grid(cosine_space(x1=(3e-2,), x2=(1e-2,)), _LONG_WARMUP),
    ),
    Method("constant", ADAMW, CONSTANT, best=grid(peaks(1e-2), _WARMUP)),
    Method(
        "muon-constant",
        MUON,
        CONSTANT,
        best=grid(peaks(1e-2, 2e-2), _WARMUP),
        reported=grid(peaks(1e-2), _WARMUP),
    ),
    Method(
        "muon-inverse_sqrt",
        MUON,
        INVERSE_SQRT,
        best=grid(peaks(2e-2), values("schedule.alpha", 7680.0), _WARMUP),
    ),
)
