"""AdamW with batches of 64 windows from the start: a constant rate and a cosine to 4x.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=batch_peaks --records=lab/evidence/leaderboard_peaks --run --jobs=2
    anytime best-peaks --study=batch_peaks --page=lab/evidence/batches.md

Three peaks a factor of 2 apart with the two seeds of `leaderboard_peaks`, whose runs with batches
of 32 are of the study too, in their directories. The warmup is the same in tokens. Losses are those
on the 12 packages that select.

Cost:   94M tokens: 21 minutes of two idle CPU cores.
Result: lab/evidence/batches.md
"""

from ml_collections import ConfigDict

from anytime_lab.studies import leaderboard_peaks
from anytime_lab.studies.leaderboard_peaks import (
    FACTORS,
    SEEDS,
    Peaks,
    get_method,
    peak,
    peak_changes,
)
from anytime_lab.study.plan import Study, StudyRun, chain, grid, runs, seeds

ROOT = "runs/studies/batch_peaks"
MIDDLES: dict[str, Peaks] = {"constant": peak(-1), "cosine": {4: peak(-1)}}


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on packages of Python with batches of 64."
    of_32 = (x for x in leaderboard_peaks.get_study().runs if is_same(x))
    return Study("batch_peaks", ROOT, chain(*map(of_64, MIDDLES), of_32), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_64(name: str) -> list[StudyRun]:
    """Returns the runs of a method with batches of 64."""
    space = grid(peak_changes(MIDDLES[name], FACTORS), seeds(*SEEDS))
    return runs(f"{name}-64", config_of_64(name, "selection"), space, ROOT)


def config_of_64(name: str, role: str) -> ConfigDict:
    """Returns the settings of a method with batches of 64, evaluated on packages of a role."""
    config = get_method(name).config(role)
    config.batch_growth = {"1 steps": 2 * config.batch_size}
    config.schedule.warmup = "0.4x"
    return config


def is_same(run: StudyRun) -> bool:
    """Returns whether a run is of AdamW's constant rate or cosine, with batches of 32."""
    return run.name.startswith(("constant-peak", "cosine-horizon"))
