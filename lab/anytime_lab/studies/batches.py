"""How large a batch costs nothing: branches of a constant rate with 2 to 16 times the batch.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=batches --run --jobs=2
    anytime larger-batches --study=batches --page=lab/evidence/batches.md

The leaderboard's decoder and AdamW at a constant rate to 6x. From 1x to 1.5x, and from 4x to 6x, a
branch takes a multiple of the batch, at the trunk's rate or at the rate times the root of the
multiple. Losses are those on the 12 packages that select. All runs of one seed are trained, then
those of the next.

Cost:   153M tokens: 40 minutes of two idle CPU cores.
Result: lab/evidence/batches.md, with the command that writes it
"""

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard import PEAKS
from anytime_lab.studies.leaderboard_peaks import METHODS, peak_changes
from anytime_lab.study.plan import (
    Change,
    Study,
    StudyRun,
    branches,
    chain,
    paired,
    runs,
    seeds,
    values,
)

ROOT = "runs/studies/batches"
SEEDS = (21, 22, 23)
PEAK = PEAKS["constant"]  # the best for all budgets
MULTIPLES = (2, 4, 8, 16)
POINTS = {"1x": "1.5x", "4x": "6x"}  # where branches leave the trunk, and where they end


def get_study() -> Study:
    """Returns the study."""
    title = "larger batches of a decoder of 98,304 block parameters on packages of Python."
    return Study("batches", ROOT, chain(*map(of_seed, SEEDS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_seed(number: int) -> list[StudyRun]:
    """Returns the trunk of a seed and its branches."""
    config = trunk()
    trunks = runs("trunk", config, seeds(number), ROOT)
    larger_ones = (
        branches(name, trunks, at, larger(config.batch_size, at, power), stop)
        for name, power in (("kept", 0.0), ("root", 0.5))
        for at, stop in POINTS.items()
    )
    return chain(trunks, *larger_ones)


def trunk() -> ConfigDict:
    """Returns the configuration of the trunk."""
    (method,) = (x for x in METHODS if x.name == "constant")
    config = method.config("selection")
    config.schedule.peak = PEAK
    config.stop = max(POINTS.values())
    config.averages = ("f25",)
    config.eval.every = "0.25x"
    return config


def larger(batch: int, at: str, rate_power: float = 0.0) -> list[Change]:
    """Returns changes to each multiple of the batch from a point on.

    The peak is multiplied by the multiple to the power `rate_power`.
    """
    sizes = values("batch_growth", *({at: batch * multiple} for multiple in MULTIPLES))
    if not rate_power:
        return sizes
    return paired(sizes, peak_changes(PEAK, [multiple**rate_power for multiple in MULTIPLES]))
