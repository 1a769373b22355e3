"""Weight decay without a horizon: one share of the run, a fixed decay or none, at every budget.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=decays --run --jobs=2

The leaderboard's decoder at a constant rate, 1x to 8x, with no decay of the matrices, three fixed
decays and three that follow the run ("g1", "g3", "g9"), each with three peaks for AdamW and two for
Muon. At the peak 0.012 two of the fixed ones take as much of a weight at 8x as g3 and g9 do. The
inverse square root has no decay; AdamW's cosine has a run for each budget, peak and fixed decay.
Four of AdamW are repeated with two fresh seeds.

Cost:   1.1B tokens: five hours of two idle CPU cores.
Result: lab/evidence/decay.md
"""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_lab.studies import leaderboard_peaks
from anytime_lab.studies.leaderboard_peaks import ADAMW, MUON, packages, peak
from anytime_lab.study.plan import Change, Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/decays"
BUDGETS = (1, 2, 4, 8)
WARMUP = "96 steps"
# 0.045 and 0.135 times the rate at the peak 0.012 are g ln(2) / t at 8x, 3,840 updates, for g = 3
# and g = 9.
FIXED = values("optimizer.weight_decay", 0.045, 0.135, 0.4)
GROWING = values("optimizer.weight_decay", "g1", "g3", "g9")
NONE = values("optimizer.weight_decay", 0.0)
# Numbers of the peaks (`peak`); of cosines, by the multiple of the horizon.
PEAKS = {"adamw": (-3, -2, -1), "muon": (-4, -3), "inverse_sqrt": (-2, -1, 0)}
COSINE_PEAKS = {1: (-1, 0, 1), 2: (-2, -1, 0), 4: (-3, -2, -1), 8: (-3, -2, -1)}
# Names of the runs that are repeated with fresh seeds: at the peak that was selected.
REPORTED: Sequence[str] = (
    "adamw-peak=0.00849-weight_decay=0",
    "adamw-peak=0.00849-weight_decay=0.135",
    "adamw-peak=0.00849-weight_decay=g1",
    "adamw-peak=0.00849-weight_decay=g3",
)
FRESH_SEEDS = (1, 2)


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on packages of Python, 1x to 8x."
    found = first_seed()
    by_name = {run.name: run for run in found}
    fresh = seeds(*FRESH_SEEDS)
    repeats = (runs(x, by_name[x].config, fresh, ROOT) for x in REPORTED)
    found += chain(*repeats)
    return Study("decays", ROOT, found, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def first_seed() -> list[StudyRun]:
    """Returns the runs of the seed that selects."""
    decays = chain(NONE, FIXED, GROWING)
    cosines = (
        grid(values("schedule.horizon", f"{multiple}x"), _peaks(numbers), FIXED)
        for multiple, numbers in COSINE_PEAKS.items()
    )
    return chain(
        runs("cosine", decoder(ADAMW, kind="cosine"), chain(*cosines), ROOT),
        *(
            runs(name, decoder(optimizer, kind="constant"), space, ROOT)
            for name, optimizer in (("adamw", ADAMW), ("muon", MUON))
            for space in [grid(_peaks(PEAKS[name]), decays)]
        ),
        runs(
            "inverse_sqrt",
            decoder(ADAMW, kind="inverse_sqrt", alpha=1920.0),
            grid(_peaks(PEAKS["inverse_sqrt"]), NONE),
            ROOT,
        ),
    )


def _peaks(numbers: Sequence[int]) -> list[Change]:
    return values("schedule.peak", *map(peak, numbers))


def decoder(optimizer: dict[str, Any], **schedule: float | str) -> ConfigDict:
    """Returns the leaderboard's decoder with a warmup between its two."""
    config = packages(leaderboard_peaks.decoder(**schedule), "selection", "report")
    config.optimizer.update(optimizer)
    config.optimizer.decay_mask = "matrices"
    config.schedule.warmup = WARMUP
    config.stop = "horizon" if schedule["kind"] == "cosine" else f"{BUDGETS[-1]}x"
    config.averages = ("f12.5", "f25")
    config.eval.every = f"{BUDGETS[-1]}x"
    config.log.relative_updates = schedule["kind"] != "cosine"
    return config
