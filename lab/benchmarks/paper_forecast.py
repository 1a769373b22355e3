"""Forecast of the paper's published losses at 150M and 300M from the first of them.

    python -m lab.benchmarks.paper_forecast

The law is fitted to the two to four losses of the average f25 of the constant run up to 2x, 4x or
8x, with the general prior. It predicts that run's later losses, and the losses of unseen runs: the
inverse square root, the WSD branches and the cosines.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.averaging import GrowingWindow
from anytime_jax.config import python_files, run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_config import Config
from anytime_jax.schedules import Schedule
from anytime_lab.forecast.functional_law_fit import INTERVAL, FunctionalFit
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.prior import general_prior
from anytime_lab.study import paper_losses
from benchmarks import harness, record

_F25 = {"f25": GrowingWindow(25.0)}
_BEGINS = (2, 4, 8)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.paper_forecast", __doc__, rounds=1)
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    del options  # nothing is timed, so the load does not matter
    rows = [
        row
        for model, losses in paper_losses.losses().items()
        for begin in _BEGINS
        for row in _forecast(model, losses, begin)
    ]
    title = f"forecast minus published loss, and half its {INTERVAL:.0%} interval (millinats)"
    return record.Result(title, rows)


def _forecast(
    model: str, losses: Mapping[str, Mapping[float, float]], begin: int
) -> list[record.Row]:
    """Returns the rows of a forecast from the losses up to the multiple `begin`."""
    constant, inverse_sqrt, cosine = (
        _config(f"{model.lower()}_{name}") for name in ("constant", "inv_sqrt", "cosine")
    )
    clock, warmup = constant.clock, constant.learning_rate.warmup_end
    known = {multiple: loss for multiple, loss in losses["constant"].items() if multiple <= begin}
    steps = np.array([clock.step_at(f"{multiple:g}x") for multiple in known])
    history = LossHistory(
        schedule=constant.learning_rate,
        warmup_steps=warmup,
        first=steps,
        last=steps,
        losses=np.array(list(known.values())),
        labels=("f25",) * len(steps),
        training=np.zeros(len(steps), bool),
        rules=_F25,
    )
    fit = FunctionalFit([history], general_prior(history, 1 / constant.model.width))
    rows = []
    for multiple in losses["constant"]:
        if multiple in known:
            continue
        step = clock.step_at(f"{multiple:g}x")
        decay = schedules.Decay(constant.learning_rate, clock.branch_step(step), step)
        single = schedules.cosine(cosine.learning_rate.peak, step, warmup)
        cases: dict[str, tuple[Schedule, bool]] = {
            "constant": (constant.learning_rate, True),
            "inverse_sqrt": (inverse_sqrt.learning_rate, True),
            "wsd": (decay, False),
            "cosine": (single, False),
        }
        row = {"model": model, "from": f"1x to {begin}x", "to": f"{multiple:g}x"}
        for kind, (schedule, averaged) in cases.items():
            prediction = fit.predict(schedule, [step], _F25)
            error = prediction.losses[0, int(averaged)] - losses[kind][multiple]
            width = prediction.high[0, int(averaged)] - prediction.losses[0, int(averaged)]
            row[kind] = f"{1e3 * error:+.1f} ± {1e3 * width:.0f}"
        rows.append(row)
    return rows


def _config(name: str) -> Config:
    return run_config.build(python_files.get_config(name), trust=NOBODY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
