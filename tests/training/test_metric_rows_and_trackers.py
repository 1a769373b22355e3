"""Rows of metrics, from the device to the host, and the trackers."""

import contextlib
import itertools
import json
import math
import re
import sys
import threading
import types
from unittest import mock

import numpy as np
import pytest
import recording_tracker
import small_run
import wandb_stub
from run_files import run_file
from tensorboardX.proto import event_pb2, layout_pb2
from training_runs import start

from anytime_jax import api
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import LAYERS, RecordWriter, read_records
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import metric_rows, recorder
from anytime_jax.training.branching import decay_settings
from anytime_jax.training.metric_rows import AHEAD, MetricRows
from anytime_jax.training.step import RELATIVE_UPDATES
from anytime_jax.training.trackers import Mirrors, TrackedRun, read_trackers

TENSORBOARD = {"tensorboard": {}}
WANDB = {"wandb": {"project": "mine"}}
MEANS = ("loss", "grad_norm", "clipped", "update_norm")
NAMES = (*MEANS, "lr")
COUNTS = {"spikes": 0, "skipped": 0, "consecutive_skips": 0}


class DeviceScalar:
    """A scalar that records in `reads` when it is read."""

    def __init__(self, value, step, reads):
        self.value, self.step, self.reads = value, step, reads

    def __array__(self, dtype=None, copy=None):
        del copy
        self.reads.append(self.step)
        return np.asarray(self.value, dtype or np.float32)


def value(step, name):
    return (step + NAMES.index(name)) / 8  # exact in float32


def on_device(step, reads=None, **changes):
    values = {name: value(step, name) for name in NAMES} | COUNTS | changes
    reads = [] if reads is None else reads
    return {name: DeviceScalar(x, step, reads) for name, x in values.items()}


def make_rows(every=3, least_seconds=None, interval=None):
    return MetricRows(every, lambda step: 64 * step, least_seconds, interval)


def push(made, steps, changes=None, reads=None):
    """What `MetricRows` returns for some updates, without the pause at the end."""
    changes = changes or {}
    return [x for s in steps for x in made.push(s, on_device(s, reads, **changes.get(s, {})))]


def rows(readings):
    """Steps and rows without the measured speed."""
    timed = ("tokens_per_s", "mfu")
    return [
        (step, {name: x for name, x in row.items() if name not in timed})
        for step, _, _, row in readings
        if row is not None
    ]


def mean_row(steps):
    row = {f"train/{name}": math.fsum(value(s, name) for s in steps) / len(steps) for name in MEANS}
    return row | {"lr": value(steps[-1], "lr"), "train/spikes": 0, "train/skipped": 0}


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch):
    """A clock that only the test advances."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(metric_rows.time, "perf_counter", lambda: clock.now)
    return clock


def test_row_has_means_since_last_row_and_last_rate():
    made = make_rows()
    readings = push(made, range(1, 9)) + made.pause()
    assert rows(readings) == [(3, mean_row([1, 2, 3])), (6, mean_row([4, 5, 6]))]
    assert [(step, metrics["loss"]) for step, metrics, *_ in readings] == [
        (step, value(step, "loss")) for step in range(1, 9)
    ]
    assert made.interval == {name: (value(7, name), value(8, name)) for name in MEANS}
    assert made.pause() == []


def test_row_has_means_of_relative_updates():
    made = MetricRows(2, lambda step: 64 * step, None, None, ["blocks/qkv", "head"])
    for step, ratios in ((1, [1.0, 8.0]), (2, [3.0, 4.0])):
        made.push(step, on_device(step) | {RELATIVE_UPDATES: np.float32(ratios)})
    (_, row), *_ = rows(made.pause())
    assert [row[f"train/relative_update/{x}"] for x in ("blocks/qkv", "head")] == [2, 6]
    assert row["train/loss"] == mean_row([1, 2])["train/loss"]


def test_measures_of_layers_are_named_by_layer():
    measures = {"mlp": np.float32([1.0, 2.0]), "head/weights": np.float32(3.0)}
    made = make_rows()
    readings = made.push(1, on_device(1) | {LAYERS: measures}) + push(made, [2]) + made.pause()
    named = {"layers/0/mlp": 1.0, "layers/1/mlp": 2.0, "layers/head/weights": 3.0}
    assert [reading.layers for reading in readings] == [named, {}]


def test_push_reads_no_metric_younger_than_ahead():
    reads, made = [], make_rows()
    for step in range(1, 20):
        push(made, [step], reads=reads)
        assert max(reads) == max(1, step - AHEAD)  # the first update is waited for
    made.pause()
    assert max(reads) == 19
    assert AHEAD >= 1


@pytest.mark.parametrize("cut", [3, 8])  # inside an interval, and where one ends
def test_resumed_meter_returns_rows_of_unbroken_one(cut):
    first, whole = make_rows(every=4), make_rows(every=4)
    readings = push(first, range(1, cut + 1)) + first.pause()
    second = make_rows(every=4, interval=first.interval)
    readings += push(second, range(cut + 1, 13)) + second.pause()
    assert rows(readings) == rows(push(whole, range(1, 13)) + whole.pause())


def test_means_leave_out_skipped_updates():
    made = make_rows()
    nan = {"loss": math.nan, "grad_norm": math.inf}
    changes = {2: nan | {"consecutive_skips": 1, "skipped": 1}, 3: {"skipped": 1}}
    for step in (4, 5, 6):  # all are skipped: there is nothing to take a mean of
        changes[step] = nan | {"consecutive_skips": step - 3, "skipped": step - 2}
    assert rows(push(made, range(1, 7), changes) + made.pause()) == [
        (3, mean_row([1, 3]) | {"train/skipped": 1}),
        (6, {"lr": value(6, "lr"), "train/spikes": 0, "train/skipped": 4}),
    ]


def test_speed_leaves_out_pauses_and_the_first_update(clock):
    made = make_rows(every=10, least_seconds=lambda step: 0.1 * step)

    def run(steps, seconds):
        readings = []
        for step in steps:
            readings += push(made, [step])
            clock.now += seconds
        return readings + made.pause()

    def wait():
        clock.now += 1000.0
        made.resume()

    made.pause()
    made.resume()  # an evaluation before the first update does not start the clock
    clock.now += 50.0  # compiling
    push(made, [1])
    readings = run(range(2, 6), 0.5)
    wait()  # an evaluation
    readings += run(range(6, 11), 0.5)
    wait()
    made.pause()
    wait()  # a save right after it
    readings += run(range(11, 21), 0.25)
    first, second = (x.row for x in readings if x.row)
    assert first["tokens_per_s"] == pytest.approx(9 * 64 / 4.5)
    assert first["mfu"] == pytest.approx(0.1 * sum(range(2, 11)) / 4.5)
    assert second["tokens_per_s"] == pytest.approx(10 * 64 / 2.5)


def test_least_time_of_an_update_is_that_of_the_model_of_its_stage():
    """Twice as long windows have half of a batch's rows, and the products of attention of twice."""
    config = small_run.config("run", stages={"10 steps": {"length": 2 * small_run.LENGTH}})
    seconds = recorder._least_seconds(config, peak_flops=64.0)
    attention = 12 * config.model.layers * config.model.width * small_run.LENGTH
    assert seconds(11) - seconds(10) == small_run.BATCH * small_run.LENGTH * attention / 64


def open_mirrors(config, from_step):
    """The open mirrors of a configuration, none of which may fail."""
    mirrors = Mirrors(pytest.fail)
    run_id = run_json.run_id(storage_path(config.directory))
    mirrors.open(read_trackers(config), TrackedRun(config, run_id, from_step))
    return mirrors


def read_events(path):
    """The scalars of a TensorBoard file, whose frames are length, checksum, event, checksum."""
    content, found = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        event = event_pb2.Event()
        event.ParseFromString(content[12 : 12 + length])
        found += [(event.step, value) for value in event.summary.value]
        content = content[16 + length :]
    return found


def test_tensorboard_has_the_values(tmp_path):
    opened = small_run.config(tmp_path, log__trackers=TENSORBOARD)
    threads = threading.enumerate()
    with open_mirrors(opened, 2) as mirrors:
        assert threading.enumerate() == threads  # one could end, and leave the run waiting for it
        mirrors.write(3, 30, {"train/loss": 5.5, "lr": 0.25})
        mirrors.write(3, 30, {"eval/f25/loss": 5.25})
        mirrors.sync()
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = {"train/loss": 5.5, "lr": 0.25, "eval/f25/loss": 5.25}
    (step, text), _, *scalars = read_events(file)
    assert [(s, x.tag, x.simple_value) for s, x in scalars] == [(3, *x) for x in values.items()]
    (settings,) = text.tensor.string_val
    config = run_config.build(json.loads(settings.decode().strip("`json\n")), trust=NOBODY)
    assert (step, text.tag, config) == (2, "settings/text_summary", opened)


def test_evaluations_are_in_tensorboard_before_the_records(dataset, tmp_path, monkeypatch):
    """A kill between them would lose one: a start repeats evaluations that the records lack."""
    sync, counts = RecordWriter.sync, []

    def sync_and_compare(writer):
        sync(writer)
        (file,) = (tmp_path / "run" / "tensorboard").iterdir()
        mirrored = {s for s, value in read_events(file) if value.tag == "eval/last/loss"}
        recorded = {x.step for x in read_records(tmp_path / "run") if "eval/last/loss" in x.values}
        assert recorded <= mirrored
        counts.append(len(recorded))

    monkeypatch.setattr(RecordWriter, "sync", sync_and_compare)
    start(tmp_path / "run", dataset, log__trackers=TENSORBOARD)
    assert counts[-1] == 2  # of steps 5 and 10


def test_tensorboard_has_one_chart_of_all_weights_at_every_start(tmp_path):
    sources = {name: (f"data/{name}", 0.5) for name in ("a", "b")}
    several = small_run.config(tmp_path, log__trackers=TENSORBOARD, data__mixture=sources)
    for from_step in (0, 4):
        with open_mirrors(several, from_step):
            pass
        *_, (step, layout) = read_events(max((tmp_path / "tensorboard").iterdir()))
        assert (step, layout.tag) == (from_step, "custom_scalars__config__")
        (category,) = layout_pb2.Layout.FromString(layout.tensor.string_val[0]).category
        (means,), (live,) = (chart.multiline.tag for chart in category.chart)
        assert all(re.match(means, f"eval/{label}/loss") for label in ("last", "f25"))
        assert re.match(live, "eval/a/last/loss")
        assert not any(re.match(means, x) for x in ("eval/a/f25/loss", "train/loss"))
        assert not any(re.match(live, x) for x in ("eval/a/f25/loss", "eval/last/loss"))


def test_tensorboard_of_a_run_in_a_bucket_is_left_out_in_plain_words():
    lines = []
    config = small_run.config("gs://bucket/run", log__trackers=TENSORBOARD)
    with Mirrors(lines.append) as mirrors:
        mirrors.open(read_trackers(config), TrackedRun(config, "", 0))
    (line,) = lines
    assert line.endswith("in this start: its files grow, which files in a bucket cannot")


def test_run_of_wandb_belongs_to_the_directory(tmp_path, monkeypatch):
    """Two studies with a run of one name; one run goes on, and its folder is moved meanwhile."""
    wandb = mock.Mock(__spec__=True)
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    def mirror_run(study):
        config = small_run.config(tmp_path / study / "x", name="x/y" * 50, log__trackers=WANDB)
        if not (tmp_path / study).exists():
            run_json.write_run_file(tmp_path / study / "x", run_file(id=study))
        with open_mirrors(config, 0) as mirrors:
            mirrors.write(3, 30, {"lr": 0.25})
        return types.SimpleNamespace(**wandb.init.call_args.kwargs)

    first, other = mirror_run("a"), mirror_run("b")
    (tmp_path / "a").rename(tmp_path / "c")
    assert first.id == mirror_run("c").id != other.id
    assert re.fullmatch("[0-9a-f]{1,64}", first.id)
    assert (first.resume, first.config["optimizer"]["b2"]) == ("allow", 0.98)


def test_wandb_has_all_rows_whatever_their_order(tmp_path, monkeypatch):
    """The second start repeats an evaluation of a step that the first has passed."""
    monkeypatch.setitem(sys.modules, "wandb", wandb_stub)
    run_json.write_run_file(tmp_path, run_file(id="a"))
    config = small_run.config(tmp_path, log__trackers=WANDB)
    written = [(12, "train/loss"), (10, "eval/f25/loss"), (10, "train/loss"), (12, "train/loss")]
    for half in (written[:1], written[1:]):
        with open_mirrors(config, 0) as mirrors:
            for step, name in half:
                mirrors.write(step, 10 * step, {name: 0.25})
    rows = [
        {x: y for x, y in row.items() if x != "_step"} for row in wandb_stub.read_rows(tmp_path)
    ]
    assert rows == [{name: 0.25, "step": step, "tokens": 10 * step} for step, name in written]


@pytest.fixture(name="calls")
def calls_fixture(monkeypatch):
    monkeypatch.setattr(recording_tracker, "calls", calls := [])
    return calls


@pytest.mark.parametrize("fails", ["", "open", "write", "tell", "sync", "close"])
def test_failure_of_a_mirror_ends_its_rows_and_no_run(fails, dataset, tmp_path, calls):
    trackers = {"recording_tracker:Recording": {"fails": fails}}
    outcome, output = start(tmp_path / "run", dataset, log__trackers=trackers)
    assert outcome.reason == "stop"
    assert output.count("SystemExit: no connection") == (1 if fails else 0)
    rows = [(x.step, x.tokens, x.values) for x in read_records(tmp_path / "run")]
    assert [step for step, *_ in rows] == [3, 5, 6, 9, 10]
    written = [x[1:] for x in calls if x[0] == "write"]
    assert written == {"open": [], "write": rows[:1], "sync": rows[:1]}.get(fails, rows)
    if fails != "open":
        (*_, (tell, event, step, text), close) = calls
        assert (tell, event, step, close) == ("tell", "stop", 10, ("close",))
        assert "10 steps" in text


@pytest.mark.parametrize("ending", ["interrupted", "failure"])
def test_mirror_hears_how_a_start_ends(ending, dataset, tmp_path, calls, monkeypatch):
    checks = itertools.count()

    def interrupted():
        return ending == "interrupted" and next(checks) == 4

    if ending == "failure":
        fail = mock.Mock(side_effect=RunError("no space"))
        monkeypatch.setattr(RecordWriter, "write", fail)
    with contextlib.suppress(RunError):
        trackers = {"recording_tracker:Recording": {}}
        start(tmp_path / "run", dataset, interrupted, log__trackers=trackers)
    *_, (tell, event, step, text), close = calls
    assert (tell, event, close) == ("tell", ending, ("close",))
    assert (step, text) == (3, "no space") if ending == "failure" else "4 steps" in text


def test_runs_are_read_without_trust_in_their_trackers(dataset, tmp_path):
    """Only a branch, which would open them, needs it."""
    start(tmp_path / "run", dataset, log__trackers={"recording_tracker:Recording": {}})
    config = api.open_run(tmp_path / "run").config
    for read in (lambda: read_trackers(config), lambda: decay_settings(str(tmp_path / "run"))):
        with pytest.raises(InputError, match="--trust=recording_tracker"):
            read()
    settings = decay_settings(str(tmp_path / "run"), trust=["recording_tracker"])
    assert settings["log"]["trackers"] == (("recording_tracker:Recording", ()),)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wandb", {"project": "mine"}),  # not installed
        ("wandb", {"project": "\x1b[0m"}),
        ("wandb", {}),
        ("tensorboard", {"project": "mine"}),
        ("tensorboard", True),
        ("mlflow", {}),
    ],
)
def test_tracker_that_is_none_is_refused(name, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = small_run.config("run", log__trackers={name: settings})
    with pytest.raises(InputError, match=rf"config\.log\.trackers\.{name}"):
        read_trackers(config)


def test_clock_that_stands_still_gives_no_speed(monkeypatch):
    monkeypatch.setattr(metric_rows.time, "perf_counter", lambda: 1.0)
    measured = push(make_rows(least_seconds=lambda step: 1.0), range(1, 20))
    assert not any({"tokens_per_s", "mfu"} & x.row.keys() for x in measured if x.row)
