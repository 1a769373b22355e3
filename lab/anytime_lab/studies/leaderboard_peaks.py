"""Peaks of the leaderboard's methods: three for each, a factor of 2 apart, with two seeds.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=leaderboard_peaks --run --jobs=2
    anytime best-peaks --study=leaderboard_peaks --page=lab/evidence/leaderboard_peaks.md

The decoder of the laptop study on the source code of 41 packages, 1x to 4x, of which nothing is
read twice. Methods have a warmup of 192 updates and a weight decay of 0.1 of the matrices, which
one earlier seed had selected among two of each for all but AdamW's constant rate: there it was a
warmup of 48, which `constant-48` has. A method with a horizon has three runs for each budget, one
without has three in all. Losses are those on 12 other packages.

Cost:   401M tokens: an hour and a half of two idle CPU cores.
Result: lab/evidence/leaderboard_peaks.md, with the command that writes it
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_lab.package_text import download
from anytime_lab.studies import laptop
from anytime_lab.study.plan import Change, Study, chain, grid, runs, seeds, values

ROOT = "runs/studies/leaderboard_peaks"
DATA = "runs/data/packages"
SEEDS = (5, 6)
FACTORS = (0.5, 1.0, 2.0)  # of the middle peak
BUDGETS = (1, 2, 4)
Peaks = float | Mapping[int, float]  # with a horizon, by the multiple of the budget


@dataclasses.dataclass(frozen=True)
class Method:
    """An optimizer with a schedule.

    Attributes:
      name: first part of the names of its runs.
      optimizer: settings of the optimizer.
      schedule: settings of the schedule, without the peak; its warmup is 192 updates if not given.
      middle: the middle one of the three peaks.
    """

    name: str
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    middle: Peaks

    def config(self, role: str) -> ConfigDict:
        """Returns the settings that all of its runs share, evaluated on packages of a role."""
        config = packages(decoder(**self.schedule), role)
        config.optimizer.update(self.optimizer, weight_decay=0.1, decay_mask="matrices")
        config.stop = "horizon" if isinstance(self.middle, Mapping) else f"{BUDGETS[-1]}x"
        return config


def peak_changes(peaks: Peaks, factors: Sequence[float] = (1.0,)) -> list[Change]:
    """Returns changes to each peak times each factor; with a horizon, for each budget."""
    if not isinstance(peaks, Mapping):
        return values("schedule.peak", *(_rounded(factor * peaks) for factor in factors))
    changes = (
        grid(values("schedule.horizon", f"{multiple}x"), peak_changes(of_budget, factors))
        for multiple, of_budget in peaks.items()
    )
    return chain(*changes)


def peak(number: float) -> float:
    """Returns a peak of the grid, which are a factor of sqrt(2) apart; number 0 is 0.024."""
    return _rounded(0.024 * 2 ** (number / 2))


def _rounded(peak: float) -> float:
    return float(f"{peak:.3g}")


ADAMW, MUON = {"kind": "adamw"}, {"kind": "muon"}
CONSTANT, COSINE = {"kind": "constant"}, {"kind": "cosine"}
METHODS: Sequence[Method] = (
    Method("cosine", ADAMW, COSINE, {1: 0.024, 2: 0.017, 4: 0.012}),
    Method("muon-cosine", MUON, COSINE, {1: 0.024, 2: 0.024, 4: 0.017}),
    Method("constant", ADAMW, CONSTANT, 0.017),
    Method("constant-48", ADAMW, {**CONSTANT, "warmup": "48 steps"}, 0.0085),
    Method("muon-constant", MUON, CONSTANT, 0.017),
    Method("pace", {"kind": "anytime_lab.optimizers:Pace", "pullback": 0.5}, CONSTANT, 0.048),
    Method("schedule_free_adamw", {"kind": "schedule_free_adamw"}, CONSTANT, 0.034),
    Method("power", ADAMW, {"kind": "power", "gamma": 0.32, "alpha": 192.0}, 0.024),
)


def get_method(name: str) -> Method:
    """Returns the method with a name."""
    (method,) = (x for x in METHODS if x.name == name)
    return method


def get_study() -> Study:
    """Returns the study."""
    title = "peaks of a decoder of 98,304 block parameters on packages of Python, 1x to 4x."
    fresh = seeds(*SEEDS)
    found = (
        runs(x.name, x.config("selection"), grid(peak_changes(x.middle, FACTORS), fresh), ROOT)
        for x in METHODS
    )
    return Study("leaderboard_peaks", ROOT, chain(*found), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: Any) -> ConfigDict:
    """Returns the laptop study's decoder, with losses by the position in a window."""
    config = laptop.decoder(**schedule)
    config.averages = ("f12.5", "f25", "f50")
    config.eval.positions = (8, 32, 64)
    return config


def packages(config: ConfigDict, role: str, unweighted: str = "") -> ConfigDict:
    """Returns the configuration on the source code of packages, evaluated on those of a role.

    Those of the role `unweighted` are evaluated too, and have no weight in the mean.
    """
    config.data.path = f"{DATA}/python"
    sets = {
        f"{x.role}-{x.name}": f"{DATA}/{x.role}/python/{x.name}"
        for x in download.read_list()
        if x.language == "python" and x.role in (role, unweighted)
    }
    config.eval.sets = ConfigDict(sets)
    if unweighted:
        config.eval.weights = ConfigDict({x: 1.0 for x in sets if x.startswith(role)})
    config.eval.tokens = 4_096  # of each package
    config.eval.batch_size = 32
    return config
