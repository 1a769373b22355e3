"""Is a decay that follows the run better than a fixed one? Eight seeds, to 4x.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=decay_seeds --records=lab/evidence/leaderboard --run --jobs=2
    anytime differences --study=decay_seeds --base=constant-g1 --page=decay.md

The leaderboard's decoder at its constant rates, AdamW and Muon, with fixed decays of 0.1, 0.045 and
none, and with "g1", which follows the run. The runs with 0.1 are the leaderboard's own, and are
taken from its records. With AdamW, "g3" and "g5.8", which takes the share 4 / t of a weight at time
t, go to 2x with three seeds.

Cost:   401M tokens: an hour and a half of two idle CPU cores, without the runs that are taken.
Result: lab/evidence/decay.md
"""

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard import PEAKS, SEEDS
from anytime_lab.studies.leaderboard_peaks import get_method, peak_changes
from anytime_lab.study.plan import Change, Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/decay_seeds"
AS_THERE: list[Change] = [{}]  # 0.1
FIXED = values("optimizer.weight_decay", 0.045, 0.0)
FAST = ("g3", "g5.8")


def get_study() -> Study:
    """Returns the study; all runs of one seed are trained, then those of the next."""
    title = "weight decays of a decoder of 98,304 block parameters on packages of Python."
    found = (of_seed(number, with_fast=number in SEEDS[:3]) for number in SEEDS)
    return Study("decay_seeds", ROOT, chain(*found), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_seed(number: int, *, with_fast: bool) -> list[StudyRun]:
    """Returns the runs of a seed, those of the leaderboard first."""
    found: list[StudyRun] = []
    for name in ("constant", "muon-constant"):
        config = get_method(name).config("report")
        space = grid(peak_changes(PEAKS[name]), seeds(number))
        found += runs(name, config, grid(chain(AS_THERE, FIXED), space), ROOT)
        for g in ("g1", *(FAST if with_fast and name == "constant" else ())):
            config.optimizer.weight_decay = g
            config.stop = "2x" if g in FAST else "4x"
            found += runs(f"{name}-{g}", config, space, ROOT)
    return found
