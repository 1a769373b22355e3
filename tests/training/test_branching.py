"""Branches: what they inherit, what they may change, and that their trunk stays as it is."""

import dataclasses
import json
import os
import re
import shlex
import shutil

import numpy as np
import pytest
import small_run
from paths import REPOSITORY
from run_command import run_command
from training_runs import after, bits, finished, recording, records, saved, start, updates

from anytime_jax import averaging, schedules
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.checkpoint_reader import read_meta
from anytime_jax.commands import config_file, runs
from anytime_jax.config import schema
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.sources import FileSource
from anytime_jax.data.mixed_windows import order_seed
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import branching, loop
from anytime_jax.training import start as start_lib
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
def longer(dataset, tmp_path_factory):
    """The same to 3x, 30 updates, in one go."""
    return finished(tmp_path_factory, "longer", dataset, stop="3x", **TRUNK)


@pytest.fixture(scope="module")
def branched(trunk, dataset, tmp_path_factory):
    """A WSD branch of the trunk to 2x, which records every update; and its output."""
    run = tmp_path_factory.mktemp("branched") / "branch"
    outcome, output = leave(run, trunk, dataset, log__every="1 steps")
    assert outcome == Outcome(20, "stop")
    return run, output


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
    branching, output = branched
    assert f"branch   of {trunk}, which it leaves at 18 steps (1.8x" in output
    whole = {**TRUNK, **DECAY, "decay__horizon": "2x", "log__every": "1 steps"}
    start(tmp_path, dataset, **whole)
    assert bits(branching, 20) == bits(tmp_path, 20)
    assert records(branching) == [row for row in records(tmp_path) if row[0] > 18]
    assert bits(branching, 20) != bits(trunk, 20)


@pytest.mark.slow
def test_branch_of_trunk_with_growing_batch(dataset, tmp_path):
    """Its trunk's checkpoint is at 90% of the samples."""
    grown = {"batch_growth": (("1x", 16),), "microbatches": 2, "data__repeat": True}
    start(tmp_path / "trunk", dataset, stop="3x", schedule=CONSTANT, **grown)
    kept = saved_steps(tmp_path / "trunk")
    assert kept[:4] == [9, 10, 14, 15]  # 2x is 160 windows: 10 of 8 and 5 of 16
    outcome, _ = leave(tmp_path / "branch", tmp_path / "trunk", dataset, **grown)
    assert outcome == Outcome(15, "stop")
    start(tmp_path / "whole", dataset, **DECAY, decay__horizon="2x", **grown)
    assert bits(tmp_path / "branch", 15) == bits(tmp_path / "whole", 15)
    with pytest.raises(InputError, match=r"batch_growth was .*1x.*, is \[\]"):
        leave(tmp_path / "other", tmp_path / "trunk", dataset, microbatches=2, data__repeat=True)


def test_trunk_is_unchanged_and_resumes(trunk, longer, dataset, tmp_path):
    mine = shutil.copytree(trunk, tmp_path / "trunk")
    before = files_and_times(mine)
    leave(tmp_path / "branch", mine, dataset)
    assert files_and_times(mine) == before
    start(mine, dataset, stop="3x", **TRUNK)
    assert bits(mine, 30) == bits(longer, 30)


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
    labels = {name for _, _, values in records(tmp_path) for name in values if "eval/" in name}
    assert labels == {"eval/last/loss", "eval/f6.25/loss", "eval/f25/loss"}


def test_branch_records_its_trunk(branched, trunk):
    branching, _ = branched
    digest = read_meta(trunk / "checkpoints" / "18")["digest"]
    about = json.loads((branching / "run.json").read_text())
    place = {"step": 18, "checkpoint": digest}
    trunk_id = json.loads((trunk / "run.json").read_text())["id"]
    assert about["branch"] == {"from_run": str(trunk), **place, "run_id": trunk_id}
    assert about["identity"]["branch.checkpoint"] == digest
    assert read_meta(branching / "checkpoints" / "20")["config"]["branch"]["from_run"] == str(trunk)


# Resuming


def test_branch_with_same_schedule_equals_trunk(trunk, longer, dataset, tmp_path):
    """To the bit."""
    outcome, _ = leave(tmp_path, trunk, dataset, stop="3x", branch__at="20 steps", **TRUNK)
    assert outcome == Outcome(30, "stop")
    assert bits(tmp_path, 30) == bits(longer, 30)
    # The first row is an evaluation of the checkpoint, made again to the same bits.
    assert records(tmp_path) == [row for row in records(longer) if row[0] >= 20]


def test_branch_resumes_without_its_trunk(branched, trunk, longer, dataset, tmp_path):
    mine = shutil.copytree(trunk, tmp_path / "trunk")
    outcome, _ = leave(tmp_path / "cut", mine, dataset, interrupted=after(1))
    assert outcome == Outcome(19, "interrupted")
    shutil.rmtree(mine)
    leave(tmp_path / "cut", mine, dataset, **{**DECAY, "decay__horizon": "2x", "stop": "20 steps"})
    shutil.copytree(longer, mine)  # another run takes the trunk's place
    leave(tmp_path / "cut", mine, dataset)
    assert bits(tmp_path / "cut", 20) == bits(branched[0], 20)


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
    seed = order_seed(small_run.DATA_SEED, second.fingerprint, 0)
    windows = Windows(second, "train", length=small_run.LENGTH, seed=seed)
    batches = [windows.batch(i * small_run.BATCH, small_run.BATCH) for i in range(2)]
    np.testing.assert_array_equal(updates[first:], batches)
    meta = read_meta(tmp_path / "checkpoints" / "20")
    assert meta["samples"] == 20 * small_run.BATCH
    assert [x["step"] for x in meta["stages"]] == [0, 18]
    assert meta["stages"][1]["sources"] == [[second.fingerprint, 1]]


@pytest.mark.slow
def test_branch_of_branch_on_other_data_continues_its_position(trunk, dataset, second, tmp_path):
    """Not the position of its step, had it read those data from the start."""
    data = {"schedule": CONSTANT, "branch__data": str(second.path)}
    leave(tmp_path / "second", trunk, dataset, stop="21 steps", branch__at="18 steps", **data)
    to_22 = {"schedule": CONSTANT, "stop": "22 steps"}
    both = {"0x": {"a": (str(dataset.path), 1.0)}, "18 steps": {"b": (str(second.path), 1.0)}}
    leave(
        tmp_path / "third",
        tmp_path / "second",
        dataset,
        branch__at="20 steps",
        data__mixture=both,
        **to_22,
    )
    assert read_meta(tmp_path / "third" / "checkpoints" / "22")["samples"] == 22 * small_run.BATCH
    leave(tmp_path / "second", trunk, dataset, branch__at="18 steps", **{**data, **to_22})
    assert bits(tmp_path / "third", 22) == bits(tmp_path / "second", 22)


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
        ({"branch__at": "11 steps"}, "9, 10, 18, 20"),
        ({"schedule": HIGHER, "branch__change": ("optimizer.b2",)}, "schedule.peak"),
    ],
)
def test_rejects_changes_that_are_not_named(changes, named, trunk, dataset, tmp_path):
    assert named in rejection(tmp_path / "branch", trunk, dataset, **changes)


JUMP = {**CONSTANT, "kind": "inverse_sqrt", "alpha": 7.0}


def test_rejects_jump_of_learning_rate():
    """A named alpha is no leave to let the rate jump."""
    trunk = small_run.config("run", schedule=JUMP)
    changes = {"stop": "3x", "branch__at": "18 steps", "branch__change": ("schedule.alpha",)}
    config = build(schedule={**JUMP, "alpha": 70.0}, decay__horizon="", **changes)
    with pytest.raises(InputError, match=r"the learning rate of the trunk is .* at 18 steps"):
        branching.check_inheritance(config, trunk, 18)


def test_weight_decay_may_change_in_a_branch():
    trunk = small_run.config("run", schedule=CONSTANT)
    named = {"branch__at": "18 steps", "branch__change": ("optimizer.weight_decay",)}
    config = build(optimizer__weight_decay="g2", **named)
    branching.check_inheritance(config, trunk, 18)


@pytest.mark.slow
def test_named_settings_and_averages_may_change(trunk, dataset, tmp_path):
    lower = {"schedule": {**CONSTANT, "peak": 5e-3}, "optimizer__b2": 0.9}
    lower["averages"] = ("f25", "f50")
    lower["branch__change"] = ("schedule.peak", "optimizer.b2")
    outcome, output = leave(tmp_path / "lower", trunk, dataset, **lower)
    assert outcome == Outcome(20, "stop")
    assert "average f50 is new: it starts from the weights at step 18" in output
    assert "average f6.25 is no longer kept" in output
    change = ("schedule.kind", "schedule.alpha")
    jump = {"schedule": JUMP, "stop": "3x", "branch__change": change}
    mesh = small_run.mesh(4, fsdp=2)  # not the trunk's
    outcome, _ = leave(tmp_path / "jump", trunk, dataset, branch__at="18 steps", mesh=mesh, **jump)
    assert outcome == Outcome(30, "stop")


def test_rejects_trunk_that_is_missing_or_itself(trunk, dataset, tmp_path):
    message = rejection(tmp_path / "branch", tmp_path / "nowhere", dataset)
    assert "config.branch.from_run" in message
    before = files_and_times(trunk)
    with pytest.raises(InputError, match=r"config\.run_dir"):
        leave(trunk, trunk, dataset)
    with pytest.raises(InputError):
        leave(trunk / "inside", trunk, dataset)
    assert files_and_times(trunk) == before


def test_rejects_other_data_that_are_not_named_or_of_another_vocabulary(
    trunk, dataset, second, tmp_path
):
    assert "config.branch.data" in rejection(tmp_path / "branch", trunk, second)
    other = dataclasses.replace(dataset, vocabulary_sha256="0" * 64)
    message = rejection(tmp_path / "branch", trunk, other, branch__data=str(second.path))
    assert "vocabulary" in message


def test_rejects_resume_from_another_trunk(branched, longer, dataset, tmp_path):
    branching = shutil.copytree(branched[0], tmp_path / "branch")
    with pytest.raises(InputError, match=r"branch\.checkpoint was"):
        leave(branching, longer, dataset)


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


def test_printed_option_adds_a_change_when_pasted_into_a_shell(tmp_path):
    change = ("optimizer.b2", "schedule.warmup")
    config = build(branch__at="18 steps", branch__change=change, schedule=HIGHER)
    with pytest.raises(InputError) as caught:
        branching.check_inheritance(config, small_run.config("run", schedule=CONSTANT), 18)
    (option,) = re.findall(r"--config\.branch\.change=.*", str(caught.value))
    file = small_run.write_config(tmp_path / "config.py", "run", "data")
    settings = config_file.read(str(file), shlex.split(option))
    assert settings["branch"]["change"] == (*change, "schedule.peak")


def test_rejects_trunk_with_unreadable_settings(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"identity": {}, "config": {"schedule": 3}}))
    config = build(branch__from_run=str(tmp_path), branch__at="18 steps")
    with pytest.raises(InputError, match=r"config\.branch\.from_run"):
        branching.find_trunk(config, resumes=False)


def test_runs_command_names_trunk(branched, trunk, capsys):
    assert run_command(runs, [f"--run={branched[0].parent}"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"constant at 0.01, branch of {trunk} at step 18" in output


# configs/decay.py


def decay(trunk, *overrides):
    return schema.build(config_file.read(f"{REPOSITORY}/configs/decay.py:{trunk}", overrides))


def test_decay_of_a_constant_run_is_the_wsd_branch(trunk, dataset, tmp_path, branched):
    config = decay(trunk, "--config.decay.floor=0.1")
    assert (config.decay.horizon, config.stop_rule.step) == ("2x", 20)
    assert config.run_dir == f"{trunk}_decay_2x"
    assert decay(trunk, "--config.decay.horizon=1x").run_dir == f"{trunk}_decay_1x"
    branch = {"branch__from_run": str(trunk), "decay__horizon": "2x"}
    wsd = small_run.config("run", **DECAY, **branch)
    assert (
        config.learning_rate
        == wsd.learning_rate
        == schedules.Decay(schedules.constant(1e-2, 3), 18, 20, 0.1)
    )


def test_decay_of_an_inverse_square_root_starts_at_its_rate(whole, dataset, tmp_path, monkeypatch):
    """`whole` is trained to 2x and leaves checkpoints at 9 and 18."""
    monkeypatch.setattr(start_lib, "make_program", recording)  # compiled once
    change = f"--config.run_dir={tmp_path / 'run'}"
    config = decay(whole, change, "--config.decay.horizon=1x")
    assert loop.train(config, mesh=small_run.mesh()) == Outcome(10, "stop")
    trunk = small_run.config("run").learning_rate.evaluate(9)
    assert config.learning_rate.evaluate([9, 10]).tolist() == [trunk, 0.0]
    assert read_meta(tmp_path / "run" / "checkpoints" / "10")["step"] == 10


@pytest.mark.slow
def test_decay_has_the_settings_of_its_checkpoint(trunk, dataset, second, tmp_path, monkeypatch):
    """A resume may change averages and validation sets."""
    monkeypatch.setattr(start_lib, "make_program", recording)  # compiled once
    copy = shutil.copytree(trunk, tmp_path / "trunk")
    sets = {"other": str(second.path)}
    _, output = start(copy, dataset, stop="3x", **TRUNK, averages=("f3",), eval__sets=sets)
    assert "other validation sets" in output
    first, later = decay(f"{copy}@18"), decay(f"{copy}@30")
    assert (first.averages, first.eval.sets) == (small_run.config("run").averages, ())
    assert (later.averages, dict(later.eval.sets)) == (("f3",), sets)
    loop.train(later, mesh=small_run.mesh())
    (step, _, at_start), *_ = records(later.run_dir)
    (last,) = (
        values for step, _, values in records(copy) if step == 30 and "eval/f3/loss" in values
    )
    assert (step, at_start["eval/last/loss"]) == (30, last["eval/last/loss"])


def test_decay_is_of_runs_without_an_end_only(branched, tmp_path):
    with pytest.raises(InputError, match="schedule with an end"):
        decay(branched[0])
    with pytest.raises(InputError, match="is not a run"):
        decay(tmp_path)


def test_decay_is_made_at_a_named_point_of_a_usable_trunk(trunk, tmp_path):
    config = decay(f"{trunk}@1x")
    assert (config.branch_step, config.stop_rule.step) == (9, 10)
    assert (decay(f"{trunk}@18").branch_step, decay(f"{trunk}@18").horizon) == (18, 20)
    with pytest.raises(InputError, match="from step 4 would be the last 10% of 4 steps"):
        decay(f"{trunk}@4")
    copy = shutil.copytree(trunk, tmp_path / "trunk")
    for step in (9, 10, 18, 20):
        shutil.move(copy / "checkpoints" / str(step), tmp_path / str(step))
    with pytest.raises(InputError, match="not beyond its warmup of 3 steps"):
        decay(copy)
    content = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**content, "config": {"schedule": 3}}))
    with pytest.raises(InputError, match="its settings cannot be used"):
        decay(copy)
