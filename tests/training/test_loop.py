"""The contract of the loop: however a run is stopped, killed and resumed, it is the same run.

Bitwise, on one CPU device. Log, evaluation and checkpoint intervals leave no trace in the weights.
"""

import dataclasses
import math
import time

import jax
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
from anytime_jax.checkpoints.metric_records import read_starts
from anytime_jax.errors import InputError
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
    start(tmp_path, dataset, log__every="1 steps", stop="2x", **RARELY)
    each = {step: values for step, _, values in records(tmp_path)}
    for step, _, values in records(whole):
        for name in TRAIN_NAMES & values.keys():
            parts = [each[s][name] for s in range(step - 2, step + 1)]
            expected = math.fsum(parts) / 3 if name in MEANS else parts[-1]
            assert values[name] == pytest.approx(expected, rel=1e-12)
    assert each[20]["train/loss"] < each[1]["train/loss"] - 1  # it learned


def test_seconds_of_a_start_are_recorded_up_to_its_end(dataset, tmp_path):
    began = time.perf_counter()
    start(tmp_path, dataset, stop="11 steps")
    total = time.perf_counter() - began
    (header,) = read_starts(tmp_path)
    steps, seconds = zip(*header["seconds"], strict=True)
    assert steps == (3, 4, 5, 6, 8, 9, 9, 10, 10, 11, 11, 11)  # rows, saves, evaluations, the end
    names = {"updates", "evaluation", "saving", "compiling", "waiting for data"}
    assert set(seconds[-1]) == names
    assert all(x > 0 for x in seconds[-1].values())
    sums = [sum(x.values()) for x in seconds]
    assert sums == sorted(sums)
    assert 0.5 * total < sums[-1] < total


def test_updates_use_windows_in_order_of_the_seed(whole, dataset):
    config = small_run.config("unused")
    *_, (state, _) = update_by_hand(first_state(config), config, dataset, [8] * 20)
    assert same_bits(state, saved(whole, 20).state)


def test_milestone_checkpoints_are_kept(whole, dataset, tmp_path):
    assert saved_steps(whole) == [9, 10, 18, 20]  # 4, 8, 12 and 16 are gone
    start(tmp_path, dataset, stop="16 steps", checkpoint__keep_every="6 steps")
    assert saved_steps(tmp_path) == [6, 9, 10, 12, 16]


def test_meta_describes_the_checkpoint(whole, dataset):
    meta = saved(whole, 10).meta
    assert (meta.step, meta.samples, meta.tokens, meta.multiple) == (10, 80, 640, 1.0)
    assert set(meta.averages) == {"f6.25", "f25"}
    assert meta.fingerprint == dataset.fingerprint
    assert meta.config["schedule"]["alpha"] == 7.0
    assert meta.jax == jax.__version__
    assert {len(values) for values in meta.interval.values()} == {1}  # update 10, after row 9
    assert meta.checksums.keys() == {"params", "opt", "averages"}


# Stopping and going on


def check_equals_whole(run, whole):
    """Compares weights to the bit, and records, with those of the uninterrupted run."""
    assert bits(run, 20) == bits(whole, 20)
    assert records(run) == records(whole)
    assert saved_steps(run) == saved_steps(whole)


def test_interrupted_run_resumes_to_the_same_bits(whole, dataset, tmp_path):
    for updates, step in ((7, 7), (0, 7)):
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
    start(tmp_path, dataset, stop="2x", averages=("f25", "f100"))
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
    with pytest.raises(InputError, match=r"config\.stop = '2x': .* 13 steps"):
        start(tmp_path, short, stop="2x")
