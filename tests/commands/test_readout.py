"""Tests of the search for the best read-out."""

import json
import re

import pytest
from training_runs import start

from anytime_jax.commands import evaluate, readout
from anytime_jax.weights import readout_search


def test_best_readout_is_printed_and_drawn(trained, command, tmp_path, monkeypatch):
    monkeypatch.setattr(readout, "_POINTS", 4)
    monkeypatch.setattr(readout_search, "_MAX_ITERATIONS", 6)
    words = [f"--run={trained}", f"--output={tmp_path}", "--checkpoints=2"]
    status, out, err = command(readout, *words)
    assert (status, err) == (0, "")
    assert {x.name for x in tmp_path.iterdir()} == {"readout_40.png", "readout_40.pdf"}
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    lines = {cells[0]: cells for cells in rows if cells}
    assert {"last", "f6.25", "f100", "best"} <= set(lines)
    stored = [float(cells[1]) for name, cells in lines.items() if name[0] in "lf"]
    mixtures = re.findall(r"best mixture of [0-9]+ +([0-9.]+)", out)
    assert len(mixtures) == 2
    assert max(map(float, mixtures)) <= min(stored) + 1e-4
    # The printed name of the weights can be used as it is.
    name = re.search(r"--weights='(mix:.*)'", out)[1]
    assert sum(json.loads(name.removeprefix("mix:")).values()) == pytest.approx(1, abs=1e-6)
    assert command(evaluate, f"--run={trained}", "--weights", name)[0] == 0


@pytest.mark.parametrize("name", ["file", "/proc"])
def test_output_that_cannot_be_written_is_rejected_first(trained, rejected, tmp_path, name):
    (tmp_path / "file").touch()
    assert "--output" in rejected(readout, f"--run={trained}", f"--output={tmp_path / name}")


def test_run_without_windowed_averages_is_rejected(dataset, tmp_path, rejected):
    run = tmp_path / "run"
    start(run, dataset, averages=("uniform",), stop="5 steps", eval__every="5 steps")
    assert "config.averages" in rejected(readout, f"--run={run}")
