"""Tests of the table of layouts."""

import pytest
import small_run
from run_command import run_command

from anytime_jax.commands import config_file, layouts

GROWING = {"microbatches": 2, "batch_growth": (("2x", 12),)}  # by more than whole batches


def start(monkeypatch, devices, **changes):
    settings = small_run.settings("run", "data", **changes).to_dict()
    monkeypatch.setattr(config_file, "load", lambda arguments: settings)
    return run_command(layouts, [f"--devices={devices}"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["1 data 1 8", "8 data 1 1", "8 fsdp 1 1", "16 data - -", "16 fsdp - -"]),
        (GROWING, ["1 data 2 4", "8 data - -", "8 fsdp - -", "16 data - -", "16 fsdp - -"]),
    ],
)
def test_each_layout_has_a_row(monkeypatch, capsys, changes, expected):
    assert start(monkeypatch, "1,8,16", **changes) == 0
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    assert [" ".join(row) for row in rows if row and row[0] in ("1", "8", "16")] == expected


@pytest.mark.parametrize("number", ["x", "0", "-8", ""])
def test_number_of_devices_must_be_positive(number, monkeypatch, capsys):
    assert start(monkeypatch, number) == 2
    assert f"--devices={number}:" in capsys.readouterr().err
