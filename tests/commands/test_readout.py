"""Tests of the search for the best read-out."""

import io
import re
import shlex

import numpy as np
import pytest
import rich.console
from training_runs import start

from anytime_jax.commands import evaluate, readout
from anytime_jax.weights import readout_search
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.readout_search import ScoredReadout


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
    # The printed commands can be used as they are.
    line = next(line for line in out.splitlines() if " evaluate " in line)
    words = shlex.split(line)[4:]
    name = next(word for word in words if word.startswith("--weights=")).partition("=")[2]
    assert f": --weights={shlex.quote(name)}\n" in out
    status, out, err = command(evaluate, *words)
    assert (status, err) == (0, "")
    assert name in out


def scored(name, selection, heldout):
    return ScoredReadout(name, Mixture(()), selection, np.array(heldout))


NOISE = np.array([0.1, -0.1, 0.05, -0.05])
STORED = [scored("last", 2.3, 2.31 + NOISE), scored("f25", 2.2, 2.21 + NOISE)]


def test_stored_weights_are_recommended_unless_others_are_better():
    noisy = scored("mix:{}", 2.0, 2.15 + 2 * NOISE[::-1])
    worse = scored("f=30", 2.1, 2.22 + NOISE)
    selected, verdict = readout.judge(STORED, [worse, noisy])
    assert selected.name == "f25"
    assert verdict.startswith("use f25: ")
    alone = [scored(x.name, x.selection_loss, x.heldout_losses[:1]) for x in (*STORED, worse)]
    assert readout.judge(alone[:2], alone[2:])[0].name == "f25"  # no standard error


def test_significant_gain_is_recommended_with_its_size():
    better = scored("f=30", 2.19, 2.20 + NOISE + [1e-3, -1e-3, 0, 0])
    best = scored("mix:{}", 2.18, 2.19 + NOISE + [1e-3, -1e-3, 0, 0])
    selected, verdict = readout.judge(STORED, [better, best])
    assert selected is best
    assert "0.0200" in verdict
    assert "f25" in verdict


def test_table_has_every_digit_at_80_columns():
    names = ["last", "f6.25", "f12.5", "f25", "f50", "f100"]
    stored = [scored(x, 12.2, 12.2 + NOISE * (i + 1)) for i, x in enumerate(names)]
    terminal = rich.console.Console(file=io.StringIO(), width=80)
    terminal.print(readout._table(stored, [scored("mix:{}", 12.1, 12.15 + NOISE)]))
    out = terminal.file.getvalue()
    assert max(map(len, out.splitlines())) <= 80
    assert "12.1500" in out
    assert out.count("±") == len(names)


@pytest.mark.parametrize("name", ["file", "/proc"])
def test_output_that_cannot_be_written_is_rejected_first(trained, rejected, tmp_path, name):
    (tmp_path / "file").touch()
    assert "--output" in rejected(readout, f"--run={trained}", f"--output={tmp_path / name}")


def test_run_without_windowed_averages_is_rejected(dataset, tmp_path, rejected):
    run = tmp_path / "run"
    start(run, dataset, averages=("uniform",), stop="5 steps", eval__every="5 steps")
    assert "config.averages" in rejected(readout, f"--run={run}")
