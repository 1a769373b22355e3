"""The batch of AdamW's cosine to 4x: 64 windows at three peaks, against 32.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=cosine_batches --records=lab/evidence/leaderboard_peaks --run --jobs=2
    anytime differences --study=cosine_batches --base=cosine-horizon=4x-peak=0.012 \
        --page=cosine_batches.md

Runs with batches of 32 are those of `leaderboard_peaks`, in its directories. Those of 64 have the
same warmup in tokens, and peaks that are a root of 2 higher. Losses are those on the 12 packages
that select.

Cost:   47M tokens: 11 minutes of two idle CPU cores.
Result: lab/evidence/batches.md
"""

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard_peaks import FACTORS, METHODS, SEEDS, peak, peak_changes
from anytime_lab.studies.leaderboard_peaks import ROOT as ROOT_OF_32
from anytime_lab.study.plan import Study, chain, grid, runs, seeds

ROOT = "runs/studies/cosine_batches"


def get_study() -> Study:
    """Returns the study."""
    (method,) = (x for x in METHODS if x.name == "cosine")
    config, fresh = method.config("selection"), seeds(*SEEDS)
    of_32 = grid(peak_changes({4: peak(-2)}, FACTORS), fresh)
    larger = config.copy_and_resolve_references()
    larger.batch_growth = {"1 steps": 2 * config.batch_size}
    larger.schedule.warmup = "0.4x"
    of_64 = grid(peak_changes({4: peak(-1)}, FACTORS), fresh)
    found = chain(
        runs("cosine", config, of_32, ROOT_OF_32),
        runs("cosine-64", larger, of_64, ROOT),
    )
    title = "batches of a cosine to 4x of a decoder of 98,304 block parameters on Python."
    return Study("cosine_batches", ROOT, found, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
