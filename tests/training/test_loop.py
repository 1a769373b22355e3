"""The contract of the loop: however a run is stopped, killed and resumed, it is the same run.

Bitwise, on one CPU device. Log, evaluation and checkpoint intervals leave no trace in the weights.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from small_run import same_bits
from training_runs import (
    EVAL_NAMES,
    MEANS,
    TRAIN_NAMES,
    after,
    bits,
    records,
    saved,
    start,
    update_by_hand,
)

from anytime_jax import averaging
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError
from anytime_jax.training import loop
from anytime_jax.training.due_steps import Event
from anytime_jax.training.evaluator import Evaluator, weight_trees
from anytime_jax.training.loop import Outcome

RARELY = {"checkpoint__every": "100 steps"}  # saves at milestones and at the end alone


def first_state(config):
    return small_run.program(config, small_run.mesh()).init()


# What a run leaves


def test_records_hold_means_and_evaluations(whole, dataset, tmp_path):
    rows = {step: set(values) for step, _, values in records(whole)}
    trained = {step for step, names in rows.items() if names & TRAIN_NAMES}
    assert trained == {3, 6, 9, 12, 15, 18}
    assert {step for step, names in rows.items() if names & EVAL_NAMES} == {5, 10, 15, 20}
    for names in rows.values():
        assert names in (TRAIN_NAMES, EVAL_NAMES, TRAIN_NAMES | EVAL_NAMES)
    assert all(
        tokens == step * small_run.BATCH * small_run.LENGTH for step, tokens, _ in records(whole)
    )
    # A run that writes every update has the numbers that the means are made of.
    _, output = start(tmp_path, dataset, log__every="1 steps", stop="2x", **RARELY)
    assert "from     0 steps (0x, 0 tokens) to 20 steps (2x, 1.28K tokens)" in output
    each = {step: values for step, _, values in records(tmp_path)}
    for step, _, values in records(whole):
        for name in TRAIN_NAMES & values.keys():
            parts = [each[s][name] for s in range(step - 2, step + 1)]
            expected = math.fsum(parts) / 3 if name in MEANS else parts[-1]
            assert values[name] == pytest.approx(expected, rel=1e-12)
    assert each[20]["train/loss"] < each[1]["train/loss"] - 1  # it learned


def test_evaluation_matches_checkpoint_of_its_step(whole, dataset):
    order = {"seed": 0, "repeat": True}
    windows = Windows(dataset, "validation", length=small_run.LENGTH, **order)
    program = small_run.program(small_run.config("unused"), small_run.mesh())
    evaluate = Evaluator(program, windows, small_run.LENGTH, 10, 8, small_run.mesh())
    values = {step: values for step, _, values in records(whole)}[10]
    for label, loss in evaluate.losses(weight_trees(saved(whole, 10).state)).items():
        assert values[f"eval/{label}/loss"] == loss


def test_updates_use_windows_in_order_of_the_seed(whole, dataset):
    config = small_run.config("unused")
    *_, (state, _) = update_by_hand(first_state(config), config, dataset, [8] * 20)
    assert same_bits(state, saved(whole, 20).state)


@pytest.mark.slow
def test_growing_batch_uses_the_next_samples(dataset, tmp_path):
    """By hand, in one go, and with a stop on either side of the growth."""
    grown = {"batch_growth": (("1x", 16),), "microbatches": 2, "data__repeat": True}
    grown["log__every"] = "1 steps"
    outcome, _ = start(tmp_path / "whole", dataset, stop="3x", **grown)
    assert outcome == Outcome(20, "stop")  # 10 of 8 windows, 10 of 16: three times 80
    meta = saved(tmp_path / "whole", 20).meta
    assert (meta["samples"], meta["tokens"], meta["multiple"]) == (240, 1920, 3.0)
    assert [row[:2] for row in records(tmp_path / "whole")][-2:] == [(19, 1792), (20, 1920)]
    config = small_run.config("unused", **grown)
    *_, (state, _) = update_by_hand(first_state(config), config, dataset, [8] * 10 + [16] * 10)
    assert same_bits(state, saved(tmp_path / "whole", 20).state)
    for stop in ("7 steps", "13 steps", "3x"):
        start(tmp_path / "parts", dataset, stop=stop, **grown)
    assert bits(tmp_path / "parts", 20) == bits(tmp_path / "whole", 20)
    parts, whole = (
        [row[2]["train/loss"] for row in records(tmp_path / name)] for name in ("parts", "whole")
    )
    assert parts == whole


def test_milestone_checkpoints_are_kept(whole, dataset, tmp_path):
    assert saved_steps(whole) == [9, 10, 18, 20]  # 4, 8, 12 and 16 are gone
    start(tmp_path, dataset, stop="16 steps", checkpoint__keep_every="6 steps")
    assert saved_steps(tmp_path) == [6, 9, 10, 12, 16]


def test_meta_describes_the_checkpoint(whole, dataset):
    meta = saved(whole, 10).meta
    assert meta["step"] == 10
    assert meta["samples"] == 80
    assert meta["tokens"] == 640
    assert meta["multiple"] == 1.0
    assert set(meta["averages"]) == {"f6.25", "f25"}
    assert meta["fingerprint"] == dataset.fingerprint
    assert meta["config"]["schedule"]["alpha"] == 7.0
    assert meta["jax"] == jax.__version__
    assert {len(values) for values in meta["interval"].values()} == {1}  # update 10, after row 9
    assert meta["checksums"].keys() == {"params", "opt", "averages"}


# Stopping and going on


def check_equals_whole(run, whole):
    """Compares weights to the bit, and records, with those of the uninterrupted run."""
    assert bits(run, 20) == bits(whole, 20)
    assert records(run) == records(whole)
    assert saved_steps(run)[-1] == 20


def test_stopped_and_resumed_run_equals_unbroken_one(whole, dataset, tmp_path):
    assert start(tmp_path, dataset, stop="1x")[0] == Outcome(10, "stop")
    assert bits(tmp_path, 10) == bits(whole, 10)  # whatever comes later
    outcome, output = start(tmp_path, dataset, stop="2x")
    assert outcome == Outcome(20, "stop")
    assert "from     10 steps (1x, 640 tokens) to 20 steps" in output
    assert re.search(r"^update   compiling \.\.\.\nupdate   compiled in ", output, re.MULTILINE)
    check_equals_whole(tmp_path, whole)
    assert saved_steps(tmp_path) == saved_steps(whole)
    assert saved(tmp_path, 20).meta["samples"] == 160


def test_interrupted_run_resumes_to_the_same_bits(whole, dataset, tmp_path):
    for updates, step in ((7, 7), (0, 7), (4, 11)):
        outcome, _ = start(tmp_path, dataset, after(updates), stop="2x")
        assert outcome == Outcome(step, "interrupted")
        assert saved_steps(tmp_path)[-1] == step
    start(tmp_path, dataset, stop="2x")
    check_equals_whole(tmp_path, whole)


def test_killed_run_resumes_from_its_last_checkpoint(whole, dataset, tmp_path):
    for updates in (7, 10):  # after 4, the checkpoint before 7; after 12, the one before 14
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, dataset, after(updates, error=KeyboardInterrupt()), stop="2x")
    assert saved_steps(tmp_path)[-1] == 12
    start(tmp_path, dataset, stop="2x")
    check_equals_whole(tmp_path, whole)


def test_intervals_may_change_without_effect_on_weights(whole, dataset, tmp_path):
    intervals = {"log__every": "4 steps", "eval__every": "7 steps", "checkpoint__every": "5 steps"}
    counts = {"eval__tokens": 5 * small_run.LENGTH, "checkpoint__keep": 1}
    start(tmp_path, dataset, stop="13 steps", **intervals, **counts)
    start(tmp_path, dataset, stop="2x", log__every="1 steps", **RARELY)
    assert bits(tmp_path, 10) == bits(whole, 10)
    assert bits(tmp_path, 20) == bits(whole, 20)


def test_finished_run_does_nothing(whole, dataset, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    before = sorted(p.name for p in (run / "records").iterdir())
    assert start(run, dataset, stop="2x")[0] == Outcome(20, "stop")
    assert start(run, dataset, stop="1x")[0] == Outcome(20, "stop")
    assert sorted(p.name for p in (run / "records").iterdir()) == before
    assert saved_steps(run) == [9, 10, 18, 20]


@pytest.mark.slow
def test_stop_with_plus_continues_to_next_doubling(whole, dataset, tmp_path):
    assert start(tmp_path, dataset, stop="1x+")[0] == Outcome(10, "stop")
    assert start(tmp_path, dataset, after(5), stop="1x+")[0] == Outcome(15, "interrupted")
    assert start(tmp_path, dataset, stop="1x+")[0] == Outcome(20, "stop")
    assert bits(tmp_path, 20) == bits(whole, 20)


@pytest.mark.slow
def test_run_resumes_on_another_mesh(whole, dataset, tmp_path):
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
    start(tmp_path, dataset, stop="1x")
    outcome, _ = start(tmp_path, dataset, mesh=mesh, stop="2x", microbatches=2)
    assert outcome == Outcome(20, "stop")
    wanted = {step: values for step, _, values in records(whole)}
    for step, _, values in records(tmp_path):
        for name, value in values.items():
            assert value == pytest.approx(wanted[step][name], abs=1e-5, rel=1e-4), (step, name)


@pytest.mark.slow
def test_averages_may_be_added_and_dropped(whole, dataset, tmp_path):
    start(tmp_path, dataset, stop="1x")
    config = small_run.config(tmp_path, averages=("f25", "f100"))
    _, output = start(tmp_path, dataset, stop="2x", averages=("f25", "f100"))
    assert "average f100 is new: it starts from the weights at step 10" in output
    assert "average f6.25 is no longer kept" in output
    actual = small_run.leaves(saved(tmp_path, 20, config).state)
    expected = small_run.leaves(saved(whole, 20).state)
    for name, leaf in actual.items():
        if "f100" not in name:  # the rest does not notice
            assert leaf.tobytes() == expected[name].tobytes(), name
    # f100 by its rule in float64, from the weights at step 10 on.
    state, config = saved(whole, 10).state, small_run.config("unused")
    head = np.asarray(state.params["head"], np.float64)
    for after_update, _ in update_by_hand(state, config, dataset, [8] * 10, first=80):
        weight = float(averaging.GrowingWindow(100.0).evaluate(int(after_update.step)))
        head += weight * (np.asarray(after_update.params["head"], np.float64) - head)
    (average,) = (x for k, x in actual.items() if "['f100']['head']" in k)
    np.testing.assert_allclose(average, head, rtol=0, atol=2e-7)
    rows = {step: values for step, _, values in records(tmp_path)}
    assert rows[15].keys() >= {"eval/last/loss", "eval/f25/loss", "eval/f100/loss"}
    assert "eval/f6.25/loss" not in rows[15]


# Data


def shortened(dataset, windows):
    tokens = windows * small_run.LENGTH + 1
    split = dataclasses.replace(dataset.splits["train"], tokens=tokens)
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": split})


def test_run_without_stop_ends_with_its_data(dataset, tmp_path):
    short = shortened(dataset, 13 * small_run.BATCH + 3)
    assert start(tmp_path, short, stop="never", **RARELY)[0] == Outcome(13, "data")
    assert saved_steps(tmp_path)[-1] == 13
    assert start(tmp_path, short, stop="never", **RARELY)[0] == Outcome(13, "data")
    # The end is evaluated, wherever it falls.
    assert [row[0] for row in records(tmp_path) if row[2].keys() >= EVAL_NAMES] == [5, 10, 13]


def test_rejects_stop_past_the_data(dataset, tmp_path):
    short = shortened(dataset, 13 * small_run.BATCH + 3)
    message = r"config\.stop = '2x' needs 160 windows.* has 107, enough for 13 steps \(1\.3x, 832"
    with pytest.raises(InputError, match=message):
        start(tmp_path, short, stop="2x")


def test_repeated_data_do_not_end(dataset, tmp_path):
    short = shortened(dataset, 5 * small_run.BATCH)
    outcome, _ = start(tmp_path, short, after(12), stop="never", data__repeat=True, **RARELY)
    assert outcome == Outcome(12, "interrupted")
    assert saved(tmp_path, 12).meta["samples"] == 96


def test_evaluation_of_all_tokens(dataset, tmp_path):
    start(tmp_path, dataset, stop="5 steps", eval__tokens="all")
    windows = dataset.splits["validation"].windows(small_run.LENGTH)
    assert small_run.config(tmp_path, eval__tokens="all").eval_windows(windows) == windows > 10
    (evaluated,) = [x for step, _, x in records(tmp_path) if "eval/last/loss" in x]
    split = Windows(dataset, "validation", length=small_run.LENGTH, seed=0, shuffle=False)
    tokens = jnp.asarray(split.batch(0, windows))
    params = saved(tmp_path, 5).state.params
    program = small_run.program(small_run.config("run"), small_run.mesh())
    total = program.eval_step(params, tokens, jnp.ones(windows))
    expected = float(total) / (windows * small_run.LENGTH)
    assert evaluated["eval/last/loss"] == pytest.approx(expected, rel=1e-6)


def test_evaluation_pads_no_batch_beyond_the_windows(dataset, tmp_path):
    """A batch of 2^30 windows would not fit any memory."""
    changes = {"eval__batch_size": 2**30, "stop": "5 steps"}
    assert start(tmp_path, dataset, **changes)[0] == Outcome(5, "stop")
    assert small_run.config(tmp_path, dataset.path, **changes).eval_windows(99) == 10


class Script:
    """A run that writes down what the loop does with it."""

    def __init__(self, stop, interrupted_at=None, misses_evaluation=False):
        self.state, self.step, self.stop, self.misses_evaluation = 0, 0, stop, misses_evaluation
        self.plan = types.SimpleNamespace(reason="stop", has_data_to=lambda step: True)
        self.saves, self.evaluations = Event(2, {}.get, stop), Event(2, {}.get, math.inf)
        self.batches, self.calls = itertools.count(), []
        self.profiled = contextlib.nullcontext
        self.interrupted = lambda: self.step_made == interrupted_at
        self.step_made = 0

    def read_batch(self):
        return next(self.batches)

    def update(self, state, batch):
        self.calls.append(f"update {batch}")
        self.step_made += 1
        return state + 1, {}

    def record(self, step, metrics):
        self.calls.append(f"record {step}")

    def save(self, step, state):
        assert state == step
        self.calls.append(f"save {step}")

    def evaluate(self, step, state):
        assert state == step
        self.misses_evaluation = self.interrupted()
        self.calls.append(f"evaluate {step}")

    def finish(self, step, state):
        assert state == step
        self.calls.append(f"finish {step}")


@pytest.mark.parametrize(
    ("settings", "outcome", "expected"),
    [
        (
            {"stop": 3},
            Outcome(3, "stop"),
            [
                *("update 0", "record 1", "update 1", "record 2", "save 2", "evaluate 2"),
                *("update 2", "record 3", "save 3", "finish 3"),
            ],
        ),
        (
            {"stop": math.inf, "interrupted_at": 1},
            Outcome(1, "interrupted"),
            ["update 0", "record 1", "finish 1"],
        ),
        (
            {"stop": 2, "interrupted_at": 2},  # in the evaluation at the stop
            Outcome(2, "interrupted"),
            ["update 0", "record 1", "update 1", "record 2", "save 2", "evaluate 2", "finish 2"],
        ),
        (
            {"stop": 1, "misses_evaluation": True},
            Outcome(1, "stop"),
            ["evaluate 0", "update 0", "record 1", "save 1", "finish 1"],
        ),
        ({"stop": 0}, Outcome(0, "stop"), ["finish 0"]),
    ],
    ids=["to the stop", "interrupted", "interrupted at the stop", "missed evaluation", "at stop"],
)
def test_loop_records_then_saves_then_evaluates(settings, outcome, expected, monkeypatch):
    run = Script(**settings)
    start = contextlib.nullcontext(run)
    monkeypatch.setattr(loop, "start", lambda *unused, **options: start)
    assert loop.train(small_run.config("run")) == outcome
    assert run.calls == expected
