"""Peaks of the leaderboard's methods: three for each, a factor of 2 apart, with two seeds.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=leaderboard_peaks --run --jobs=2
    anytime best-peaks --study=leaderboard_peaks --page=lab/evidence/leaderboard_peaks.md

The decoder of the laptop study on the source code of 41 packages, 1x to 4x, of which nothing is
read twice. All methods have a warmup of 192 updates and a weight decay of 0.1 of the matrices,
which were the better of two with one earlier seed. A method with a horizon has three runs for each
budget, one without has three in all. Losses are those on 12 other packages.

Cost:   405M tokens: an hour and a half of two idle CPU cores.
Result: lab/evidence/leaderboard_peaks.md, with the command that writes it
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_lab.package_text import download
from anytime_lab.studies import laptop
from anytime_lab.study.plan import Change, Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/leaderboard_peaks"
DATA = "runs/data/packages"
SEEDS = (5, 6)
BUDGETS = (1, 2, 4)


@dataclasses.dataclass(frozen=True)
class Method:
    """An optimizer with a schedule.

    Attributes:
      name: first part of the names of its runs.
      optimizer: settings of the optimizer.
      schedule: settings of the schedule, without the peak and the warmup.
      middle: the middle one of the three peaks; with a horizon, of each budget.
    """

    name: str
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    middle: float | dict[int, float]

    def tries(self) -> list[StudyRun]:
        """Returns the runs that select the peak."""
        tried = self.peaks(lambda middle: (middle / 2, middle, 2 * middle))
        config = packages(decoder(**self.schedule), "selection")
        config.optimizer.update(self.optimizer, weight_decay=0.1, decay_mask="matrices")
        config.stop = "horizon" if isinstance(self.middle, dict) else f"{BUDGETS[-1]}x"
        return runs(self.name, config, grid(tried, seeds(*SEEDS)), ROOT)

    def peaks(self, around: Any) -> list[Change]:
        """Returns the peaks around the middle, with a horizon for each budget."""
        if not isinstance(self.middle, dict):
            return values("schedule.peak", *map(_rounded, around(self.middle)))
        return chain(
            *(
                grid(
                    values("schedule.horizon", f"{multiple}x"),
                    values("schedule.peak", *map(_rounded, around(middle))),
                )
                for multiple, middle in self.middle.items()
            )
        )


def _rounded(peak: float) -> float:
    return float(f"{peak:.3g}")


ADAMW, MUON = {"kind": "adamw"}, {"kind": "muon"}
CONSTANT, COSINE = {"kind": "constant"}, {"kind": "cosine"}
METHODS: Sequence[Method] = (
    Method("cosine", ADAMW, COSINE, {1: 0.024, 2: 0.017, 4: 0.012}),
    Method("muon-cosine", MUON, COSINE, {1: 0.024, 2: 0.024, 4: 0.017}),
    Method("constant", ADAMW, CONSTANT, 0.017),
    Method("muon-constant", MUON, CONSTANT, 0.017),
    Method("pace", {"kind": "anytime_lab.optimizers:Pace", "pullback": 0.5}, CONSTANT, 0.048),
    Method("schedule_free_adamw", {"kind": "schedule_free_adamw"}, CONSTANT, 0.034),
    Method("power", ADAMW, {"kind": "power", "gamma": 0.32, "alpha": 192.0}, 0.024),
)


def get_study() -> Study:
    """Returns the study."""
    title = "peaks of a decoder of 98,304 block parameters on packages of Python, 1x to 4x."
    return Study("leaderboard_peaks", ROOT, chain(*(x.tries() for x in METHODS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: Any) -> ConfigDict:
    """Returns the laptop study's decoder, with losses by the position in a window."""
    config = laptop.decoder(**schedule)
    config.averages = ("f12.5", "f25", "f50")
    config.eval.positions = (8, 32, 64)
    return config


def packages(config: ConfigDict, role: str) -> ConfigDict:
    """Returns the configuration on the source code of packages, evaluated on those of a role."""
    config.data.path = f"{DATA}/python"
    sets = {
        f"{x.role}-{x.name}": f"{DATA}/{x.role}/python/{x.name}"
        for x in download.read_list()
        if x.language == "python" and x.role == role
    }
    config.eval.sets = ConfigDict(sets)
    config.eval.tokens = 4_096  # of each package
    config.eval.batch_size = 32
    return config
