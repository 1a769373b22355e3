"""The sweep command: the list of runs, the selection of runs, and its options."""

import pytest
from run_command import run_command
from small_study import (
    fake_training_fixture,  # noqa: F401
    read_order,
    study_fixture,  # noqa: F401
)

from anytime_lab.study import study_files
from anytime_lab.study import sweep_command as sweep


def test_list_shows_the_cost_of_each_run(study, capsys):
    file, root = study()
    assert run_command(sweep, [f"--study={file}", "--list", "--tokens-per-s=0.01"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {words[0]: words[1:] for words in lines if words and "seed=" in words[0]}
    assert len(rows) == 6
    assert rows["constant-seed=0"][:3] == ["missing", "2x", "1.28K"]
    assert rows["wsd-seed=1-horizon=2x"][:3] == ["missing", "2x", "128"]  # two updates of 64 tokens
    assert rows["constant-seed=0"][-1] == f"{1280 / 0.01 / 3600:.3g}"
    assert not root.exists()


def test_only_selects_runs_by_name(study, fake_training, capsys):
    file, root = study()
    fake_training()

    def run(pattern):
        return run_command(sweep, [f"--study={file}", "--run", f"--only={pattern}"])

    assert run("constant-*1") == 0
    assert [name for _, name, _ in read_order(root)] == ["constant-seed=1"] * 2
    assert run("x") == 2
    assert "--only=x" in capsys.readouterr().err
    assert run("wsd-seed=0*") == 2
    assert "constant-seed=0, the trunk of wsd-seed=0-horizon=1x" in capsys.readouterr().err
    assert run("wsd-seed=1*") == 0  # its trunk is finished


def test_packed_study_has_all_runs(study, tmp_path):
    file, _ = study()
    packed = tmp_path / "packed"
    assert run_command(sweep, [f"--study={file}", f"--pack={packed}"]) == 0
    with study_files.open_study(packed) as found:
        assert [x.name for x in found.runs] == [x.name for x in study_files.load_file(file).runs]


@pytest.mark.parametrize("arguments", [["--tokens-per-s=0", "--list"], ["--jobs=9999", "--run"]])
def test_invalid_option_is_named(arguments, study, rejected):
    file, _ = study()
    assert arguments[0] in rejected(sweep, f"--study={file}", *arguments)


def test_records_without_a_study_are_bad_input(rejected):
    assert "--records has no effect" in rejected(sweep, "--list", "--records=docs")
