"""What should one hand to those who tune? Four models at 4x, tuned for a short time on English.

    anytime sweep --study=finetunes --run --jobs=2
    anytime differences --study=finetunes --base=wsd-peak=0.004 --page=finetunes.md

Each model of `finetune_starts` (a constant rate by its live weights and through f25, its decay, and
a cosine) is tuned on the documentation of 28 packages for 0.25x, 492,000 tokens, by a cosine with
five peaks. The peak of each is selected on 4 packages of English; losses are reported on 8 others
of English and on 32 of Python. lab/evidence/finetunes.md has the commands that export the models.

Cost:   30M tokens: 20 minutes of two idle CPU cores.
Result: lab/evidence/finetunes.md
"""

from ml_collections import ConfigDict

from anytime_lab.studies import finetune_starts
from anytime_lab.studies.finetune_starts import SEEDS, on_both_texts
from anytime_lab.studies.leaderboard_peaks import DATA, METHODS
from anytime_lab.study.plan import Study, chain, grid, runs, seeds, values

ROOT = "runs/studies/finetunes"
STARTS = ("constant", "constant_f25", "wsd", "cosine")
PEAKS = (0.001, 0.002, 0.004, 0.008, 0.016)


def get_study() -> Study:
    """Returns the study."""
    study = (
        runs(start, tuning(start, seed), grid(values("schedule.peak", *PEAKS), seeds(seed)), ROOT)
        for start in STARTS
        for seed in SEEDS
    )
    title = "a decoder of 98,304 block parameters, tuned from Python on English."
    return Study("finetunes", ROOT, chain(*study), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def tuning(start: str, seed: int) -> ConfigDict:
    """Returns the configuration of a short tuning from an export of `finetune_starts`."""
    (method,) = (x for x in METHODS if x.name == "cosine")
    config = on_both_texts(method.config("report"))
    config.data.path = f"{DATA}/english"
    config.initial_weights = f"{finetune_starts.ROOT}/exports/{start}-seed={seed}"
    config.schedule.update(horizon="0.25x", warmup="12 steps")
    return config
