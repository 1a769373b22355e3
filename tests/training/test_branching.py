"""Branches: what they inherit, what they may change, and that their trunk stays as it is."""

import dataclasses
import os
import shutil

import jax
import numpy as np
import numpy_decoder
import pytest
import small_run
from paths import REPOSITORY
from training_runs import after, bits, finished, recording, records, saved, start, updates

from anytime_jax import averaging, schedules
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.checkpoint_reader import read_meta
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.checkpoints.run_json import BranchPoint, read_run_file, run_id
from anytime_jax.commands import config_file, train
from anytime_jax.commands.loss_table import evaluated_rows, validation_sets
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.windows import Windows, order_seed
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import branching, loop
from anytime_jax.training import plan as plan_lib
from anytime_jax.training.loop import Outcome

CONSTANT = {"kind": "constant", "peak": 1e-2, "warmup": "3 steps"}
TRUNK = {"schedule": CONSTANT, "checkpoint__every": "100 steps"}  # saved at milestones alone
HIGHER = {**CONSTANT, "peak": 2e-2}
DECAY = {"schedule": CONSTANT, "decay__floor": 0.1, "stop": "horizon"}


@pytest.fixture(scope="module")
def trunk(dataset, tmp_path_factory):
    """A constant run to 2x, 20 updates: milestones 9, 10, 18, 20."""
    return finished(tmp_path_factory, "trunk", dataset, stop="2x", **TRUNK)


@pytest.fixture(scope="module")
def branched(trunk, dataset, tmp_path_factory):
    """A WSD branch of the trunk to 2x, which records every update."""
    run = tmp_path_factory.mktemp("branched") / "branch"
    assert leave(run, trunk, dataset, log__every="1 steps")[0] == Outcome(20, "stop")
    return run


def leave(run, trunk, dataset, **changes):
    """Starts or resumes a WSD branch, by default to 2x."""
    if "stop" not in changes:
        changes = {**DECAY, "decay__horizon": "2x", **changes}
    changes = {"schedule": CONSTANT, **changes}
    return start(run, dataset, branch__from_run=str(trunk), **changes)


def files_and_times(folder):
    """Content and time of every file under a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), os.stat(path).st_mtime_ns) for path in files}


# What a branch is


def test_branch_equals_run_that_decays_there(branched, trunk, dataset, tmp_path):
    """Bitwise: parameters, moments, averages and records of a WSD run that never branched."""
    whole = {**TRUNK, **DECAY, "decay__horizon": "2x", "log__every": "1 steps"}
    start(tmp_path, dataset, **whole)
    assert bits(branched, 20) == bits(tmp_path, 20)
    assert records(branched) == [row for row in records(tmp_path) if row[0] > 18]
    assert bits(branched, 20) != bits(trunk, 20)


def test_trunk_is_unchanged(trunk, dataset, tmp_path):
    before = files_and_times(trunk)
    leave(tmp_path, trunk, dataset)
    assert files_and_times(trunk) == before


def test_branch_continues_averages(trunk, dataset, tmp_path):
    """In float64, from the trunk's averages and the weights after each of its own updates."""
    leave(tmp_path, trunk, dataset, checkpoint__every="1 steps", checkpoint__keep=5)
    before = small_run.leaves(averaging.averages(saved(trunk, 18).state.opt_state)["f25"])
    for step in (19, 20):
        state = saved(tmp_path, step).state
        theta = small_run.leaves(state.params)
        left = 1 - 2 ** (-25 / step)
        before = {k: x + left * (theta[k].astype(np.float64) - x) for k, x in before.items()}
    average = small_run.leaves(averaging.averages(state.opt_state)["f25"])
    for name, expected in before.items():
        np.testing.assert_allclose(average[name], expected, rtol=1e-5, atol=1e-7)


def test_branch_records_its_trunk(branched, trunk):
    digest = read_meta(trunk / "checkpoints" / "18").digest
    run_file = read_run_file(branched)
    assert run_file.branch == BranchPoint(str(trunk), 18, digest, run_id(trunk))
    assert run_file.identity["branch.checkpoint"] == digest
    assert read_meta(branched / "checkpoints" / "20").config["branch"]["from_run"] == str(trunk)


# Resuming


def test_branch_resumes_without_its_trunk(branched, trunk, whole, dataset, tmp_path):
    mine = shutil.copytree(trunk, tmp_path / "trunk")
    outcome, _ = leave(tmp_path / "cut", mine, dataset, interrupted=after(1))
    assert outcome == Outcome(19, "interrupted")
    shutil.rmtree(mine)
    leave(tmp_path / "cut", mine, dataset, **{**DECAY, "decay__horizon": "2x", "stop": "20 steps"})
    shutil.copytree(whole, mine)  # another run takes the trunk's place
    leave(tmp_path / "cut", mine, dataset)
    assert bits(tmp_path / "cut", 20) == bits(branched, 20)


@pytest.mark.slow
def test_branch_of_a_branch(trunk, dataset, tmp_path):
    leave(tmp_path / "on", trunk, dataset, schedule=CONSTANT, stop="4x", branch__at="20 steps")
    leave(tmp_path / "decay", tmp_path / "on", dataset, decay__horizon="4x")
    start(tmp_path / "whole", dataset, **DECAY, decay__horizon="4x")
    assert bits(tmp_path / "decay", 40) == bits(tmp_path / "whole", 40)


# Other data


@pytest.fixture(scope="module")
def second(dataset, tmp_path_factory):
    """Other text of the same vocabulary."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "text").mkdir()
    for i in range(60):
        (folder / "text" / f"{i}.txt").write_text(f"{'zebra ' * (i % 7 + 1)} jumps {i} " * 6)
    source = FileSource(str(folder / "text"), validation_fraction=0.3)
    path, vocabulary = folder / "data", dataset.vocabulary_path
    return prepare(source, path, vocabulary=vocabulary, workers=1)


def test_branch_reads_other_data_from_their_start(trunk, dataset, second, tmp_path):
    first = len(updates)
    outcome, _ = leave(tmp_path, trunk, dataset, branch__data=str(second.path))
    assert outcome == Outcome(20, "stop")
    seed = order_seed(small_run.DATA_SEED, second, 0)
    windows = Windows.from_dataset(second, "train", length=small_run.LENGTH, seed=seed)
    batches = [windows.batch(i * small_run.BATCH, small_run.BATCH) for i in range(2)]
    np.testing.assert_array_equal(updates[first:], batches)
    meta = read_meta(tmp_path / "checkpoints" / "20")
    assert meta.samples == 20 * small_run.BATCH
    assert [x.step for x in meta.stages] == [0, 18]
    assert meta.stages[1].sources == ((second.fingerprint, 1),)


# Longer windows

LONGER = {"model.length": 16, "model.rope_theta": 50_000.0}


@pytest.fixture(scope="module")
def lengthened(trunk, dataset, tmp_path_factory):
    """A WSD branch of the trunk to 2x in windows twice as long, and its batches."""
    run, first = tmp_path_factory.mktemp("lengthened") / "branch", len(updates)
    outcome, _ = leave(run, trunk, dataset, branch__change=LONGER, log__every="1 steps")
    assert outcome == Outcome(20, "stop")
    return run, [np.asarray(x) for x in updates[first:]]


def test_longer_windows_equal_a_run_whose_stage_begins_there(lengthened, dataset, tmp_path):
    """Bitwise: a run that has the same decay, and is no branch."""
    stage = {"length": 16, "rope_theta": 50_000.0}
    whole = {**TRUNK, **DECAY, "decay__horizon": "2x", "log__every": "1 steps"}
    start(tmp_path, dataset, **whole, stages={"18 steps": stage})
    assert bits(lengthened[0], 20) == bits(tmp_path, 20)
    assert records(lengthened[0]) == [row for row in records(tmp_path) if row[0] > 18]


def test_longer_windows_keep_tokens_and_begin_a_pass(lengthened, dataset):
    """An update keeps its tokens; the windows are cut anew, in the order of the first change."""
    run, batches = lengthened
    seed = order_seed(small_run.DATA_SEED, dataset, 1)
    windows = Windows.from_dataset(dataset, "train", length=16, seed=seed)
    np.testing.assert_array_equal(batches, [windows.batch(0, 4), windows.batch(4, 4)])
    assert [row[:2] for row in records(run)] == [(19, 19 * 64), (20, 20 * 64)]
    assert read_meta(run / "checkpoints" / "20").samples == 18 * 8 + 2 * 4


def test_the_first_loss_of_longer_windows_is_that_of_numpy(lengthened, trunk):
    """In float64, of the trunk's weights at the new length and base; the old base differs."""
    run, batches = lengthened
    params = jax.device_get(saved(trunk, 18).state.params)
    config = small_run.config("run", **DECAY, decay__horizon="2x")
    model = dataclasses.replace(config.model, length=16, rope_theta=50_000.0)
    loss = records(run)[0][2]["train/loss"]
    assert loss == pytest.approx(numpy_decoder.mean_loss(model, params, batches[0]), rel=1e-6)
    old = numpy_decoder.mean_loss(config.model, params, batches[0])
    assert abs(loss - old) > 1e-5


def test_longer_windows_resume_bitwise(lengthened, trunk, dataset, tmp_path):
    changes = {"branch__change": LONGER, "log__every": "1 steps"}
    outcome, _ = leave(tmp_path / "cut", trunk, dataset, interrupted=after(1), **changes)
    assert outcome == Outcome(19, "interrupted")
    with pytest.raises(InputError):
        leave(tmp_path / "cut", trunk, dataset, branch__change={"model.length": 32})
    leave(tmp_path / "cut", trunk, dataset, **changes)
    assert bits(tmp_path / "cut", 20) == bits(lengthened[0], 20)


def test_a_branch_with_longer_windows_is_decayed_too(trunk, dataset, tmp_path, monkeypatch):
    """Bitwise as a run that has their stage and the decay."""
    longer = {"branch__at": "20 steps", "branch__change": {"model.length": 16}}
    leave(tmp_path / "on", trunk, dataset, stop="36 steps", **longer)
    monkeypatch.setattr(plan_lib, "make_program", recording)  # compiled once
    config = decay(tmp_path / "on", f"--config.run_dir={tmp_path / 'run'}")
    assert loop.train(config, mesh=small_run.mesh()) == Outcome(40, "stop")
    whole = {**DECAY, "decay__floor": 0.0, "decay__horizon": "4x"}
    start(tmp_path / "whole", dataset, **whole, stages={"20 steps": {"length": 16}})
    assert bits(tmp_path / "run", 40) == bits(tmp_path / "whole", 40)


def test_longer_windows_replace_the_later_lengths_of_the_trunk(trunk):
    """A branch has its values in place of those of stages from its point on."""
    later = {"1x": {"length": 4}, "3x": {"length": 32, "rope_theta": 1e6}}
    config = build(stages=later, branch__change={"model.length": 16}, microbatches=1)
    stages = [(x.step, x.model.length, x.model.rope_theta) for x in config.run_stages]
    base = config.model.rope_theta
    assert stages == [(0, 8, base), (10, 4, base), (18, 16, base), (30, 16, 1e6)]


@pytest.mark.parametrize(
    "change",
    [("model.length",), {"model.length": 24}, {"model.length": "16"}, {"model.width": 8}, (1,)],
)
def test_windows_that_do_not_fit_are_refused(change):
    with pytest.raises(InputError, match=r"config\.branch\.change"):
        build(branch__change=change)


# A larger batch


LARGER = {"batch_growth": (("1x", 2 * small_run.BATCH),), "stop": "2x"}


def test_a_larger_batch_equals_a_run_whose_batch_grows_there(trunk, dataset, tmp_path):
    """At the trunk's rate; bitwise. 2x is then at step 15."""
    run, whole = tmp_path / "branch", tmp_path / "whole"
    named = {"branch__at": "1x", "branch__change": ("batch_growth",), "log__every": "1 steps"}
    assert leave(run, trunk, dataset, **LARGER, **named)[0] == Outcome(15, "stop")
    start(whole, dataset, **TRUNK, **LARGER, log__every="1 steps")
    assert bits(run, 15) == bits(whole, 15)
    # The first row has the trunk's updates since its last row, too.
    rows = [[row for row in records(x) if row[0] > 11] for x in (run, whole)]
    assert rows[0] == rows[1] != []


def test_rate_of_a_larger_batch_may_change_where_it_is_named(trunk, dataset, tmp_path):
    named = {"branch__at": "1x", "branch__change": ("batch_growth", "schedule.peak")}
    leave(tmp_path, trunk, dataset, **LARGER, **named, schedule=HIGHER, log__every="1 steps")
    rates = [row.values["lr"] for row in read_records(tmp_path) if "lr" in row.values]
    assert rates == pytest.approx([HIGHER["peak"]] * 5)


def test_batch_of_the_trunk_is_kept_up_to_the_branch():
    trunk = small_run.config("run", schedule=CONSTANT, averages=("f25",))
    for growth in ((("1x", 16),), ()):
        changes = {"batch_growth": growth, "branch__change": ("batch_growth",)}
        config = build(**changes, decay__horizon="", stop="3x", branch__at="15 steps")
        if growth:
            with pytest.raises(InputError, match="grows at other points"):
                branching.check_inheritance(config, trunk, 15)
        else:
            branching.check_inheritance(config, trunk, 15)


# Rejected before anything is written


def rejection(run, trunk, dataset, **changes):
    with pytest.raises(InputError) as caught:
        leave(run, trunk, dataset, **changes)
    assert not run.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"batch_growth": (("2x", 16),)}, "batch_growth"),
        ({"branch__at": "11 steps"}, "9, 10, 18, 20"),
        ({"schedule": HIGHER, "branch__change": ("optimizer.b2",)}, "schedule.peak"),
    ],
)
def test_rejects_changes_that_are_not_named(changes, named, trunk, dataset, tmp_path):
    assert named in rejection(tmp_path / "branch", trunk, dataset, **changes)


JUMP = {**CONSTANT, "kind": "inverse_sqrt", "alpha": 7.0}


def test_named_settings_may_change_and_the_rate_may_not_jump():
    """A named alpha is no leave to let the rate jump, as a named kind is."""
    trunk = small_run.config("run", schedule=JUMP, averages=("f25",))
    changes = {"schedule": {**JUMP, "alpha": 70.0}, "optimizer__b2": 0.9, "decay__horizon": ""}
    changes |= {"stop": "3x", "branch__at": "18 steps"}
    named = ("optimizer.b2", "schedule.alpha")
    with pytest.raises(InputError, match=r"config\.branch: the learning rate"):
        branching.check_inheritance(build(**changes, branch__change=named), trunk, 18)
    named = (*named, "schedule.kind")
    branching.check_inheritance(build(**changes, branch__change=named), trunk, 18)


def test_rejects_trunk_that_is_missing_or_itself(trunk, dataset, tmp_path):
    message = rejection(tmp_path / "branch", tmp_path / "nowhere", dataset)
    assert "config.branch.from_run" in message
    with pytest.raises(InputError, match=r"config\.run_dir"):
        leave(trunk, trunk, dataset)


def test_rejects_other_data_that_are_not_named_or_of_another_vocabulary(
    trunk, dataset, second, tmp_path
):
    assert "config.branch.data" in rejection(tmp_path / "branch", trunk, second)
    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    message = rejection(tmp_path / "branch", trunk, other, branch__data=str(second.path))
    assert "vocabulary" in message


def test_rejects_damaged_checkpoint_of_trunk(trunk, dataset, tmp_path):
    mine = shutil.copytree(trunk, tmp_path / "trunk")
    held = max((mine / "checkpoints" / "18" / "params").rglob("*"), key=lambda x: x.stat().st_size)
    content = bytearray(held.read_bytes())
    content[len(content) // 2] ^= 1
    held.write_bytes(bytes(content))
    with pytest.raises(RunError, match="params"):
        leave(tmp_path / "branch", mine, dataset)
    assert saved_steps(tmp_path / "branch") == []


def build(**changes):
    """The configuration of a branch of a constant run, by default one that decays."""
    changes = {**DECAY, "decay__horizon": "2x", "branch__from_run": "trunk", **changes}
    return small_run.config("run", **changes)


# configs/decay.py


def decay(trunk, *overrides):
    return run_config.build(
        config_file.read(f"{REPOSITORY}/configs/decay.py:{trunk}", overrides), trust=NOBODY
    )


def test_decay_of_a_constant_run_is_the_wsd_branch(trunk):
    config = decay(trunk, "--config.decay.floor=0.1")
    assert (config.decay.horizon, config.stop_rule.step) == ("2x", 20)
    assert config.directory == f"{trunk}_decay_2x"
    assert decay(trunk, "--config.decay.horizon=1x").directory == f"{trunk}_decay_1x"
    branch = {"branch__from_run": str(trunk), "decay__horizon": "2x"}
    wsd = small_run.config("run", **DECAY, **branch)
    assert (
        config.learning_rate
        == wsd.learning_rate
        == schedules.Decay(schedules.constant(1e-2, 3), 18, 20, 0.1)
    )


def test_decay_of_an_inverse_square_root_starts_at_its_rate(whole, dataset, tmp_path, monkeypatch):
    """`whole` is trained to 2x and leaves checkpoints at 9 and 18."""
    monkeypatch.setattr(plan_lib, "make_program", recording)  # compiled once
    change = f"--config.run_dir={tmp_path / 'run'}"
    config = decay(whole, change, "--config.decay.horizon=1x")
    assert loop.train(config, mesh=small_run.mesh()) == Outcome(10, "stop")
    trunk = small_run.config("run").learning_rate.evaluate(9)
    assert config.learning_rate.evaluate([9, 10]).tolist() == [trunk, 0.0]
    assert read_meta(tmp_path / "run" / "checkpoints" / "10").step == 10


def test_decay_on_other_data_is_compared_with_its_trunk_on_equal_terms(
    trunk, second, tmp_path, monkeypatch
):
    """The mean is of the trunk's set; of a set that the trunk did not have, losses at its start."""
    monkeypatch.setattr(plan_lib, "make_program", recording)  # compiled once
    changes = [f"--config.run_dir={tmp_path / 'run'}", f"--config.branch.data={second.path}"]
    config = decay(trunk, *changes)
    assert loop.train(config, mesh=small_run.mesh()) == Outcome(20, "stop")
    rows = read_records(tmp_path / "run")
    runs = train._runs_to_compare(config, rows)
    assert list(runs) == [str(trunk), config.directory]
    theirs, own = (evaluated_rows(x)[-1] for x in runs.values())
    assert theirs == evaluated_rows(read_records(trunk))[-1]
    (old, new) = (evaluated_rows(rows, name)[-1] for name in validation_sets(rows))
    assert own == old != new
    begin = evaluated_rows(runs[str(trunk)], validation_sets(rows)[1])
    assert [row.step for row, _ in begin] == [18]
    (tmp_path / "run" / "run.json").unlink()
    assert list(train._runs_to_compare(config, rows)) == [config.directory]


@pytest.mark.slow
def test_decay_has_the_settings_of_its_checkpoint(trunk, dataset, second, tmp_path):
    """A resume may change averages and validation sets."""
    copy = shutil.copytree(trunk, tmp_path / "trunk")
    sets = {"other": str(second.path)}
    start(copy, dataset, stop="3x", **TRUNK, averages=("f3",), eval__sets=sets)
    first, later = decay(f"{copy}@18"), decay(f"{copy}@30")
    assert (first.averages, first.eval.sets) == (small_run.config("run").averages, ())
    assert (later.averages, dict(later.eval.sets)) == (("f3",), sets)


def test_decay_is_of_runs_without_an_end_only(branched):
    with pytest.raises(InputError, match="with an end"):
        decay(branched)


def test_decay_is_made_at_a_named_point_of_a_usable_trunk(trunk, tmp_path):
    config = decay(f"{trunk}@1x")
    assert (config.branch_step, config.stop_rule.step) == (9, 10)
    assert (decay(f"{trunk}@18").branch_step, decay(f"{trunk}@18").horizon) == (18, 20)
    with pytest.raises(InputError, match="step 4"):
        decay(f"{trunk}@4")
    copy = shutil.copytree(trunk, tmp_path / "trunk")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(InputError, match="warmup"):
        decay(copy)
