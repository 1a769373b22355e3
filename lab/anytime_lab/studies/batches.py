"""How large a batch costs nothing: branches of a constant rate with 2 to 16 times the batch.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=batches --run --jobs=2
    anytime larger-batches --study=batches --page=lab/evidence/batches.md

The leaderboard's decoder and AdamW at a constant rate to 6x. From 1x to 1.5x, and from 4x to 6x, a
branch takes a multiple of the batch. All else stays as it is (`kept`); or it takes the rate times
the root of the multiple (`root`); or it does, and Adam's memories and the weight decay stay the
same in tokens (`scaled`). Branches with the trunk's batch and another rate show what the rate alone
does. Losses are those on the 12 packages that select. All runs of one seed are trained, then those
of the next.

Cost:   240M tokens: an hour of two idle CPU cores.
Result: lab/evidence/batches.md, with the command that writes it
"""

import math
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from anytime_jax.optimizers import AdamW
from anytime_lab.studies.leaderboard import PEAKS
from anytime_lab.studies.leaderboard_peaks import get_method, peak_changes
from anytime_lab.study.plan import (
    Change,
    Study,
    StudyRun,
    branches,
    chain,
    runs,
    seeds,
)

ROOT = "runs/studies/batches"
SEEDS = (21, 22, 23, 24)
PEAK = PEAKS["constant"]  # the best for all budgets
POINTS = {"1x": "1.5x", "4x": "6x"}  # where branches leave the trunk, and where they end
SCALED: Mapping[str, Sequence[int]] = {"1x": (2, 3, 4, 8), "4x": (2, 3, 4, 8, 16)}
KEPT: Mapping[str, Sequence[int]] = {"1x": (2, 4), "4x": (2, 4, 8)}
ROOT_ALONE = 4  # a multiple of which the rate alone takes the root
FACTORS = (0.5**0.5, 2**0.5)  # of the rate, with the trunk's batch


def get_study() -> Study:
    """Returns the study."""
    title = "larger batches of a decoder of 98,304 block parameters on packages of Python."
    return Study("batches", ROOT, chain(*map(of_seed, SEEDS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_seed(number: int) -> list[StudyRun]:
    """Returns the trunk of a seed and its branches."""
    trunks = runs("trunk", trunk(), seeds(number), ROOT)
    found = [trunks]
    for at, stop in POINTS.items():
        grown = [larger(at, multiple) for multiple in KEPT[at]]
        scaled = [larger(at, multiple) | scales(multiple) for multiple in SCALED[at]]
        (peak,) = peak_changes(PEAK, [math.sqrt(ROOT_ALONE)])
        for name, space in (
            ("kept", grown),
            ("scaled", scaled),
            ("root", [larger(at, ROOT_ALONE) | peak]),
            (f"rate_at_{at}", peak_changes(PEAK, FACTORS)),
        ):
            found.append(branches(name, trunks, at, space, stop))
    return chain(*found)


def trunk() -> ConfigDict:
    """Returns the configuration of the trunk."""
    config = get_method("constant").config("selection")
    config.schedule.peak = PEAK
    config.stop = max(POINTS.values())
    config.averages = ("f6.25", "f12.5", "f25", "f50")
    config.eval.every = "0.25x"
    return config


def larger(at: str, multiple: int) -> Change:
    """Returns the change to a multiple of the batch from a point on."""
    return {"batch_growth": {at: trunk().batch_size * multiple}}


def scales(multiple: int) -> Change:
    """Returns the changes that go with a multiple of the batch.

    Sources: for the rate and Adam's memories 2205.10287; the weight decay takes as much of a weight
    over the same tokens.
    """
    (peak,) = peak_changes(PEAK, [math.sqrt(multiple)])
    adamw, weight_decay = AdamW(), trunk().optimizer.weight_decay
    return peak | {
        "optimizer.b1": adamw.b1**multiple,
        "optimizer.b2": adamw.b2**multiple,
        "optimizer.weight_decay": weight_decay * math.sqrt(multiple),
    }
