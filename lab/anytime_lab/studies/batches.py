"""How large a batch costs nothing: branches of a constant rate with 2 to 16 times the batch.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=batches --run --jobs=2
    anytime larger-batches --study=batches --page=lab/evidence/batches.md

The leaderboard's decoder and AdamW at a constant rate to 6x. From 1x to 1.5x, and from 4x to 6x, a
branch takes a multiple of the batch, at the trunk's rate or at the rate times the root of the
multiple. Losses are those on the 12 packages that select.

Cost:   155M tokens: 40 minutes of two idle CPU cores.
Result: lab/evidence/batches.md, with the command that writes it
"""

import math

from ml_collections import ConfigDict

from anytime_lab.studies.leaderboard_peaks import METHODS
from anytime_lab.study.plan import Change, Study, branches, chain, runs, seeds

ROOT = "runs/studies/batches"
SEEDS = (21, 22, 23)
PEAK = 0.0111  # the best for all budgets. Source: lab/evidence/leaderboard_peaks.md
MULTIPLES = (2, 4, 8, 16)
POINTS = {"1x": "1.5x", "4x": "6x"}  # where branches leave the trunk, and where they end


def get_study() -> Study:
    """Returns the study."""
    trunks = runs("trunk", trunk(), seeds(*SEEDS), ROOT)
    kept = (branches("kept", trunks, x, larger(x), stop) for x, stop in POINTS.items())
    root = (branches("root", trunks, x, larger(x, 0.5), stop) for x, stop in POINTS.items())
    title = "larger batches of a decoder of 98,304 block parameters on packages of Python."
    return Study("batches", ROOT, chain(trunks, *kept, *root), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def trunk() -> ConfigDict:
    """Returns the configuration of the trunk."""
    (method,) = (x for x in METHODS if x.name == "constant")
    config = method.config("selection")
    config.schedule.peak = PEAK
    config.stop = max(POINTS.values())
    config.averages = ("f25",)
    config.eval.every = "0.25x"
    return config


def larger(at: str, rate_power: float = 0.0) -> list[Change]:
    """Returns changes to each multiple of the batch from a point on.

    The peak is multiplied by the multiple to the power `rate_power`.
    """
    batch, space = trunk().batch_size, []
    for multiple in MULTIPLES:
        change: Change = {"batch_growth": {at: batch * multiple}}
        if rate_power:
            peak = PEAK * math.pow(multiple, rate_power)
            change["schedule.peak"] = float(f"{peak:.3g}")
        space.append(change)
    return space
