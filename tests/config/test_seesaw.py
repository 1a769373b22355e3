"""Tests of Seesaw: its cuts, batches and rates against closed forms and a loop over updates."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from anytime_jax import schedules
from anytime_jax.commands import config_file
from anytime_jax.config import run_config, seesaw, settings_reader
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_settings import Settings
from anytime_jax.errors import InputError
from anytime_jax.training.branching import check_inheritance
from configs import quickstart

WARMUP, BATCH = 40, 32
START = {"peak": 1e-2, "warmup": f"{WARMUP} steps", "warmup_init": 0.2}
END = {"horizon": "4x"}  # 1,600 updates of the first batch
WARM = {"warmup": WARMUP, "warmup_init": 0.2}
SCHEDULES = {
    "inverse_sqrt": ({"alpha": 50.0}, schedules.inverse_sqrt(1e-2, 50.0, **WARM)),
    "power": ({"alpha": 30.0, "gamma": 0.7}, schedules.power(1e-2, 0.7, 30.0, **WARM)),
    "cosine": (END, schedules.cosine(1e-2, 1600, **WARM)),
    "linear": (END, schedules.linear(1e-2, 1600, **WARM)),
    "wsd": ({**END, "shape": "1-sqrt"}, schedules.wsd(1e-2, 1600, **WARM, shape="1-sqrt")),
}


def settings(kind, schedule=None, **changes):
    config = quickstart.get_config()
    config.batch_growth = "seesaw"
    schedule = SCHEDULES[kind][0] if schedule is None else schedule
    config.schedule = ConfigDict({"kind": kind, **START, **schedule})
    config.stop = "4x"
    source = config.to_dict()
    changes = {k.replace("__", "."): v for k, v in changes.items()}
    settings_reader.change(Settings, source, changes)
    return source


def build(kind, schedule=None, **changes):
    return run_config.build(settings(kind, schedule, **changes), trust=NOBODY)


def steps(config):
    return [phase.step for phase in config.clock.phases]


# Cuts


@pytest.mark.parametrize("alpha", [1, 51_200])
def test_cuts_of_an_inverse_square_root_are_at_3_15_63_alpha(alpha):
    """Of its own clock, which starts after the warmup; stage k has 3 alpha 2^k updates."""
    rate = schedules.inverse_sqrt(3e-3, alpha, WARMUP)
    found = seesaw.halvings(rate)
    count = 12 if alpha < 100 else 7  # 63 million updates; 2^31 of them
    assert found == [WARMUP + alpha * (4**k - 1) for k in range(1, count + 1)]
    config = build("inverse_sqrt", {"alpha": float(alpha)})
    assert steps(config) == [0, *(WARMUP + 3 * alpha * (2**k - 1) for k in range(1, count + 1))]
    assert [x.span for x in config.clock.phases] == [2**k for k in range(count + 1)]


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cuts_of_a_cosine(floor):
    found = seesaw.halvings(schedules.cosine(1.0, 10_040, WARMUP, floor=floor))
    factors = [(2.0**-k - floor) / (1 - floor) for k in range(1, 13)]
    angles = [math.acos(2 * x - 1) for x in factors if x >= 0]
    assert found == [WARMUP + math.ceil(10_000 * x / math.pi - 1e-6) for x in angles]
    assert len(found) == {0.0: 12, 0.1: 3}[floor]


def test_cuts_of_a_linear_decay_to_zero_end_with_the_last_whole_update():
    """1,024 updates of the first batch: halves of what is left, in batches twice as large."""
    end = {"horizon": f"{WARMUP + 1024} steps", "floor": 0.0}
    config = build("linear", end, stop="horizon")
    stages = np.cumsum([WARMUP + 512, 128, 32, 8, 2])
    assert steps(config) == [0, *stages]
    assert config.horizon == stages[-1] + 1 == WARMUP + 683
    assert config.samples(WARMUP + 683) == BATCH * (WARMUP + 1024)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_run_follows_the_schedule_update_by_update(kind):
    """As the paper's algorithm: where the schedule has halved again, so does the batch double."""
    config, (_, given) = build(kind), SCHEDULES[kind]
    sizes = itertools.chain.from_iterable(
        itertools.repeat(size, 10**4 if count is None else count)
        for size, count in config.batches(0)
    )
    found, rates = [config.rate_at(step) for step in range(config.stop_rule.step)], []
    seen, cuts = 0, 0
    for step in range(config.stop_rule.step):
        assert config.samples(step) == seen * BATCH
        while seen >= WARMUP and given.evaluate(seen) <= 1e-2 / 2 ** (cuts + 1) * (1 + 1e-9):
            cuts += 1
        rates.append(given.evaluate(step) if step < WARMUP else 1e-2 / math.sqrt(2) ** cuts)
        assert next(sizes) == BATCH * 2**cuts
        seen += 2**cuts
    np.testing.assert_allclose(found, rates, rtol=1e-12)
    assert cuts >= 2
    horizon = config.horizon
    assert (horizon is None) == (given.end is None)
    assert horizon is None or 1600 <= config.samples(horizon) / BATCH < 1600 + 2**cuts


def test_cuts_end_where_they_are_less_than_an_update_apart():
    """At 8, 15, 24, 32, 42, ...: 4 updates of 2 first batches, 2 of 4, 1 of 8, but not of 16."""
    config = build("power", {"alpha": 100.0, "gamma": 10.0})
    found = seesaw.halvings(schedules.power(1.0, 10.0, 100.0))
    assert found[:5] == [8, 15, 24, 32, 42]
    assert steps(config) == [0, WARMUP + 8, WARMUP + 12, WARMUP + 14, WARMUP + 15]


def test_cuts_are_after_the_warmup():
    rate = schedules.linear(1.0, 11, warmup=10, warmup_init=0.0, floor=0.0)
    assert rate.evaluate(5) == 0.5
    assert seesaw.halvings(rate) == [11] * 12


# Rates


def test_rate_is_the_same_inside_a_program():
    config = build("cosine")
    end = config.learning_rate.end
    times = np.arange(end + 1, dtype=np.int32)
    expected = config.learning_rate.evaluate(times)
    np.testing.assert_allclose(jax.jit(config.learning_rate)(times), expected, rtol=1e-6)
    assert np.isnan(jax.jit(config.learning_rate)(end + 1))
    with pytest.raises(ValueError, match="ends at time"):
        config.learning_rate.evaluate(end + 1)
    assert expected[0] == pytest.approx(0.2e-2)


# Settings


def test_setting_stays_a_word():
    config = build("inverse_sqrt", microbatches=4)
    assert config.identity("abc")["batch_growth"] == "seesaw"
    assert run_config.build(config.to_dict(), trust=NOBODY) == config
    option = "--config.batch_growth=(('2x', 64),)"
    clock = run_config.build(config_file.read("quickstart", [option]), trust=NOBODY).clock
    assert clock.phases == ((0, 0, 1), (800, 800, 2))


# Branches


def branch(**changes):
    decay = {"branch__from_run": "trunk", "stop": "horizon"}
    return build("inverse_sqrt", **decay, **changes)


def test_branch_leaves_its_trunk_at_a_milestone_and_has_its_cuts():
    trunk, multiple = build("inverse_sqrt"), "13.3x"
    config = branch(decay__horizon=multiple)
    horizon = trunk.clock.step_at(multiple)
    assert config.branch_step == trunk.clock.branch_step(horizon)
    until = [x for x in trunk.clock.phases if x.step < config.branch_step]
    assert list(config.clock.phases[: len(until)]) == until
    assert len(config.clock.phases) > len(until)  # and those of its decay
    check_inheritance(config, trunk, config.branch_step)
    assert config.clock.step_at(multiple) == config.horizon
    point = f"{config.branch_step} steps"
    assert branch(decay__horizon=multiple, branch__at=point).clock == config.clock


def test_branch_with_other_cuts_is_refused():
    trunk, config = build("inverse_sqrt"), branch(decay__horizon="13x")
    source = config.to_dict()
    source["schedule"]["alpha"] = 60.0
    other = run_config.build(
        {**source, "branch": {**source["branch"], "change": ("schedule.alpha",)}}, trust=NOBODY
    )
    with pytest.raises(InputError, match="batch_growth"):
        check_inheritance(other, trunk, other.branch_step)


@dataclasses.dataclass(frozen=True)
class Restarts(schedules.Schedule):
    """A cosine that begins anew."""

    peak: float
    horizon: int = 2000

    def formula(self, t, xp):
        return self.peak * (0.55 + 0.45 * xp.cos(xp.pi * (t % 700) / 700))


def test_rate_that_rises_is_refused():
    with pytest.raises(ValueError, match="Restarts"):
        seesaw.halvings(Restarts(0.01))
