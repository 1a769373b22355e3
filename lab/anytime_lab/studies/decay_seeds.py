"""Is a decay that follows the run better than one fixed decay? Six decays with eight seeds.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=decay_seeds --run --jobs=2
    anytime differences --study=decay_seeds --base=constant-weight_decay=0.1 --page=decay.md

The leaderboard's decoder and AdamW at its constant rate, to 1x and 2x: no decay of the matrices,
two fixed ones, and three that follow the run. "g5.8" takes the share 4 / t of a weight at time t.

Cost:   189M tokens: 45 minutes of two idle CPU cores.
Result: lab/evidence/decay.md
"""

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard import PEAKS
from anytime_lab.studies.leaderboard_peaks import METHODS
from anytime_lab.study.plan import Study, grid, runs, seeds, values

ROOT = "runs/studies/decay_seeds"
SEEDS = range(51, 59)
DECAYS = values("optimizer.weight_decay", 0.1, 0.0, 0.3, "g1", "g3", "g5.8")


def get_study() -> Study:
    """Returns the study; all decays of one seed are trained, then those of the next."""
    (method,) = (x for x in METHODS if x.name == "constant")
    config = method.config("report")
    config.schedule.peak = PEAKS["constant"]
    config.stop = "2x"
    config.averages = ("f25",)
    found = [
        x for number in SEEDS for x in runs("constant", config, grid(DECAYS, seeds(number)), ROOT)
    ]
    title = "weight decays of a decoder of 98,304 block parameters on packages of Python."
    return Study("decay_seeds", ROOT, found, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
