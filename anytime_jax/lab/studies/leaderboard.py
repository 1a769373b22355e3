"""The leaderboard: horizon-free methods against the tuned cosine, on packages never trained on.

    python -m anytime_jax.lab.package_text --output=runs/data/packages
    python -m anytime_jax sweep --study=leaderboard --run --jobs=2
    python -m anytime_jax leaderboard --study=leaderboard --page=docs/evidence/leaderboard.md

The decoder of the laptop study on the source code of 40 packages, 1x to 8x, of which nothing is
read twice. Settings are selected with one seed by the mean loss on 12 other packages, and reported
with five fresh seeds on 32 more. Every method has the same number of tries: at each budget for a
cosine, which is a run of its own there, and in all for a method without a horizon. Peaks are a
factor of sqrt(2) apart.

Cost:   2.0B tokens, seven hours at the 80,000 tokens/s of two shared CPU cores.
Result: docs/evidence/leaderboard.md
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_jax.lab.package_text import download
from anytime_jax.lab.studies import laptop
from anytime_jax.lab.study.plan import Change, Study, StudyRun, chain, grid, runs, values

ROOT = "runs/studies/leaderboard"
DATA = "runs/data/packages"
BUDGETS = (1, 2, 4, 8)  # multiples of 480 updates
SEEDS = range(1, 6)  # of the reported runs; seed 0 selects


@dataclasses.dataclass(frozen=True)
class Method:
    """A method and the settings that are tried for it.

    Attributes:
      name: first part of the names of its runs.
      optimizer: settings of the optimizer.
      schedule: kind of the schedule.
      peaks: the middle of the four peaks, for every horizon of a cosine.
      warmup: the warmup of all tries but one, and `other_warmup` the one of that.
      space: other settings of all tries.
    """

    name: str
    optimizer: dict[str, Any]
    schedule: str
    peaks: dict[int, float]
    warmup: str = "48 steps"
    other_warmup: str = "192 steps"
    space: Sequence[Change] = ({},)

    def tries(self) -> list[StudyRun]:
        """Returns the runs of the seed that selects."""
        return chain(*(self._tries_at(multiple) for multiple in self.peaks))

    def _tries_at(self, multiple: int) -> list[StudyRun]:
        config = decoder(kind=self.schedule)
        config.optimizer.update(self.optimizer)
        horizon: list[Change] = [{}]
        if self.schedule == "cosine":
            config.stop = "horizon"
            horizon = values("schedule.horizon", f"{multiple}x")
        middle = self.peaks[multiple]
        warmup, other = (values("schedule.warmup", x) for x in (self.warmup, self.other_warmup))
        space = chain(
            grid(peaks(middle), warmup),
            grid(values("schedule.peak", middle), other),
            grid(values("schedule.peak", middle), warmup, DECAYS),
        )
        return runs(self.name, config, grid(horizon, self.space, space), ROOT)


def peaks(middle: float) -> list[Change]:
    """Returns four peaks a factor of sqrt(2) apart: one below the middle and two above it."""
    return values("schedule.peak", *(float(f"{middle * 2 ** (k / 2):.3g}") for k in range(-1, 3)))


DECAYS = grid(
    values("optimizer.weight_decay", 0.03, 0.1), values("optimizer.decay_mask", "matrices")
)
ADAMW, MUON = {"kind": "adamw"}, {"kind": "muon"}
PACE, SCHEDULE_FREE = {"kind": "pace", "pullback": 0.5}, {"kind": "schedule_free_adamw"}

METHODS = (
    Method(
        "cosine",
        ADAMW,
        "cosine",
        {1: 2.4e-2, 2: 2.4e-2, 4: 1.7e-2, 8: 1.2e-2},
        "192 steps",
        "48 steps",
    ),
    Method("muon-cosine", MUON, "cosine", dict.fromkeys(BUDGETS, 2e-2)),
    Method("constant", ADAMW, "constant", {8: 8e-3}),
    Method("muon-constant", MUON, "constant", {8: 8e-3}),
    Method("pace-constant", PACE, "constant", {8: 2.4e-2}),
    Method("schedule_free_adamw-constant", SCHEDULE_FREE, "constant", {8: 2.4e-2}),
    Method(
        "inverse_sqrt", ADAMW, "inverse_sqrt", {8: 1.2e-2}, space=values("schedule.alpha", 1920.0)
    ),
    Method(
        "muon-inverse_sqrt", MUON, "inverse_sqrt", {8: 2e-2}, space=values("schedule.alpha", 1920.0)
    ),
)


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on packages of Python, 1x to 8x."
    return Study("leaderboard", ROOT, chain(*(x.tries() for x in METHODS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: float | str) -> ConfigDict:
    """Returns the laptop study's decoder on the source code of packages."""
    config = laptop.decoder(**schedule)
    config.data.path = f"{DATA}/python"
    config.averages = ("f6.25", "f12.5", "f25", "f50")
    sets = {
        f"{x.role}-{x.name}": f"{DATA}/{x.role}/python/{x.name}"
        for x in download.read_list()
        if x.language == "python" and x.role != "train"
    }
    config.eval.sets = ConfigDict(sets)
    config.eval.weights = ConfigDict({x: 1.0 for x in sets if x.startswith("selection")})
    config.eval.tokens = 4_096  # of each package
    config.eval.batch_size = 32
    return config
