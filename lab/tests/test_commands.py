"""The commands of the laboratory: what every command keeps to, and options without an effect."""

import command_contract
import pytest
from run_command import run_command

from anytime_jax.commands import dispatch
from anytime_lab import plugin


@pytest.mark.parametrize("name", plugin.PLUGIN.commands)
@pytest.mark.parametrize("check", command_contract.CHECKS)
def test_command_keeps_to_what_every_command_does(name, check, capsys):
    check(name, capsys)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("compile --config=quickstart --topology=h100:1 --tries=3", "--tries"),
        ("compile --config=quickstart --topology=h100:1 --search --hlo=x", "--hlo"),
        ("forecast --run=x --every=5", "--every"),
        ("forecast --run=x --warmup=5", "--warmup"),
        ("forecast --csv=x --study=laptop", "--study"),
        ("forecast --calibrate=x --decay=linear:0.1", "--decay"),
        ("report --run=x --average=f25", "--average"),
        ("report --study=x --watch", "--watch"),
        ("sweep --list --only=x", "--only"),
        ("sweep --slurm=x --study=laptop --jobs=1", "--jobs"),
        ("sweep --run --study=laptop --tokens-per-s=1", "--tokens-per-s"),
        ("theory rates --config.seed=1", "--config.seed"),
        ("theory --config=theory_figure rates", "--config"),
    ],
)
def test_options_that_would_be_ignored_are_refused(words, refused, capsys):
    name, *words = words.split()
    assert run_command(dispatch.import_command(name), words) == 2
    assert f"error: {refused} " in capsys.readouterr().err


def test_studies_are_listed_without_a_study(capsys):
    sweep = dispatch.import_command("sweep")
    assert run_command(sweep, ["--list"]) == 0
    printed = capsys.readouterr().out
    assert "  paper_150m " in printed
    assert "quickstart" not in printed
    assert run_command(sweep, ["--run"]) == 2
    assert "--study" in capsys.readouterr().err


def test_settings_of_a_run_are_not_those_of_a_figure(capsys):
    with pytest.raises(SystemExit):
        run_command(dispatch.import_command("theory"), ["--help"])
    assert "batch_growth" not in capsys.readouterr().out
