"""The leaderboard's methods with eight fresh seeds, each at the best peak of `leaderboard_peaks`.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=leaderboard --run --jobs=2
    anytime leaderboard --study=leaderboard --page=leaderboard.md

Losses are those on 32 packages that selected nothing. All methods of one seed are trained, then
those of the next.

Cost:   535M tokens: two and a half hours of two idle CPU cores.
"""

from collections.abc import Mapping

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard_peaks import Peaks, get_method, peak_changes
from anytime_lab.study.plan import Study, StudyRun, chain, grid, runs, seeds

ROOT = "runs/studies/leaderboard"
SEEDS = range(11, 19)
# The best peaks. Source: lab/evidence/leaderboard_peaks.md.
PEAKS: Mapping[str, Peaks] = {
    "cosine": {1: 0.0271, 2: 0.0212, 4: 0.0147},
    "muon-cosine": {1: 0.0376, 2: 0.0241, 4: 0.0176},
    "constant": 0.0111,
    "constant-48": 0.0117,
    "muon-constant": 0.0162,
    "pace": 0.046,
    "schedule_free_adamw": 0.0547,
    "power": 0.0136,
}


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on packages of Python, 1x to 4x, fresh seeds."
    found = (of_method(name, seed) for seed in SEEDS for name in PEAKS)
    return Study("leaderboard", ROOT, chain(*found), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_method(name: str, seed: int) -> list[StudyRun]:
    """Returns the runs of a method with a seed: one, or with a horizon those to 1x, 2x and 4x."""
    space = grid(peak_changes(PEAKS[name]), seeds(seed))
    return runs(name, get_method(name).config("report"), space, ROOT)
