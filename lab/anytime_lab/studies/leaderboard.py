"""The leaderboard: horizon-free methods against the tuned cosine, on packages never trained on.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=leaderboard --run --jobs=2

The decoder of the laptop study on the source code of 41 packages, 1x to 4x, of which nothing is
read twice. Settings are selected with one seed by the mean loss on 12 other packages, and reported
with fresh seeds on 32 more. Every method has the same number of tries: at each budget for a
cosine, which is a run of its own there, and in all for a method without a horizon: five peaks a
factor of sqrt(2) apart, and at the middle one another warmup, a weight decay, and both.

Cost:   771M tokens: three hours of two idle CPU cores.
Result: lab/evidence/leaderboard.md, with the command that writes it
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_lab.studies import leaderboard_peaks
from anytime_lab.studies.leaderboard_peaks import ADAMW, MUON, packages, peak
from anytime_lab.study.plan import Change, Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/leaderboard"


@dataclasses.dataclass(frozen=True)
class Method:
    """A method and the settings that are tried for it.

    Attributes:
      name: first part of the names of its runs.
      optimizer: settings of the optimizer.
      schedule: kind of the schedule.
      middle: number of the peak (`peak`) that has two more on either side; for a cosine, by the
        multiple of its horizon.
      warmup: the warmup of all tries but two, and `other_warmup` of those.
      space: other settings of all tries.
      reported: names of the tries that were selected, which are repeated with fresh seeds.
      fresh_seeds: number of them.
    """

    name: str
    optimizer: dict[str, Any]
    schedule: str
    middle: int | dict[int, int]
    warmup: str = "48 steps"
    other_warmup: str = "192 steps"
    space: Sequence[Change] = ({},)
    reported: Sequence[str] = ()
    fresh_seeds: int = 4

    def tries(self) -> list[StudyRun]:
        """Returns the runs of the seed that selects."""
        if isinstance(self.middle, int):
            return self._runs(grid(self.space, self._settings(self.middle)))
        spaces = (
            grid(values("schedule.horizon", f"{multiple}x"), self.space, self._settings(middle))
            for multiple, middle in self.middle.items()
        )
        return self._runs(chain(*spaces))

    def repeats(self) -> list[StudyRun]:
        """Returns the runs of the seeds that are reported."""
        configs = {run.name: run.config for run in self.tries()}
        fresh = seeds(*range(1, self.fresh_seeds + 1))
        names = [f"{self.name}-{x}" for x in self.reported]
        return chain(*(runs(name, configs[name], fresh, ROOT) for name in names))

    def _runs(self, space: Sequence[Change]) -> list[StudyRun]:
        config = decoder(kind=self.schedule)
        config.optimizer.update(self.optimizer)
        config.optimizer.decay_mask = "matrices"
        config.stop = "4x" if isinstance(self.middle, int) else "horizon"
        return runs(self.name, config, space, ROOT)

    def _settings(self, middle: int) -> list[Change]:
        peaks = values("schedule.peak", *(peak(k) for k in range(middle - 2, middle + 3)))
        of_middle = values("schedule.peak", peak(middle))
        warmup, other = (values("schedule.warmup", x) for x in (self.warmup, self.other_warmup))
        return chain(
            grid(peaks, warmup),
            grid(of_middle, other),
            grid(of_middle, warmup, DECAY),
            grid(of_middle, other, DECAY),
        )


DECAY = values("optimizer.weight_decay", 0.1)
PACE, SCHEDULE_FREE = (
    {"kind": "anytime_lab.optimizers:Pace", "pullback": 0.5},
    {"kind": "schedule_free_adamw"},
)
ALPHA = values("schedule.alpha", 1920.0)

METHODS = (
    Method(
        "cosine",
        ADAMW,
        "cosine",
        {1: 0, 2: -1, 4: -2},
        warmup="192 steps",
        other_warmup="48 steps",
        reported=(
            "horizon=1x-peak=0.024-warmup=192_steps-weight_decay=0.1",
            "horizon=2x-peak=0.017-warmup=192_steps-weight_decay=0.1",
            "horizon=4x-peak=0.012-warmup=192_steps-weight_decay=0.1",
        ),
    ),
    Method(
        "muon-cosine",
        MUON,
        "cosine",
        {1: 0, 2: 0, 4: -1},
        reported=(
            "horizon=1x-peak=0.024-warmup=192_steps-weight_decay=0.1",
            "horizon=2x-peak=0.024-warmup=192_steps-weight_decay=0.1",
            "horizon=4x-peak=0.017-warmup=192_steps-weight_decay=0.1",
        ),
    ),
    Method(
        "constant",
        ADAMW,
        "constant",
        -3,
        reported=("peak=0.00849-warmup=48_steps-weight_decay=0.1",),
    ),
    Method(
        "muon-constant",
        MUON,
        "constant",
        -3,
        reported=("peak=0.00849-warmup=192_steps-weight_decay=0.1",),
    ),
    Method(
        "pace-constant",
        PACE,
        "constant",
        0,
        reported=("peak=0.024-warmup=192_steps-weight_decay=0.1",),
    ),
    Method(
        "schedule_free_adamw-constant",
        SCHEDULE_FREE,
        "constant",
        0,
        reported=("peak=0.024-warmup=192_steps-weight_decay=0.1",),
    ),
    Method("inverse_sqrt", ADAMW, "inverse_sqrt", -2, space=ALPHA),
)


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on packages of Python, 1x to 4x."
    found = chain(*(x.tries() for x in METHODS), *(x.repeats() for x in METHODS))
    return Study("leaderboard", ROOT, found, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: float | str) -> ConfigDict:
    """Returns the laptop study's decoder on the source code of packages."""
    config = packages(leaderboard_peaks.decoder(**schedule), "selection", "report")
    config.averages = ("f6.25", "f12.5", "f25", "f50")
    return config
