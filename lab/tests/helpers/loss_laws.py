"""A law of the loss, schedules that it is tested on, and histories of given losses."""

import numpy as np

from anytime_jax import schedules
from anytime_lab.forecast.functional_law import FunctionalLaw
from anytime_lab.forecast.loss_history import LossHistory, RecordedRates

LAW = FunctionalLaw(2.2, 1.2, 0.6, 0.1, 40.0, 60.0, 1.1, 600.0, 0.3)
PEAK = 3e-4
SCHEDULES = {
    "constant": schedules.constant(PEAK, 2_000, 0.0),
    "cosine": schedules.cosine(PEAK, 12_000, 2_000, 0.0, 0.0),
    "wsd": schedules.wsd(PEAK, 12_000, 10_000, 1_000, 0.0, 0.0),
    "1-sqrt": schedules.wsd(PEAK, 12_000, 10_000, 1_000, 0.1, 0.1, "1-sqrt"),
    "drop": RecordedRates((0, 2_000, 7_999, 8_000), (0.0, PEAK, PEAK, 3e-5)),
}
STEPS = [2_200, 8_000, 8_030, 10_000, 10_100, 11_000, 12_000]


def history(schedule, rows, rules, warmup_steps=50):
    """A history of rows (first, last, loss, label, whether it is a training loss)."""
    first, last, losses, labels, training = zip(*rows, strict=True)
    arrays = np.array(first), np.array(last), np.array(losses, float)
    return LossHistory(schedule, warmup_steps, *arrays, labels, np.array(training), rules)
