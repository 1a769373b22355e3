"""Faults of a run in flight: it ends in one line at a good checkpoint, or continues if told to."""

import dataclasses
import errno
import itertools
import json
import math
import shutil

import jax
import jax.numpy as jnp
import pytest
import recording_tracker
import small_run
from training_runs import EVAL_NAMES, bits, records, saved, start
from wrapped_step import WrappedStep

from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.distributed import processes
from anytime_jax.errors import ProcessLostError, RunError
from anytime_jax.storage.json_files import json_digest
from anytime_jax.training import plan as plan_lib
from anytime_jax.training import step as step_lib
from anytime_jax.training.loop import Outcome
from anytime_jax.training.objective import Objective

BAD_TOKEN = 299  # which fills a batch whose loss is not a number
_compiled = []


def change_updates(monkeypatch, change):
    """Replaces the train step by `change(config, program)`."""

    def make(config, mesh, rules, **options):
        program = small_run.program(config, mesh, rules, **options)
        return dataclasses.replace(program, train_step=WrappedStep(change(config, program)))

    monkeypatch.setattr(plan_lib, "make_program", make)


def spoil_updates(monkeypatch, updates):
    """Makes the loss of some updates, and so their gradient, not a number."""
    loss_and_sums = Objective.loss_and_sums

    def spoiled(objective, params, sums, tokens, scale):
        is_bad = (tokens[:, :1] == BAD_TOKEN).all()
        loss, sums = loss_and_sums(objective, params, sums, tokens, scale)
        return loss * jnp.where(is_bad, jnp.nan, 1.0), sums

    def change(config, _):
        if not _compiled:  # once for all tests
            _compiled.append(step_lib.make_program(config, small_run.mesh()).train_step)

        def train_step(state, tokens, rate):
            if int(state.step) + 1 in updates:
                tokens = jnp.full_like(tokens, BAD_TOKEN)
            return _compiled[0](state, tokens, rate)

        return train_step

    change_updates(monkeypatch, change)
    monkeypatch.setattr(Objective, "loss_and_sums", spoiled)


def assert_finite(run, step):
    assert saved_steps(run)[-1] == step
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(saved(run, step).state))


def check_equals_whole(run, whole):
    assert bits(run, 20) == bits(whole, 20)
    assert records(run) == records(whole)


def test_nonfinite_loss_ends_run_at_last_good_checkpoint(whole, dataset, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        spoil_updates(patch, {7})
        message = r"update 7 \(samples 48 to 55\) .* step 4.* --config\.guard\.skip=nonfinite"
        with pytest.raises(RunError, match=message):
            start(tmp_path, dataset, stop="2x")
    assert_finite(tmp_path, 4)
    # Without the fault, the run resumes and equals the unbroken one.
    assert start(tmp_path, dataset, stop="2x")[0] == Outcome(20, "stop")
    check_equals_whole(tmp_path, whole)


def test_bad_updates_are_skipped_and_counted(dataset, tmp_path, monkeypatch):
    spoil_updates(monkeypatch, {7, 12, 13})
    monkeypatch.setattr(recording_tracker, "calls", calls := [])
    changes = {"guard__skip": "nonfinite", "guard__limit": 2, "checkpoint__every": "100 steps"}
    changes["log__trackers"] = {"recording_tracker:Recording": {}}
    outcome, output = start(tmp_path, dataset, stop="2x", **changes)
    assert outcome == Outcome(20, "stop")
    assert "update 7 (samples 48 to 55) has a loss of nan" in output
    assert "skipped, 3 so far" in output
    told = [x[1:3] for x in calls if x[0] == "tell"]
    assert told == [("skip", 7), ("skip", 12), ("skip", 13), ("stop", 20)]
    rows = {step: values for step, _, values in records(tmp_path)}
    skipped = {step: row["train/skipped"] for step, row in rows.items() if "train/skipped" in row}
    assert skipped == {3: 0, 6: 0, 9: 1, 12: 2, 15: 3, 18: 3}
    assert all(math.isfinite(x) for values in rows.values() for x in values.values())
    assert_finite(tmp_path, 20)
    leaves = small_run.leaves(saved(tmp_path, 20).state)
    counts = {k: int(x) for k, x in leaves.items() if k.endswith((".step", ".count"))}
    assert {x for k, x in counts.items() if "inner_state" in k} == {17}  # good updates
    assert {x for k, x in counts.items() if "inner_state" not in k} == {20}


def test_too_many_consecutive_bad_updates_end_run(dataset, tmp_path, monkeypatch):
    spoil_updates(monkeypatch, {6, 7, 8})
    # Five samples before this update are left out, and the numbers are those of `data.skip`.
    message = r"update 8 \(samples 61 to 68\) .*: bad update number 3 in a row; .* step 4"
    changes = {"guard__skip": "nonfinite", "guard__limit": 2, "data__skip": ((3, 5), (40, 41))}
    with pytest.raises(RunError, match=message):
        start(tmp_path, dataset, stop="2x", **changes)


def test_full_disk_ends_run_in_one_line(dataset, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device", "0000.jsonl")

    monkeypatch.setattr(RecordWriter, "write", fail)
    with pytest.raises(RunError, match=r"No space left on device.* none"):
        start(tmp_path, dataset, stop="2x")


@pytest.fixture
def fail_update(monkeypatch):
    """Makes the update from step 5 raise an error."""

    def fail(error):
        def change(config, program):
            def train_step(state, tokens, rate):
                if int(state.step) == 5:
                    raise error
                return program.train_step(state, tokens, rate)

            return train_step

        change_updates(monkeypatch, change)

    return fail


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [("RESOURCE_EXHAUSTED: Out of memory", False), ("UNKNOWN: Connection closed by peer", True)],
)
def test_expected_error_of_the_runtime_ends_run_in_one_line(
    message, is_lost, dataset, tmp_path, monkeypatch, fail_update
):
    """A lost process has a status of its own."""
    fail_update(jax.errors.JaxRuntimeError(message))
    monkeypatch.setattr(processes, "is_sign_of_loss", lambda error: is_lost)
    with pytest.raises(RunError, match=message) as caught:
        start(tmp_path, dataset, stop="2x")
    assert isinstance(caught.value, ProcessLostError) == is_lost
    assert_finite(tmp_path, 4)


def test_any_other_error_of_an_update_is_raised_as_it_is_and_names_the_checkpoint(
    dataset, tmp_path, fail_update
):
    error = KeyError("of a class of the user")
    fail_update(error)
    with pytest.raises(KeyError) as caught:
        start(tmp_path / "Run", dataset, stop="2x")
    assert caught.value is error
    assert "step 4" in error.__notes__[0]
    assert str(tmp_path / "Run") in error.__notes__[0]


def damage(run, step):
    """Makes the checksum of a weight that of other numbers, as a flipped bit would."""
    file = run / "checkpoints" / str(step) / "meta" / "metadata"
    meta = json.loads(file.read_text())
    meta["checksums"]["params"]["head"] += "1"
    del meta["digest"]
    file.write_text(json.dumps({**meta, "digest": json_digest(meta)}))


def test_fall_back_resumes_from_newest_good_checkpoint(whole, dataset, tmp_path):
    def entries():
        return sorted(path for path in tmp_path.rglob("*") if "records" not in path.parts)

    start(tmp_path, dataset, stop="9 steps")
    damage(tmp_path, 9)
    before = entries()
    with pytest.raises(RunError, match=r"checkpoints/9: params/head .* step 8: --fall-back"):
        start(tmp_path, dataset, stop="2x")
    assert entries() == before
    (tmp_path / "checkpoints" / "12").mkdir()
    with pytest.raises(RunError, match=r"checkpoints/12: .* step 8"):
        start(tmp_path, dataset, stop="2x")
    outcome, output = start(tmp_path, dataset, stop="2x", fall_back=True)
    assert outcome == Outcome(20, "stop")
    for message in ("set aside as 12.damaged", "set aside as 9.damaged", "from     8 steps"):
        assert message in output
    assert bits(tmp_path, 20) == bits(whole, 20)
    rows = [row for row in records(tmp_path) if row[0] != 9]  # evaluated, as the stop was at 9
    assert rows == [row for row in records(whole) if row[0] != 9]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {"9", "9.damaged", "12.damaged"} <= names


def in_the_evaluation_at_10():
    """Returns an `interrupted` that is true from there on."""
    calls = itertools.count(1)  # before every update, and in the evaluation at 5
    return lambda: next(calls) > 12


def test_kill_in_an_evaluation_loses_no_update(dataset, tmp_path):
    is_there = in_the_evaluation_at_10()

    def interrupted():
        if is_there():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, dataset, interrupted, stop="2x")
    assert saved_steps(tmp_path)[-1] == 10


def test_interrupted_evaluation_is_made_by_next_start(whole, dataset, tmp_path):
    """After a signal during the evaluation, in the middle of the run and at its stop."""
    interrupted = in_the_evaluation_at_10()
    assert start(tmp_path, dataset, interrupted, stop="2x")[0] == Outcome(10, "interrupted")
    assert 10 not in [step for step, _, values in records(tmp_path) if EVAL_NAMES & values.keys()]
    assert start(tmp_path, dataset, stop="1x")[0] == Outcome(10, "stop")  # the evaluation alone
    assert records(tmp_path) == [row for row in records(whole) if row[0] <= 10]
    shutil.rmtree(tmp_path / "records")
    start(tmp_path, dataset, stop="2x")
    first, *others = records(tmp_path)
    assert first[0] == 10
    assert others == [row for row in records(whole) if row[0] > 10]
    assert bits(tmp_path, 20) == bits(whole, 20)
