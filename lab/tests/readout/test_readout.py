"""Tests of the search for the best read-out."""

import dataclasses
import re
import shlex

import numpy as np
import pytest
from training_runs import records, start

from anytime_jax.commands import argument_parser, evaluate, run_options
from anytime_jax.training.evaluator import WindowLosses
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_lab.readout import readout_command as readout
from anytime_lab.readout import readout_search
from anytime_lab.readout.readout_search import ScoredReadout


def test_best_readout_is_printed_and_drawn(trained, command, tmp_path, monkeypatch):
    monkeypatch.setattr(readout, "_POINTS", 4)
    monkeypatch.setattr(readout_search, "_MAX_ITERATIONS", 6)
    words = [f"--run={trained}", f"--output={tmp_path}", "--checkpoints=2", "--trust=mine"]
    status, out, err = command(readout, *words)
    assert (status, err) == (0, "")
    assert {x.name for x in tmp_path.iterdir()} == {"readout_40.png", "readout_40.pdf"}
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    lines = {cells[0]: cells for cells in rows if cells}
    assert {"last", "f6.25", "f100", "best"} <= set(lines)
    stored = [float(cells[1]) for name, cells in lines.items() if name[0] in "lf"]
    sums = re.findall(r"best weighted sum of [0-9]+ +([0-9.]+)", out)
    assert len(sums) == 2
    assert max(map(float, sums)) <= min(stored) + 1e-4
    # The printed commands can be used as they are.
    line = next(line for line in out.splitlines() if " evaluate " in line)
    words = shlex.split(line)[2:]  # after `anytime evaluate`
    name = next(word for word in words if word.startswith("--weights=")).partition("=")[2]
    assert f": --weights={shlex.quote(name)}\n" in out
    options = argument_parser.parse(evaluate, "evaluate", words)
    assert options.trust == ["mine"]
    saved = saved_run.open_saved_run(options.run, options.step)
    weight_names.parse(saved, name, run_options.sum_limits(options))


def scored(name, selection, heldout):
    losses = WindowLosses({"": np.array(heldout)}, {"": 1.0})
    return ScoredReadout(name, WeightedSum(()), selection, losses)


NOISE = np.array([0.1, -0.1, 0.05, -0.05])
STORED = [scored("last", 2.3, 2.31 + NOISE), scored("f25", 2.2, 2.21 + NOISE)]


def test_stored_weights_are_recommended_unless_others_are_better():
    noisy = scored("mix:{}", 2.0, 2.15 + 2 * NOISE[::-1])
    worse = scored("f=30", 2.1, 2.22 + NOISE)
    selected, verdict = readout.judge(STORED, [worse, noisy])
    assert selected.name == "f25"
    assert verdict.startswith("use f25: ")
    alone = [
        scored(x.name, x.selection_loss, x.heldout_losses.by_set[""][:1]) for x in (*STORED, worse)
    ]
    assert readout.judge(alone[:2], alone[2:])[0].name == "f25"  # no standard error


def test_significant_gain_is_recommended_with_its_size():
    better = scored("f=30", 2.19, 2.20 + NOISE + [1e-3, -1e-3, 0, 0])
    best = scored("mix:{}", 2.18, 2.19 + NOISE + [1e-3, -1e-3, 0, 0])
    selected, verdict = readout.judge(STORED, [better, best])
    assert selected is best
    assert "0.0200" in verdict
    assert "f25" in verdict


def test_run_without_windowed_averages_is_rejected(trained, rejected, monkeypatch):
    saved = saved_run.open_saved_run(trained)
    without = dataclasses.replace(saved, meta=dataclasses.replace(saved.meta, averages=()))
    monkeypatch.setattr(saved_run, "open_saved_run", lambda *arguments: without)
    assert "config.averages" in rejected(readout, f"--run={trained}")


def test_readout_selects_by_the_mean_of_several_sets(dataset, command, monkeypatch, tmp_path):
    sets = {"own": str(dataset.path), "py-v1.2": str(dataset.path)}
    weights = {"own": 3, "py-v1.2": 1}
    start(tmp_path / "run", dataset, eval__sets=sets, eval__weights=weights)
    (values,) = [values for step, _, values in records(tmp_path / "run") if step == 10]
    monkeypatch.setattr(readout, "_POINTS", 3)
    monkeypatch.setattr(readout_search, "_MAX_ITERATIONS", 1)
    words = [f"--run={tmp_path / 'run'}", f"--output={tmp_path}", "--checkpoints=1"]
    status, out, _ = command(readout, *words)
    assert status == 0
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["last"]]
    halves = (float(row[1]) + float(row[2])) / 2
    assert halves == pytest.approx(values["eval/last/loss"], abs=1e-4)
