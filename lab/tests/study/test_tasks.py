"""Tasks: their states, and what makes a study invalid."""

import dataclasses
import shutil

import pytest
from small_study import study_fixture, write_run  # noqa: F401

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.run_json import Evaluation
from anytime_jax.errors import InputError
from anytime_lab.study import study_files
from anytime_lab.study.tasks import make_tasks


def make(file):
    return make_tasks(study_files.load_file(file))


def test_disk_bytes_are_those_of_the_kept_checkpoints(study):
    file, _ = study()
    params = 4 * (2 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 304 * 16 + 16 * (2 * 4 + 1)) * 5
    checkpoints = 4 + 2  # at 9, 10, 18 and 20 updates, and two rolling ones
    each = make(file)[0].disk_bytes / checkpoints
    assert 0.98 * params < each < 1.1 * params + 2**18


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "[plan.StudyRun('far', x.config) for x in plan.decays('wsd', trunks[:1], [1])]",
            r"run far: config\.branch\.from_run = ",
        ),
        ("plan.decays('wsd', trunks[:1], [4])", "constant-seed=0"),
        ("plan.decays('wsd', trunks[:1], [1.5])", "no checkpoint is kept"),
        (
            "[plan.StudyRun(x.name, x.config.copy_and_resolve_references() "
            "if x.config.schedule.update(peak=0.5) else x.config, x.trunk) "
            "for x in plan.decays('wsd', trunks[:1], [1])]",
            r"schedule\.peak .*0\.01.*0\.5",
        ),
        ("plan.runs('endless', config, plan.values('stop', 'never'), 'x')", r"config\.stop = 'n"),
        (
            "[plan.StudyRun(x.name, x.config, 'constant-seed=1')"
            " for x in plan.decays('wsd', trunks[:1], [1])]",
            r"its trunk is constant-seed=1, but config\.branch\.from_run = ",
        ),
        ("plan.runs('a/b', config, [{}], 'x')", "'a/b'"),
        ("[plan.StudyRun('again', trunks[0].config)]", "constant-seed=0 and again"),
        ("plan.runs('bad', config, plan.values('batch_size', 0), 'x')", r"config\.batch_size = 0"),
    ],
)
def test_make_tasks_rejects_invalid_study(more, message, study):
    file, root = study(more)
    with pytest.raises(InputError, match=message):
        make(file)
    assert not root.exists()


def test_run_with_records_alone_is_finished_at_its_stop(study):
    file, _ = study("[]")
    first, second = make(file)
    write_run(first, stop_step=10)
    write_run(second, stop_step=20)
    assert [task.state for task in make(file)] == ["missing", "finished"]
    checkpoints = second.run.run_dir / "checkpoints"
    checkpoints.mkdir()  # the first save is being written, or the checkpoints were lost
    assert make(file)[1].state == "missing"
    (checkpoints / "20").mkdir()
    (checkpoints / "20" / "_CHECKPOINT_METADATA").touch()
    assert make(file)[1].state == "finished"


def test_run_after_its_stop_without_an_evaluation_there_is_rejected(study):
    file, _ = study("[]")
    first, _ = make(file)
    write_run(first, stop_step=first.stop_step - 1)
    later = first.run.run_dir / "checkpoints" / str(first.stop_step + 1)
    later.mkdir(parents=True)
    (later / "_CHECKPOINT_METADATA").touch()
    with pytest.raises(InputError, match=r"constant-seed=0: .* not evaluated at its stop, step 20"):
        make(file)


def test_branch_of_records_without_checkpoints_is_rejected(study):
    file, _ = study("plan.decays('wsd', trunks[:1], [1])")
    trunk, _, branch = make(file)
    write_run(trunk, stop_step=20)
    with pytest.raises(InputError, match=r"wsd-seed=0-horizon=1x: .*constant-seed=0.* records"):
        make(file)
    write_run(branch, stop_step=10)
    assert [task.state for task in make(file)] == ["finished", "missing", "finished"]


def test_run_from_pretrained_weights_owns_its_directory(study, tmp_path):
    weights = f"plan.values('initial_weights', {str(tmp_path / 'w')!r})"
    file, _ = study(f"plan.runs('tuned', config, {weights}, {str(tmp_path / 'tuned')!r})")
    task = make(file)[-1]
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "model.safetensors").touch()
    write_run(task)
    assert make(file)[-1].state == "missing"


def test_directory_of_another_run_or_of_other_files_is_rejected(study):
    file, root = study()
    first, *_, last = make(file)
    last.run.run_dir.mkdir(parents=True)
    (last.run.run_dir / "mine.txt").touch()
    with pytest.raises(InputError, match=r"wsd-seed=1-horizon=2x: config\.run_dir"):
        make(file)
    write_run(first, schedule__peak=0.5)
    with pytest.raises(InputError, match=r"constant-seed=0: .*schedule\.peak .*0\.5"):
        make(file)
    assert {path.name for path in root.iterdir()} == {first.run.name, last.run.name}


def test_runs_on_two_data_sets_are_rejected(study):
    file, _ = study()
    first, second, *_ = make(file)
    write_run(first, fingerprint="abc")
    make(file)
    write_run(second, fingerprint="abd")
    with pytest.raises(InputError, match=r"constant-seed=1: .*data"):
        make(file)


def add_evaluation(task, sets, factor=1):
    """Notes in the run file on which sets it was evaluated, and on how many times its tokens."""
    evaluated = Evaluation(factor * task.config.eval.tokens, sets)
    content = run_json.read_run_file(task.run.run_dir)
    content = dataclasses.replace(content, evaluated=evaluated)
    run_json.write_run_file(task.run.run_dir, content)


def test_runs_are_evaluated_on_one_text(study):
    file, _ = study()
    first, second, *_ = make(file)
    for task in (first, second):
        write_run(task)
        add_evaluation(task, {"web": ["a", 1.0]})
    make(file)
    add_evaluation(second, {"web": ["b", 1.0]})
    with pytest.raises(InputError, match="constant-seed=0"):
        make(file)
    add_evaluation(second, {"web": ["a", 1.0]}, factor=2)
    with pytest.raises(InputError, match="tokens"):
        make(file)


def test_rest_of_a_study_is_trained_on_the_same_data(study, dataset):
    file, _ = study(data=dataset.path)
    first, *_ = make(file)
    write_run(first, fingerprint=dataset.fingerprint)
    make(file)
    shutil.rmtree(first.run.run_dir)
    write_run(first, fingerprint="abc")
    with pytest.raises(InputError, match="constant-seed=0"):
        make(file)


def test_rest_of_a_study_is_evaluated_on_the_same_text(study, dataset):
    file, _ = study(data=dataset.path)
    first, *_ = make(file)
    write_run(first, fingerprint=dataset.fingerprint)
    add_evaluation(first, sets={"web": [dataset.fingerprint, 1.0]})
    make(file)
    add_evaluation(first, sets={"web": ["other", 1.0]})
    with pytest.raises(InputError, match="constant-seed=0"):
        make(file)
