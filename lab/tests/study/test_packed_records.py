"""Packed records: which runs of an archive are taken, and how they are put in place."""

import dataclasses
import re
import shutil
from types import SimpleNamespace

import pytest
from run_command import run_command
from small_study import (
    BRANCHES,
    fake_training_fixture,  # noqa: F401
    started,
    study_fixture,  # noqa: F401
    write_run,
)

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.checkpoints.run_json import read_run_file
from anytime_lab.study import study_files
from anytime_lab.study import sweep_command as sweep
from anytime_lab.study.tasks import make_tasks

NAMES = ["constant-seed=0", "constant-seed=1"] + [
    f"wsd-seed={seed}-horizon={m}x" for seed in (0, 1) for m in (1, 2)
]
FAMILY = [name for name in NAMES if "seed=1" in name]
TWO_BRANCHES = "plan.decays('wsd', trunks, [1])"


@pytest.fixture(name="packed")
def packed_fixture(study, dataset, tmp_path):
    """Writes an archive of the study's runs as a machine has them that is gone.

    Returns the study file, the directory of its runs, and that of the archive.
    """

    def write(more=BRANCHES, stops=(), fingerprint=dataset.fingerprint):
        file, root = study(more, data=dataset.path)
        for task in make_tasks(study_files.load_file(file)):
            stop_step = dict(stops).get(task.run.name, task.stop_step)
            write_run(task, fingerprint, stop_step)
        (tmp_path / "packed").mkdir()
        study_files.pack(study_files.load_file(file), tmp_path / "packed" / study_files.ARCHIVE)
        shutil.rmtree(root)
        return file, root, tmp_path / "packed"

    return write


def run(file, records, *arguments):
    return run_command(sweep, [f"--study={file}", f"--records={records}", *arguments])


def states(capsys, file, records):
    """The states that --list shows, by name, and all that it prints in one line."""
    capsys.readouterr()
    assert run(file, records, "--list") == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    shown = {x[0]: x[1] for x in lines if x and x[0] in NAMES and len(x) > 4}
    return shown, " ".join(out.split())


def test_finished_runs_are_put_in_place_and_the_others_trained(
    study, packed, fake_training, dataset, capsys
):
    """The archive has one seed and an unfinished one; the study has two, with branches."""
    file, root, archive = packed(stops=[(name, 10) for name in NAMES if name not in FAMILY])
    shown, out = states(capsys, file, archive)
    assert shown == {name: "packed" if name in FAMILY else "missing" for name in NAMES}
    assert " 1.47K tokens" in out  # 20 + 1 + 2 updates of 64 tokens
    assert not root.exists()
    fake_training(fingerprint=dataset.fingerprint)
    assert run(file, archive, "--run") == 0
    assert started(root) == [name for name in NAMES if name not in FAMILY]
    assert [task.state for task in make_tasks(study_files.load_file(file))] == ["finished"] * 6
    assert read_records(root / FAMILY[0])[-1].values["eval/f25/loss"] == 2.8
    assert run(file, archive / study_files.ARCHIVE, "--run") == 0
    assert len(started(root)) == 3
    assert {path.name for path in root.iterdir()} >= set(NAMES)
    assert not list(root.glob(".*"))


def test_runs_that_are_put_in_place_are_packed_to_the_same_bytes(packed, tmp_path):
    file, root, archive = packed()
    assert run(file, archive, "--run") == 0
    branch = read_run_file(root / FAMILY[1]).branch
    assert branch.from_run == str(root / "constant-seed=1")
    (tmp_path / "again").mkdir()
    with study_files.open_study(root) as study:
        again = study_files.pack(study, tmp_path / "again" / study_files.ARCHIVE)
    assert again.read_bytes() == (archive / study_files.ARCHIVE).read_bytes()


def test_family_is_taken_whole_or_not_at_all(study, packed, dataset, capsys):
    """A further branch needs a checkpoint of its trunk; the others must leave from it too."""
    _, _, archive = packed(TWO_BRANCHES)
    further = "plan.decays('wsd', trunks[:1], [2])"
    file, _ = study(f"plan.chain({TWO_BRANCHES}, {further})", data=dataset.path)
    shown, out = states(capsys, file, archive)
    assert shown == {name: "packed" if name in FAMILY else "missing" for name in shown}
    assert len(shown) == 5
    assert "constant-seed=0: its branch wsd-seed=0-horizon=2x" in out
    assert "wsd-seed=0-horizon=1x: its trunk constant-seed=0" in out


def test_branch_of_records_in_place_is_taken_from_the_same_archive_alone(packed, capsys):
    """As when a sweep was killed between a trunk and its branches."""
    file, root, archive = packed()
    assert run(file, archive, "--run") == 0
    shutil.rmtree(root / FAMILY[1])
    shown, _ = states(capsys, file, archive)
    assert [shown[name] for name in FAMILY] == ["finished", "packed", "finished"]
    shutil.rmtree(root / FAMILY[0])
    shown, _ = states(capsys, file, archive)
    assert [shown[name] for name in FAMILY] == ["packed", "packed", "finished"]
    assert run(file, archive, "--run", "--only=constant*") == 0
    shutil.rmtree(root / FAMILY[1])
    (segment,) = (root / FAMILY[0] / "records").iterdir()
    segment.write_text(segment.read_text().replace("0.1.0", "0.1.1"))
    assert run(file, archive, "--list") == 2
    assert f"run {FAMILY[1]}: it branches from constant-seed=1" in capsys.readouterr().err


def test_branch_of_another_checkpoint_is_trained_here(packed, dataset, capsys, monkeypatch):
    file, root, archive = packed(TWO_BRANCHES)
    trunk, *_ = make_tasks(study_files.load_file(file))
    write_run(trunk, dataset.fingerprint, trunk.stop_step)
    (segment,) = (trunk.run.run_dir / "records").iterdir()
    segment.write_text(segment.read_text().replace("0.1.0", "0.1.1"))
    for step in (9, 20):
        checkpoint = root / "constant-seed=0" / "checkpoints" / str(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "_CHECKPOINT_METADATA").touch()
    digest = "digest of constant-seed=0"
    monkeypatch.setattr(
        "anytime_jax.checkpoints.checkpoint_reader.read_meta",
        lambda path: SimpleNamespace(digest=digest),
    )
    assert states(capsys, file, archive)[0]["wsd-seed=0-horizon=1x"] == "packed"
    digest = "another"
    shown, out = states(capsys, file, archive)
    assert shown["wsd-seed=0-horizon=1x"] == "missing"
    assert "branch.checkpoint" in out
    assert shown["wsd-seed=1-horizon=1x"] == "packed"


def test_directory_with_anything_in_it_stays(packed, fake_training, dataset, capsys):
    file, root, archive = packed("[]")
    begun, other = make_tasks(study_files.load_file(file))
    write_run(begun, dataset.fingerprint, 0)
    checkpoint = begun.run.run_dir / "checkpoints" / "15"
    checkpoint.mkdir(parents=True)
    (checkpoint / "_CHECKPOINT_METADATA").touch()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    shown, out = states(capsys, file, archive)
    assert shown == {begun.run.name: "at", other.run.name: "packed"}
    assert "not taken constant-seed=0" in out
    assert " 320 tokens" in out  # the last five updates
    fake_training(fingerprint=dataset.fingerprint, constant_seed_0="fails")
    assert run(file, archive, "--run") == 1
    assert started(root) == ["constant-seed=0"]
    assert before.keys() <= {path for path in root.rglob("*") if path.is_file()}
    other.run.run_dir.rename(root / "aside")
    other.run.run_dir.mkdir()
    (other.run.run_dir / "mine.txt").touch()
    assert run(file, archive, "--run") == 2
    assert [path.name for path in other.run.run_dir.iterdir()] == ["mine.txt"]


def test_run_begun_by_another_process_meanwhile_stays(packed, fake_training, dataset, monkeypatch):
    file, root, archive = packed("[]")
    first, _ = make_tasks(study_files.load_file(file))
    write_plan = study_files.write_plan

    def begin(study):
        write_plan(study)
        if not first.run.run_dir.exists():
            write_run(first, dataset.fingerprint, 0)

    monkeypatch.setattr(study_files, "write_plan", begin)
    fake_training(fingerprint=dataset.fingerprint, constant_seed_0="fails")
    assert run(file, archive, "--run") == 1
    assert started(root) == ["constant-seed=0"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("schedule.peak", 2e-2, r"schedule\.peak was 0\.01, is 0\.02"),
        ("eval.tokens", 40, r"eval\.tokens was 80, is 40"),
        ("averages", ("f12.5", "f25"), "evaluated without f12.5"),
    ],
)
def test_run_of_other_settings_is_not_taken(packed, capsys, name, value, message):
    """One of two trunks differs; then both do, and no run is taken."""
    file, _, archive = packed("[]")
    source, end = file.read_text(), "    return plan.Study("

    def change(trunks):
        update = f"x.config.update_from_flattened_dict({ {name: value} })"
        file.write_text(source.replace(end, f"    [{update} for x in {trunks}]\n{end}"))

    change("trunks[:1]")
    shown, out = states(capsys, file, archive)
    assert shown == {"constant-seed=0": "missing", "constant-seed=1": "packed"}
    assert re.search(f"not taken constant-seed=0: it .*{message}", out)
    change("trunks")
    assert run(file, archive, "--list") == 2
    error = capsys.readouterr().err
    assert re.search(f"--records={archive}: .*constant-seed=0, constant-seed=1: .*{message}", error)


def test_run_that_no_setting_describes_is_not_taken(packed, capsys):
    file, _, archive = packed("[]")
    with study_files.open_archive(archive) as study:
        first, second = study.runs
        noted = dataclasses.replace(first, note="averages count updates")
        noted_study = dataclasses.replace(study, runs=[noted, second])
        study_files.pack(noted_study, archive / study_files.ARCHIVE)
    shown, _ = states(capsys, file, archive)
    assert shown == {first.name: "missing", second.name: "packed"}


def test_run_from_other_pretrained_weights_is_not_taken(packed, tmp_path, capsys):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"one")
    space = f"plan.values('initial_weights', {str(weights)!r})"
    file, _, archive = packed(f"plan.runs('tuned', config, {space}, {str(tmp_path / 'runs')!r})")
    assert "3 of 3" in states(capsys, file, archive)[1]
    (weights / "model.safetensors").write_bytes(b"other")
    assert re.search("tuned.*initial_weights was ", states(capsys, file, archive)[1])


def test_run_on_other_data_is_not_taken(packed, dataset, capsys):
    file, root, archive = packed(fingerprint="0123456789abcdef")
    assert run(file, archive, "--run") == 2
    error = capsys.readouterr().err
    assert "fingerprint 0123456789ab" in error
    assert dataset.fingerprint[:12] in error
    assert not root.exists()


def test_unusable_archive_is_rejected(study, packed, dataset, tmp_path, rejected):
    def error(records):
        return rejected(sweep, f"--study={file}", f"--records={records}", "--list")

    file, _, archive = packed("[]")
    assert str(tmp_path / "none") in error(tmp_path / "none")
    study("[]", data=tmp_path / "unprepared")
    assert "unprepared" in error(archive)
    study("[]", data=dataset.path)
    file.write_text(file.read_text().replace('"constant", config', '"other", config'))
    assert "study tiny" in error(archive)
