"""Seesaw's settings against closed forms, and a run with them against the paper's algorithm."""

import math

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.config import run_config
from anytime_jax.config.clock import Clock
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from anytime_lab import seesaw
from configs import quickstart

BATCH, PEAK = 32, 1e-2
CLOCK = Clock(batch_size=BATCH, length=64, chinchilla_tokens=400 * BATCH * 64)
WARM = {"warmup": 40, "warmup_init": 0.2}


@pytest.mark.parametrize(("floor", "doublings"), [(0.3, 1), (0.25, 1), (0.1, 3), (0.01, 6)])
def test_cuts_of_a_cosine(floor, doublings):
    """The first whole updates of a batch of 2^k at or after the closed form's times."""
    rate = schedules.cosine(1.0, 10_040, 40, floor=floor)
    changes = seesaw.follow(rate, CLOCK, "10040 steps")
    factors = [(2.0**-k - floor) / (1 - floor) for k in range(1, doublings + 1)]
    times = [40 + 10_000 * math.acos(2 * x - 1) / math.pi for x in factors]
    late = np.subtract(changes["schedule.cuts"], times)
    assert np.all((late >= 0) & (late < 1 + 2.0 ** np.arange(doublings)))
    assert [*changes["batch_growth"].values()] == [BATCH * 2**k for k in range(1, doublings + 1)]


@pytest.mark.parametrize(
    "rate",
    [
        schedules.cosine(PEAK, 1600, **WARM),
        schedules.wsd(PEAK, 1600, **WARM, shape="1-sqrt"),
        schedules.Decay(schedules.power(PEAK, 0.7, 90.0, **WARM), 1440, 1600),
    ],
)
def test_a_run_follows_the_schedule_update_by_update(rate):
    """Where the schedule has halved again, so does the batch double."""
    source = quickstart.get_config().to_dict()
    changes = seesaw.follow(rate, run_config.build(source, trust=NOBODY).clock, "1600 steps")
    schedule = {"kind": changes["schedule.kind"], "peak": PEAK, "cuts": changes["schedule.cuts"]}
    schedule |= {"warmup": "40 steps", "warmup_init": 0.2}
    source |= {"schedule": schedule, "batch_growth": changes["batch_growth"]}
    config = run_config.build(source, trust=NOBODY)
    seen, cuts, step = 0, 0, 0
    while seen < 1600:
        while seen >= 40 and rate.evaluate(seen) <= PEAK / 2 ** (cuts + 1) * (1 + 1e-9):
            cuts += 1
        expected = rate.evaluate(step) if seen < 40 else PEAK / math.sqrt(2) ** cuts
        assert config.rate_at(step) == pytest.approx(expected, rel=1e-12)
        assert config.samples(step) == seen * BATCH
        seen, step = seen + 2**cuts, step + 1
    assert cuts >= 2


def test_a_decay_to_zero_is_refused():
    with pytest.raises(InputError, match="batch_growth"):
        seesaw.follow(schedules.linear(1.0, 1600, floor=0.0), CLOCK, "4x")
