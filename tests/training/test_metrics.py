"""The meter between device and host, and the mirrors of the records."""

import math
import sys

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from anytime_jax.checkpoints.records import read_records
from anytime_jax.config.schema import LogConfig
from anytime_jax.errors import InputError
from anytime_jax.training import metrics
from anytime_jax.training.metrics import AHEAD, Meter, Writers, check_mirrors

NAMES = ("loss", "lr", "grad_norm", "clipped", "update_norm")
COUNTS = {"spikes": 0, "skipped": 0, "consecutive_skips": 0}


class Number:
    """A device scalar that remembers when it was read."""

    def __init__(self, value, log, step):
        self.value, self.log, self.step = value, log, step

    def __array__(self, dtype=None, copy=None):
        del copy
        self.log.append(self.step)
        return np.asarray(self.value, dtype or np.float32)


def value(step, name):
    return (step + NAMES.index(name)) / 8  # exact in float32


def pushed(step, log=None, **changes):
    values = {name: value(step, name) for name in NAMES} | COUNTS | changes
    return {name: Number(x, [] if log is None else log, step) for name, x in values.items()}


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(metrics.time, "perf_counter", lambda: self.now)


def make(every=3, rows=None, **keywords):
    rows = [] if rows is None else rows
    keywords = {
        "landed": lambda step, values: None, "tokens": lambda step: 64 * step,
        "peak_tokens_per_s": None,
    } | keywords  # fmt: skip
    return Meter(every, emit=lambda step, values: rows.append((step, values)), **keywords), rows


def untimed(rows):
    return [(s, {k: x for k, x in v.items() if k not in ("tokens_per_s", "mfu")}) for s, v in rows]


def mean_row(steps):
    row = {
        f"train/{name}": math.fsum(value(s, name) for s in steps) / len(steps)
        for name in NAMES
        if name != "lr"
    }
    return row | {"lr": value(steps[-1], "lr"), "train/spikes": 0, "train/skipped": 0}


def test_rows_hold_the_means_since_the_last_row_and_the_last_rate():
    meter, rows = make(every=3)
    for step in range(1, 9):
        meter.push(step, pushed(step))
    meter.drain()
    assert untimed(rows) == [(3, mean_row([1, 2, 3])), (6, mean_row([4, 5, 6]))]
    means = [name for name in NAMES if name != "lr"]
    assert meter.interval == {name: [value(7, name), value(8, name)] for name in means}


def test_no_metric_younger_than_ahead_is_ever_read():
    log = []
    meter, _ = make()
    for step in range(1, 20):
        meter.push(step, pushed(step, log))
        assert max(log) == max(1, step - AHEAD)  # the first update sets the clock
    meter.drain()
    assert max(log) == 19
    assert AHEAD >= 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_resumed_meter_writes_the_rows_of_an_unbroken_one(cut):
    unbroken, wanted = make(every=4)
    for step in range(1, 13):
        unbroken.push(step, pushed(step))
    unbroken.drain()
    first, rows = make(every=4)
    for step in range(1, cut + 1):
        first.push(step, pushed(step))
    with first.paused():
        saved = first.interval
    second, _ = make(every=4, rows=rows, interval=saved)
    for step in range(cut + 1, 13):
        second.push(step, pushed(step))
    second.drain()
    assert untimed(rows) == untimed(wanted)


def test_the_interval_is_a_copy():
    meter, _ = make(every=9)
    meter.push(1, pushed(1))
    meter.drain()
    meter.interval["loss"].append(7.0)
    given = meter.interval
    other, _ = make(every=9, interval=given)
    other.push(2, pushed(2))
    other.drain()
    assert given["loss"] == meter.interval["loss"] == [value(1, "loss")]


def test_every_update_lands_once_in_order_and_what_the_loop_raises_comes_out():
    seen = []

    def landed(step, values):
        seen.append((step, values["loss"]))
        if step == 3:
            raise RuntimeError("update 3 is bad")

    meter, rows = make(every=1, landed=landed)
    meter.push(1, pushed(1))
    meter.push(2, pushed(2))
    meter.push(3, pushed(3))
    with pytest.raises(RuntimeError, match="update 3 is bad"):
        meter.drain()
    assert seen == [(step, value(step, "loss")) for step in (1, 2, 3)]
    assert [step for step, _ in rows] == [1, 2]


def test_means_are_over_the_updates_that_were_made():
    meter, rows = make(every=3)
    meter.push(1, pushed(1))
    meter.push(2, pushed(2, loss=math.nan, grad_norm=math.inf, consecutive_skips=1, skipped=1))
    meter.push(3, pushed(3, skipped=1))
    for step in (4, 5, 6):  # none is made: there is nothing to take a mean of
        meter.push(step, pushed(step, loss=math.nan, consecutive_skips=step - 3, skipped=step - 2))
    meter.drain()
    assert untimed(rows)[0] == (3, mean_row([1, 3]) | {"train/skipped": 1})
    assert untimed(rows)[1] == (
        6,
        {"lr": value(6, "lr"), "train/spikes": 0, "train/skipped": 4},
    )


def run_at(meter, clock, steps, seconds):
    """Updates that take so long each, as the host sees it when it waits for the device."""
    for step in steps:
        meter.push(step, pushed(step))
        clock.now += seconds
    meter.drain()


def test_speed_counts_no_pause_and_not_the_first_update(monkeypatch):
    clock = Clock(monkeypatch)
    meter, rows = make(every=10, peak_tokens_per_s=640.0)
    clock.now += 50.0  # compiling
    meter.push(1, pushed(1))
    run_at(meter, clock, range(2, 6), 0.5)
    with meter.paused():
        clock.now += 1000.0  # an evaluation
    run_at(meter, clock, range(6, 11), 0.5)
    with meter.paused():
        clock.now += 1000.0
    with meter.paused():  # a save right after it
        clock.now += 1000.0
    run_at(meter, clock, range(11, 21), 0.25)
    (_, first), (_, second) = rows
    # The fifth update of the first stretch and the fifth of the second land as their rows are due.
    assert first["tokens_per_s"] == pytest.approx(9 * 64 / 4.5)
    assert first["mfu"] == pytest.approx(9 * 64 / 4.5 / 640)
    assert second["tokens_per_s"] == pytest.approx(10 * 64 / 2.5)


def test_a_row_of_the_first_update_has_no_speed(monkeypatch):
    Clock(monkeypatch)
    meter, rows = make(every=1, peak_tokens_per_s=1.0)
    meter.push(1, pushed(1))
    meter.drain()
    assert rows == [(1, mean_row([1]))]


def read_events(path):
    """The scalars of a TensorBoard file: its frames are length, check, event, check."""
    content, found = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        event = event_pb2.Event()
        event.ParseFromString(content[12 : 12 + length])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        content = content[16 + length :]
    return found


def test_the_mirror_in_tensorboard_holds_the_values(tmp_path):
    log = LogConfig("1 steps", tensorboard=True, wandb_project="")
    writers = Writers(tmp_path, "run", log, 0, {"jax": "1"})
    writers.write(3, 30, {"train/loss": 5.5, "lr": 0.25})
    writers.write(3, 30, {"eval/f25/loss": 5.25})
    writers.sync()
    writers.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert read_events(file) == [
        (3, "train/loss", 5.5),
        (3, "lr", 0.25),
        (3, "eval/f25/loss", 5.25),
    ]
    assert read_records(tmp_path)[0].values == {
        "train/loss": 5.5,
        "lr": 0.25,
        "eval/f25/loss": 5.25,
    }


def test_without_mirrors_there_are_only_records(tmp_path):
    log = LogConfig("1 steps", tensorboard=False, wandb_project="")
    writers = Writers(tmp_path, "run", log, 0, {})
    writers.write(1, 10, {"train/loss": 1.0})
    with pytest.raises(ValueError, match="again"):
        writers.write(1, 10, {"train/loss": 1.0})
    writers.close()
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_a_mirror_that_is_not_installed_is_bad_input(monkeypatch):
    log = LogConfig("1 steps", tensorboard=False, wandb_project="mine")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'anytime_jax\[wandb\]'"):
        check_mirrors(log)
    check_mirrors(LogConfig("1 steps", tensorboard=True, wandb_project=""))
