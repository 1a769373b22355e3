"""Tests of the search for the best read-out."""

import dataclasses
import shlex

import numpy as np
import pytest
from training_runs import records, start

from anytime_jax.commands import argument_parser, evaluate, run_options
from anytime_jax.training.evaluator import WindowLosses
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_lab.readout import readout_command as readout
from anytime_lab.readout.readout_search import ScoredReadout


def test_best_readout_is_printed_and_drawn(trained, command, tmp_path, monkeypatch):
    monkeypatch.setattr(readout, "_POINTS", 4)
    words = [f"--run={trained}", f"--output={tmp_path}", "--checkpoints=2", "--trust=mine"]
    status, out, err = command(readout, *words)
    assert (status, err) == (0, "")
    assert {x.name for x in tmp_path.iterdir()} == {"readout_40.png", "readout_40.pdf"}
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    lines = {cells[0]: cells for cells in rows if cells}
    assert {"last", "f6.25", "f25", "f100"} <= set(lines)
    (best,) = [name for name in lines if name.startswith("f=")]
    assert float(lines[best][1]) <= min(float(x[1]) for x in lines.values() if x[0][0] == "f")
    # The printed commands can be used as they are.
    line = next(line for line in out.splitlines() if " evaluate " in line)
    words = shlex.split(line.partition(" evaluate ")[2])
    name = next(word for word in words if word.startswith("--weights=")).partition("=")[2]
    options = argument_parser.parse(evaluate, "evaluate", words)
    assert options.trust == ["mine"]
    saved = saved_run.open_saved_run(options.run, options.step)
    weight_names.parse(saved, name, run_options.sum_limits(options))


def scored(name, selection, heldout):
    losses = WindowLosses({"": np.array(heldout)}, {"": 1.0})
    return ScoredReadout(name, WeightedSum(()), selection, losses)


NOISE = np.array([0.1, -0.1, 0.05, -0.05])
F25 = scored("f25", 2.2, 2.21 + NOISE)


@pytest.mark.parametrize(
    ("gain", "error", "recommended"),
    [(0.02, 0.001, "f=30"), (0.02, 0.007, "f25"), (0.0049, 1e-6, "f25"), (-0.02, 1e-3, "f25")],
)
def test_other_weights_are_recommended_for_a_large_gain_that_is_no_noise(gain, error, recommended):
    change = error * np.sqrt(3) * np.array([1, -1, 1, -1])  # whose standard error is the error
    other = scored("f=30", 2.19, 2.21 - gain + NOISE + change)
    assert other.minus(F25) == pytest.approx((-gain, error))
    selected, verdict = readout.judge(F25, [F25, other])
    assert selected.name == recommended
    assert ("0.0200 ± 0.0010" in verdict) == (selected is other)


def test_average_that_is_not_stored_must_be_better_than_the_best_stored_weights():
    change = 1e-3 * np.array([1, -1, 1, -1])
    stored = scored("f12.5", 2.19, 2.19 + NOISE + change)
    level, better = (scored("f=13", 2.18, x + NOISE - change) for x in (2.187, 2.17))
    assert readout.judge(F25, [stored, level])[0] is stored
    assert readout.judge(F25, [stored, better])[0] is better


def test_weights_are_not_recommended_without_a_standard_error():
    f25, other = (scored(x, loss, [loss]) for x, loss in (("f25", 2.2), ("f=30", 2.1)))
    assert readout.judge(f25, [f25, other])[0] is f25


def test_default_average_is_the_stored_one_nearest_to_f25():
    stored = [scored(x, 2.2, 2.2 + NOISE) for x in ("last", "f12.5", "f40", "f100")]
    windows = {"f12.5": 12.5, "f40": 40.0, "f100": 100.0}
    assert readout.default_average(stored, windows).name == "f40"


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
    words = [f"--run={tmp_path / 'run'}", f"--output={tmp_path}", "--checkpoints=1"]
    status, out, _ = command(readout, *words)
    assert status == 0
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["last"]]
    halves = (float(row[1]) + float(row[2])) / 2
    assert halves == pytest.approx(values["eval/last/loss"], abs=1e-4)
