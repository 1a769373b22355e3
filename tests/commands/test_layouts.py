"""Tests of the table of layouts."""

import pytest
import small_run
from run_command import run_command

from anytime_jax.commands import config_file, layouts


@pytest.fixture(autouse=True)
def source(monkeypatch):
    settings = small_run.settings("run", "data").to_dict()
    monkeypatch.setattr(config_file, "load", lambda arguments: settings)


def test_each_layout_has_a_row(capsys):
    assert run_command(layouts, ["--devices=1,8,16"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:9].strip()]
    assert [row[:4] for row in rows if row[0] in ("1", "8", "16")] == [
        ["1", "data", "1", "8"],
        ["8", "data", "1", "1"],
        ["8", "fsdp", "1", "1"],
        ["16", "data", "-", "-"],
        ["16", "fsdp", "-", "-"],
    ]


def test_layout_that_does_not_fit_a_grown_batch_has_dashes(monkeypatch, capsys):
    settings = small_run.settings("run", "data", microbatches=2, batch_growth=(("2x", 12),))
    monkeypatch.setattr(config_file, "load", lambda arguments: settings.to_dict())
    assert run_command(layouts, ["--devices=1,8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:9].strip()]
    assert [row[:4] for row in rows if row[0] in ("1", "8")] == [
        ["1", "data", "2", "4"], ["8", "data", "-", "-"], ["8", "fsdp", "-", "-"]
    ]  # fmt: skip


@pytest.mark.parametrize("number", ["x", "0", "-8", ""])
def test_number_of_devices_must_be_positive(number, capsys):
    assert run_command(layouts, [f"--devices={number}"]) == 2
    assert f"--devices={number}:" in capsys.readouterr().err
