"""Horizon-free methods against the tuned cosine: optimizers, schedules and read-outs, 1x to 8x.

    python -m anytime_jax prepare --source=builtin --megabytes=31 --train-vocabulary=384 \
        --output=runs/data/builtin-stdlib-384
    python -m anytime_jax sweep --study=rivals --run --jobs=2
    python -m anytime_jax leaderboard --study=rivals --page=docs/evidence/leaderboard.md \
        --times=docs/evidence/rivals/optimizers.json

The decoder of the laptop study, on the source of Python 3.11's standard library, which is the same
text for the same build of Python. Every method is tuned in two stages: all settings run to 2x, the
best of them to 8x. Reported settings have three or five seeds, each of the weights and of the order
of the text. `--records` takes none of the committed runs: their fingerprints of the data count the
length of windows, which datasets no longer have.

Cost:   1.49B tokens, three to four hours at the 110,000 to 140,000 tokens/s of two CPU cores.
Result: docs/evidence/leaderboard.md
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_jax.lab.studies import laptop
from anytime_jax.lab.study.plan import (
    Change,
    Study,
    StudyRun,
    branches,
    chain,
    grid,
    paired,
    runs,
    values,
)

ROOT = "runs/studies/rivals"


@dataclasses.dataclass(frozen=True)
class Method:
    """A method with its space of settings.

    Attributes:
      name: first part of the names of its runs.
      optimizer: settings of the optimizer.
      schedule: settings of the schedule, without those that are tuned.
      tried: changes of the first stage, whose runs stop at 2x.
      best: changes whose runs go on to 8x, in addition to the reported ones.
      reported: changes whose runs go on to 8x and are repeated with other seeds.
      seeds: number of seeds of the reported runs, including the first.
    """

    name: str
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    tried: Sequence[Change] = ()
    best: Sequence[Change] = ()
    reported: Sequence[Change] = ()
    seeds: int = 3

    def runs(self, root: str, decoder: Callable[..., ConfigDict]) -> list[StudyRun]:
        """Returns the runs of all stages; `decoder` makes a configuration with a schedule."""
        config = decoder(**self.schedule)
        config.optimizer.update(self.optimizer)
        if self.schedule["kind"] == "cosine":
            config.stop = "horizon"
        at_2x = copy.deepcopy(config)
        at_2x.stop = "2x"
        others = range(1, self.seeds)
        other_seeds = paired(values("seed", *others), values("data.seed", *others))
        to_8x = [*self.best, *(x for x in self.reported if x not in self.best)]
        rest = [x for x in self.tried if x not in to_8x]
        to_8x += grid(self.reported, other_seeds)
        return chain(runs(self.name, at_2x, rest, root), runs(self.name, config, to_8x, root))


def get_study() -> Study:
    """Returns the study."""
    title = "a decoder of 98,304 block parameters on Python's standard library, 1x to 8x."
    study = chain(*(x.runs(ROOT, decoder) for x in METHODS))
    for trunk, name in TRUNKS.items():
        for prefix, floor in {"wsd": 0.1, "wsd_to_0": 0.0}.items():
            runs_of_trunk = [run for run in study if run.name.partition("-seed=")[0] == trunk]
            study += branches(f"{name}{prefix}", runs_of_trunk, (1, 2, 4, 8), floor)
    return Study("rivals", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def decoder(**schedule: float | str) -> ConfigDict:
    """Returns the laptop study's decoder on the standard library's source."""
    config = laptop.decoder(**schedule)
    config.model.vocab_size = config.model.embedding_rows = 384
    config.data.path = "runs/data/builtin-stdlib-384"
    config.data.builtin_megabytes = 31.0  # MB; the standard library has 31.5
    config.averages = ("f6.25", "f12.5", "f25", "f50")
    config.eval.every = "1x"
    return config


def peaks(*options: float) -> list[Change]:
    """Returns a space of peak learning rates."""
    return values("schedule.peak", *options)


def cosine_space(**by_horizon: Sequence[float]) -> list[Change]:
    """Returns a space of peaks for each horizon, "1x" written as x1."""
    return chain(
        *(grid(peaks(*p), values("schedule.horizon", f"{h[1:]}x")) for h, p in by_horizon.items())
    )


_WARMUP = values("schedule.warmup", "48 steps")
_LONG_WARMUP = values("schedule.warmup", "192 steps")
_HORIZONS = values("schedule.horizon", "1x", "2x", "4x", "8x")
_ALPHAS = values("schedule.alpha", 480.0, 1920.0, 7680.0)
CONSTANT = {"kind": "constant"}
INVERSE_SQRT = {"kind": "inverse_sqrt"}
_SEESAW = grid(
    _WARMUP, peaks(1e-2), values("schedule.alpha", 120.0), values("batch_growth", "seesaw")
)
_TUNED_PEAKS = cosine_space(x1=(3e-2,), x2=(3e-2,), x4=(1e-2,), x8=(1e-2,))
_TUNED_COSINES = grid(_TUNED_PEAKS, _LONG_WARMUP)
COSINE = {"kind": "cosine"}
ADAMW, MUON, PACE = {"kind": "adamw"}, {"kind": "muon"}, {"kind": "pace"}
SCHEDULE_FREE = {"kind": "schedule_free_adamw"}
AMUSE, GPA, NORMUON, EMA_NESTEROV = (
    {"kind": f"anytime_jax.lab.optimizers:{name}"}
    for name in ("AMUSE", "GPA", "NorMuon", "EMANesterov")
)
_AROUND_MUON = {"matrices": "muon"}

# Trunks whose branches decay to 1x, 2x, 4x and 8x, with the prefix of the branches' names.
TRUNKS = {
    "constant-peak=0.01-warmup=48_steps": "",
    "muon-constant-warmup=48_steps-peak=0.01": "muon-",
}

METHODS = (
    Method(
        "cosine",
        ADAMW,
        COSINE,
        best=chain(
            grid(
                cosine_space(
                    x1=(1e-2, 3e-2, 1e-1),
                    x2=(1e-2, 3e-2, 1e-1),
                    x4=(3e-3, 1e-2, 3e-2),
                    x8=(3e-3, 1e-2, 3e-2),
                ),
                _LONG_WARMUP,
            ),
            grid(_TUNED_PEAKS, _WARMUP),
        ),
        reported=_TUNED_COSINES,
        seeds=5,
    ),
    Method(
        "cosine_to_0",
        ADAMW,
        {**COSINE, "floor": 0.0},
        reported=_TUNED_COSINES,
    ),
    Method(
        "muon-cosine",
        MUON,
        COSINE,
        best=grid(peaks(1e-2, 2e-2, 3e-2, 1e-1), _HORIZONS, _WARMUP),
        reported=grid(peaks(2e-2, 3e-2), _HORIZONS, _WARMUP),
    ),
    Method(
        "constant",
        ADAMW,
        CONSTANT,
        tried=chain(grid(peaks(3e-3, 3e-2), _WARMUP), grid(peaks(1e-2), _LONG_WARMUP)),
        reported=grid(peaks(1e-2), _WARMUP),
        seeds=5,
    ),
    Method(
        "inverse_sqrt",
        ADAMW,
        INVERSE_SQRT,
        tried=chain(grid(peaks(1e-2), _ALPHAS, _WARMUP), grid(peaks(3e-2), _ALPHAS[:1], _WARMUP)),
        best=chain(
            grid(peaks(1e-2, 3e-2), values("schedule.alpha", 120.0), _WARMUP),
            grid(peaks(1e-2), _ALPHAS[1:], _WARMUP),
        ),
        reported=chain(
            grid(peaks(1e-2), values("schedule.alpha", 120.0, 7680.0), _WARMUP), _SEESAW
        ),
    ),
    Method(
        "muon-constant",
        MUON,
        CONSTANT,
        tried=grid(_WARMUP, peaks(3e-3, 1e-2, 3e-2)),
        best=grid(_WARMUP, peaks(1e-2, 2e-2)),
        reported=grid(_WARMUP, peaks(1e-2)),
        seeds=5,
    ),
    Method("normuon-constant", NORMUON, CONSTANT, tried=grid(_WARMUP, peaks(1e-2, 3e-2))),
    Method(
        "muon-inverse_sqrt",
        MUON,
        INVERSE_SQRT,
        best=chain(
            grid(_WARMUP, peaks(2e-2, 3e-2), _ALPHAS[:2]), grid(_WARMUP, peaks(1e-2), _ALPHAS[1:2])
        ),
        reported=grid(_WARMUP, peaks(2e-2), _ALPHAS[1:2]),
    ),
    Method(
        "schedule_free_adamw-constant",
        SCHEDULE_FREE,
        CONSTANT,
        tried=grid(
            _WARMUP,
            chain(
                grid(peaks(3e-3, 1e-2, 3e-2, 1e-1), values("optimizer.interpolation", 0.9)),
                grid(peaks(1e-2, 3e-2), values("optimizer.interpolation", 0.95, 0.98)),
            ),
        ),
        reported=grid(_WARMUP, peaks(3e-2), values("optimizer.interpolation", 0.9)),
    ),
    Method(
        "amuse-constant",
        AMUSE,
        CONSTANT,
        tried=grid(
            _WARMUP,
            chain(
                grid(peaks(1e-2, 3e-2), values("optimizer.interpolation_power", 0.0, 1.0)),
                grid(peaks(1e-1), values("optimizer.interpolation_power", 0.0, 0.5)),
            ),
        ),
        reported=grid(_WARMUP, peaks(3e-2), values("optimizer.interpolation_power", 0.0)),
    ),
    Method(
        "gpa-constant",
        GPA,
        CONSTANT,
        tried=grid(
            _WARMUP,
            chain(
                grid(
                    peaks(1e-2, 3e-2),
                    values("optimizer.x_average", "ema0.974", "ema0.9869"),
                    values("optimizer.interpolation", 0.7),
                ),
                grid(
                    peaks(1e-2),
                    values("optimizer.x_average", "ema0.9967"),
                    values("optimizer.interpolation", 0.7, 0.9),
                ),
                grid(
                    peaks(1e-2, 3e-2),
                    values("optimizer.x_average", "f25"),
                    values("optimizer.interpolation", 0.7, 0.9),
                ),
            ),
        ),
    ),
    Method(
        "gpa_muon-constant",
        {**GPA, **_AROUND_MUON, "x_average": "f25"},
        CONSTANT,
        tried=grid(
            _WARMUP,
            chain(
                grid(peaks(1e-2, 3e-2), values("optimizer.interpolation", 0.7, 0.9)),
                grid(
                    peaks(1e-2, 3e-2),
                    values("optimizer.interpolation", 0.7),
                    values("optimizer.x_average", "ema0.974"),
                ),
            ),
        ),
    ),
    Method(
        "pace-constant",
        PACE,
        CONSTANT,
        tried=grid(
            _WARMUP,
            chain(
                grid(peaks(1e-2, 3e-2), values("optimizer.pullback", 0.15, 0.015)),
                grid(peaks(3e-2), values("optimizer.pullback", 0.5)),
                grid(peaks(1e-1), values("optimizer.pullback", 0.15, 0.5)),
            ),
        ),
        best=grid(_WARMUP, peaks(3e-2), values("optimizer.pullback", 0.15, 0.5)),
        reported=grid(_WARMUP, peaks(3e-2), values("optimizer.pullback", 0.5)),
        seeds=5,
    ),
    Method(
        "ema_nesterov-constant",
        EMA_NESTEROV,
        CONSTANT,
        tried=grid(_WARMUP, peaks(1e-2), values("optimizer.extrapolation", 0.3, 0.6)),
        reported=grid(_WARMUP, peaks(1e-2), values("optimizer.extrapolation", 0.3)),
    ),
    Method(
        "ema_nesterov_muon-constant",
        {**EMA_NESTEROV, **_AROUND_MUON},
        CONSTANT,
        tried=grid(_WARMUP, peaks(1e-2, 2e-2), values("optimizer.extrapolation", 0.3)),
    ),
)
