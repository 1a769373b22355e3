"""Tests of the theory command."""

import json

import pytest
from paths import REPOSITORY
from run_command import run_command

from anytime_lab.theory import reports
from anytime_lab.theory import theory_command as theory

PROBLEM = ("--a=1.5", "--b=2.5", "--noise=0.1")


def test_advise_prints_advice_and_writes_its_numbers(capsys, tmp_path):
    short = ("--samples=400", "--doublings=1", "--dimension=100", f"--output={tmp_path}")
    assert run_command(theory, ["advise", *PROBLEM, *short]) == 0
    output = capsys.readouterr().out
    assert "WSD to 0" in output
    assert json.loads((tmp_path / "compare.json").read_text())["lengths"] == [200, 400]
    assert (tmp_path / "compare.png").stat().st_size > 1000


def test_bound_prints_a_row_for_each_length(capsys):
    assert run_command(theory, ["bound", *PROBLEM, "--steps=1000"]) == 0
    output = capsys.readouterr().out
    rows = [line.split()[0] for line in output.splitlines() if line[1:2].isdigit()]
    assert rows == ["10", "32", "100", "316", "1,000"]
    assert "bound/exact" in output


def test_rates_prints_fitted_and_proven_exponents(capsys, monkeypatch):
    monkeypatch.setattr(reports, "SPECTRA", reports.SPECTRA[2:3])  # of seven
    assert run_command(theory, ["rates", "--samples=1600"]) == 0
    assert "1/t^gamma*" in capsys.readouterr().out


def test_ramps_prints_regrets_and_writes_their_numbers(capsys, tmp_path):
    short = ("--samples=1000", "--dimension=50", "--noise=0.1,0", f"--output={tmp_path}")
    assert run_command(theory, ["ramps", "--a=1.5", "--b=3", *short]) == 0
    output = capsys.readouterr().out
    assert output.count("batch grows") == output.count("rate falls") == 2
    content = json.loads((tmp_path / "ramps.json").read_text())
    assert content["samples"] == [1_000]
    assert [len(x["runs"]) for x in content["noises"]] == [28, 28]
    assert (tmp_path / "ramps.png").stat().st_size > 1000


def test_branches_prints_multiples_and_the_batch_that_is_doubled(capsys, tmp_path):
    short = ("--samples=4000", "--dimension=10", f"--output={tmp_path}")
    assert run_command(theory, ["branches", "--a=1.5", "--b=3", *short]) == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines() if line[1:2].isdigit()] == [
        "1,000", "2,000", "2,000", "4,000", "1,000", "3,162",
    ]  # fmt: skip
    content = json.loads((tmp_path / "branches.json").read_text())
    assert content["doubled"]["by trial"]["lengths"] == [2_000, 4_000]
    assert content["doubled"]["always"]["sizes"] == [2, 4]


def test_batches_prints_their_risks_over_those_of_single_samples(capsys, tmp_path):
    short = ("--samples=1000", "--dimension=20", f"--output={tmp_path}")
    assert run_command(theory, ["batches", "--a=1.5", "--b=3", *short]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "+0%"] in rows
    content = json.loads((tmp_path / "batches.json").read_text())
    assert content["batches"][:2] == [1, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--a=1.5", "--b=2", "--samples=500"], "samples = 500"),
        (["compare", "--a=1.5", "--b=2", "--noise=1,x"], "--noise"),
        (["advise", "--a=1.5", "--b=2", "--output=/proc/x"], "--output = '/proc/x'"),
        (["bound", "--a=1.5", "--b=3", "--gamma=0.7"], "gamma = 0.7"),
        (["rates", "--samples=10"], "samples = 10"),
        (["rates", "--average=f7"], "average = 'f7'"),
        (["rates", "--samples=1600", "--multiplier=9"], "multiplier = 9"),
        (["ramps", "--a=1.5", "--b=2", "--growths=-1"], "growths = -1"),
        (["rates", "--batch-share=2"], "batch_share = 2"),
        (["ramps", "--a=1.5", "--b=2", "--samples=10"], "samples = 10"),
        (["branches", "--a=1.5", "--b=2", "--samples=10"], "samples = 10"),
        (["--config=theory_figure", "--config.stepz=1"], "config.stepz"),
    ],
    ids=" ".join,
)
def test_bad_options_are_named(rejected, monkeypatch, arguments, message):
    monkeypatch.chdir(REPOSITORY)
    assert message in rejected(theory, *arguments)
