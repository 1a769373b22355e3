"""Loss curves of real pretraining runs, with their schedules and a published law of them.

The curves are training losses of models of 25M and 100M parameters, nine schedules each. Source:
github.com/thu-yao-01-luo/MultiPowerLaw, arXiv 2503.12811 (MIT License, Copyright (c) 2025 Kairong
Luo); `tests/oracles/README.md` describes the file.
"""

from collections.abc import Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.schedules import Schedule
from anytime_lab.forecast import loss_csv
from anytime_lab.forecast.loss_history import LossHistory, RecordedRates
from benchmarks.harness import REPOSITORY
from lab.benchmarks.rival_laws import MultiPowerLaw

FILE = REPOSITORY / "lab" / "tests" / "fixtures" / "loss_curves.npz"
PEAK, WARMUP_STEPS = 3e-4, 2160

# Laws that the authors fitted to `FITTED`, with their rounding.
PUBLISHED = {
    "25M": MultiPowerLaw(3.040, 0.525, 0.508, 363.79, 2.066, 0.583, 0.641),
    "100M": MultiPowerLaw(2.651, 0.601, 0.453, 437.95, 2.132, 0.598, 0.655),
}
FITTED = ("cosine_24000", "constant_24000", "wsdcon_9")
PREDICTED = (
    *("constant_72000", "cosine_72000", "wsd_20000_24000", "wsdld_20000_24000"),
    *("wsdcon_3", "wsdcon_18"),
)


def load(size: str, names: Sequence[str] = (*FITTED, *PREDICTED)) -> dict[str, LossHistory]:
    """Returns curves by name, for the model size `size`, a key of `PUBLISHED`."""
    with np.load(FILE) as arrays:
        curves = {name: arrays[f"{size}/{name}"] for name in names}
    return {
        # The file counts steps from 0: at step 0, one update is done.
        name: loss_csv.from_columns(
            (curve[0] + 1).tolist(),
            (curve[1] * 1e-4).tolist(),
            schedule=schedule(name),
            warmup_steps=WARMUP_STEPS,
        )
        for name, curve in curves.items()
    }


def schedule(name: str) -> Schedule:
    """Returns the learning rates of the runs of a name.

    constant_N and cosine_N have N updates; wsd_M_N decays exponentially from update M to N,
    wsdld_M_N linearly; wsdcon_X is constant, then X * 1e-5 from update 8,000 to 16,000.
    """
    kind, *numbers = name.split("_")
    first, last = int(numbers[0]), int(numbers[-1])
    if kind == "constant":
        return schedules.constant(PEAK, WARMUP_STEPS, 0.0)
    if kind == "cosine":
        return schedules.cosine(PEAK, last, WARMUP_STEPS, 0.0)
    if kind == "wsdld":
        return schedules.wsd(PEAK, last, first, WARMUP_STEPS, 0.0)
    if kind == "wsd":
        steps = range(first, last + 1, 10)
        rates = (PEAK * 0.1 ** ((step - first) / (last - first)) for step in steps)
    else:
        steps, rates = (7_999, 8_000, 16_000), (PEAK, first * 1e-5, first * 1e-5)
    return RecordedRates((0, WARMUP_STEPS, *steps), (0.0, PEAK, *rates))
