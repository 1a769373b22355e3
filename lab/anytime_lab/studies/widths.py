"""Does the best peak move with the width? Decoders of width 64, 128 and 256 at equal tokens.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=widths --run --jobs=2

A constant rate to 2x of the leaderboard's budget, 3.93M tokens, read out through f12.5 and f25,
with AdamW and Muon under the standard parametrization and under "mup" from a base of width 64,
where the two are the same. Five peaks a factor of sqrt(2) apart around the best that is predicted;
AdamW for two seeds. At width 512, four peaks. AdamW's cosine to the same budget under "mup".

Cost:   393M tokens, 2.6e15 FLOPs: about five hours of two idle CPU cores.
Result: lab/evidence/width.md
"""

from typing import Any

from ml_collections import ConfigDict

from anytime_lab.studies import leaderboard_peaks
from anytime_lab.studies.leaderboard_peaks import packages, peak
from anytime_lab.study.plan import Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/widths"
WIDTHS = (64, 128, 256)
HEAD_SIZE = 16

ADAMW: dict[str, Any] = {"kind": "adamw"}
MUON: dict[str, Any] = {"kind": "muon"}
MUON_FANS: dict[str, Any] = {"kind": "muon", "scale": "fans", "adam_rate": 0.5}
CONSTANT: dict[str, Any] = {"kind": "constant"}
COSINE: dict[str, Any] = {"kind": "cosine", "horizon": "2x"}
# Numbers of the peaks at each width, around the best one that was predicted; AdamW's at width 64
# were continued, as the largest of five had the least loss.
SPACES = {
    "adamw": (
        *(ADAMW, CONSTANT, "standard"),
        {64: range(-5, 2), 128: range(-6, -1), 256: range(-7, -2)},
    ),
    "adamw-mup": (
        *(ADAMW, CONSTANT, "mup"),
        {128: range(-5, 0), 256: range(-5, 0), 512: range(-4, 0)},
    ),
    "muon": (
        *(MUON, CONSTANT, "standard"),
        {64: range(-5, 0), 128: range(-6, -1), 256: range(-7, -2)},
    ),
    "muon_fans": (MUON_FANS, CONSTANT, "standard", {64: range(-2, 3)}),
    "muon_fans-mup": (MUON_FANS, CONSTANT, "mup", {128: range(-2, 3), 256: range(-2, 3)}),
    "cosine": (ADAMW, COSINE, "standard", {64: range(-3, 2)}),
    "cosine-mup": (ADAMW, COSINE, "mup", {128: range(-2, 2), 256: range(-2, 1)}),
}


def get_study() -> Study:
    """Returns the study."""
    title = "decoders of width 64 to 512 on packages of Python, at 3.93M tokens."
    return Study("widths", ROOT, chain(*(_runs(name) for name in SPACES)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def _runs(name: str) -> list[StudyRun]:
    optimizer, schedule, parametrization, numbers_by_width = SPACES[name]
    found = []
    for width, numbers in numbers_by_width.items():
        config = decoder(width, parametrization, **schedule)
        config.optimizer.update(optimizer)
        has_both = optimizer is ADAMW and schedule is CONSTANT and width <= WIDTHS[-1]
        of_seeds = seeds(0, 1) if has_both else seeds(0)
        space = grid(values("schedule.peak", *map(peak, numbers)), of_seeds)
        found += runs(f"{name}-width={width}", config, space, ROOT)
    return found


def decoder(width: int, parametrization: str, **schedule: float | str) -> ConfigDict:
    """Returns the leaderboard's decoder at another width, which ends at 2x."""
    config = packages(leaderboard_peaks.decoder(**schedule), "selection", "report")
    config.averages = ("f6.25", "f12.5", "f25", "f50")
    config.stop = "2x"
    config.schedule.warmup = "48 steps"
    config.model.update(heads=width // HEAD_SIZE, width=width, mlp_width=4 * width)
    config.model.parametrization = parametrization
    config.model.base_width = WIDTHS[0] if parametrization == "mup" else 0
    return config
