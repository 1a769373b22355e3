"""Loss history of a run from its records: rows, branches, and what is left out."""

import dataclasses
import json

import numpy as np
import pytest
import synthetic_study

from anytime_jax.averaging import GrowingWindow, Late
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.checkpoints.run_json import Evaluation, EvaluationChange
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from anytime_lab.forecast import run_loss_history
from anytime_lab.forecast.run_loss_history import NoLossError

TRUNK, BRANCH = "constant-peak=0.01", "wsd-peak=0.01-horizon=4x"
STEPS = [480, 960, 1920, 3840]


@pytest.fixture(name="root")
def root_fixture(tmp_path):
    """The directories of a trunk and its branch, which leaves it at 3.6x."""
    for name in (TRUNK, BRANCH):
        synthetic_study.write_run(synthetic_study.make_study().run(name), tmp_path / name)
    return tmp_path


def evaluated(history, label):
    """The steps and losses of the evaluations of one label."""
    chosen = ~history.training & (np.array(history.labels) == label)
    return history.last[chosen].tolist(), history.losses[chosen].tolist()


def test_run_has_its_evaluations_training_losses_and_settings(root):
    run = run_loss_history.read(root / TRUNK)
    assert (run.name, run.data) == (TRUNK, "abc")
    for label in synthetic_study.FACTORS:
        steps, losses = evaluated(run.history, label)
        assert steps == STEPS
        expected = [synthetic_study.expected_loss(TRUNK, m, label) for m in (1, 2, 4, 8)]
        np.testing.assert_allclose(losses, expected)
    training = run.history.select(run.history.training)
    np.testing.assert_array_equal(training.last, STEPS)
    np.testing.assert_array_equal(training.first, [1, *STEPS[:-1]])
    assert run.history.warmup_steps == 192
    assert set(run.history.rules) == set(synthetic_study.FACTORS) - {"last"}
    assert run.history.schedule == run.config.learning_rate


def test_losses_that_are_not_finite_are_left_out(root):
    config = run_loss_history.read(root / TRUNK).config
    rows = [
        Row(step, 4096 * step, {"train/loss": loss, "eval/last/loss": loss})
        for step, loss in ((200, 3.0), (300, float("nan")), (400, float("inf")), (500, 2.9))
    ]
    history = run_loss_history.from_rows(config, rows)
    assert sorted(history.last.tolist()) == [200, 200, 500, 500]


def test_branch_begins_with_the_losses_of_its_trunk(root):
    history = run_loss_history.read(root / BRANCH).history
    steps, losses = evaluated(history, "f25")
    assert steps == [480, 960, 1920]
    trunk = [synthetic_study.expected_loss(TRUNK, m, "f25") for m in (1, 2)]
    own = synthetic_study.expected_loss(BRANCH, 4, "f25")
    np.testing.assert_allclose(losses, [*trunk, own])
    assert history.schedule.end == 1920


def change(run_dir, **changes):
    """Changes the run file."""
    content = run_json.read_run_file(run_dir)
    run_json.write_run_file(run_dir, dataclasses.replace(content, **changes))


def test_losses_of_other_validation_sets_are_left_out(root):
    lines = []
    first, now = (Evaluation(tokens, {"web": ("a", 1.0)}) for tokens in (1024, 2048))
    change(root / BRANCH, evaluated=now)
    changes = (EvaluationChange(480, now),)
    change(root / TRUNK, evaluated=first, evaluation_changes=changes)
    history = run_loss_history.read(root / BRANCH, lines.append).history
    assert evaluated(history, "f25")[0] == [960, 1920]
    assert history.training.sum() == len(STEPS[:2]) + 1
    assert ["1 of 3 evaluations are left out" in line for line in lines] == [True]


def test_branch_without_its_trunk_has_its_own_losses(root):
    (root / TRUNK).rename(root / "gone")
    assert evaluated(run_loss_history.read(root / BRANCH).history, "last")[0] == [1920]


def test_branch_whose_trunk_was_replaced_has_its_own_losses(root):
    branch = run_json.read_run_file(root / BRANCH).branch
    change(root / BRANCH, branch=dataclasses.replace(branch, run_id="a"))
    change(root / TRUNK, id="a")
    steps = evaluated(run_loss_history.read(root / BRANCH).history, "last")[0]
    assert len(steps) > 1
    change(root / TRUNK, id="b")
    warnings = []
    history = run_loss_history.read(root / BRANCH, warnings.append).history
    assert evaluated(history, "last")[0] == [1920]
    assert "is another run now than the trunk" in warnings[0]


def test_averages_that_the_run_does_not_keep_are_left_out(root):
    config = run_loss_history.read(root / TRUNK).config
    row = Row(480, 1, {"eval/last/loss": 3.0, "eval/f7/loss": 2.0, "eval/f25/loss": 2.5})
    history = run_loss_history.from_rows(config, [row])
    assert history.labels == ("last", "f25")


def test_average_that_began_late_has_its_own_kernel(root):
    """And no loss of the average of the same label that the run dropped before."""
    config = run_loss_history.read(root / TRUNK).config
    rows = [
        Row(480, 1, {"eval/f25/loss": 2.5, "eval/f50/loss": 2.6}),
        Row(960, 2, {"eval/f25/loss": 2.4, "eval/f25/since": 720, "eval/f50/loss": 2.5}),
    ]
    history = run_loss_history.from_rows(config, rows)
    assert evaluated(history, "f25") == ([960], [2.4])
    assert evaluated(history, "f50") == ([480, 960], [2.6, 2.5])
    assert history.rules["f25"] == Late(GrowingWindow(25.0), 720)
    assert history.rules["f50"] == GrowingWindow(50.0)


def test_initial_losses_are_left_out_and_none_is_an_error_of_its_own(root, tmp_path):
    config = run_loss_history.read(root / TRUNK).config
    first = Row(0, 0, {"eval/last/loss": 9.0, "train/loss": 9.0})
    with pytest.raises(NoLossError):
        run_loss_history.from_rows(config, [first])
    history = run_loss_history.from_rows(config, [first, Row(480, 1, {"eval/last/loss": 3.0})])
    assert history.losses.tolist() == [3.0]


@pytest.mark.parametrize("change", [{"config": {"seed": 0}}, {"branch": {"from_run": "trunk"}}])
def test_damaged_run_file_is_named(root, change):
    file = root / TRUNK / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=TRUNK):
        run_loss_history.read(root / TRUNK)


def test_study_has_the_runs_with_a_loss(tmp_path):
    study = synthetic_study.make_study()
    names = [TRUNK, BRANCH, "cosine-peak=0.01-horizon=4x"]
    study.runs[:] = [study.run(name) for name in names]
    synthetic_study.write_study(tmp_path, leave_out=[names[2]], study=study)
    runs = run_loss_history.read_study(str(tmp_path))
    assert [(run.name, plan.trunk) for run, plan in runs] == [(TRUNK, None), (BRANCH, TRUNK)]
    assert evaluated(runs[1][0].history, "last")[0] == [1920]
    assert runs[0][0].config == run_config.build(runs[0][1].settings, trust=NOBODY)
