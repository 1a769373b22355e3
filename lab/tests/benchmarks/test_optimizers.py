"""Benchmark of optimizers, on a study of two of them, timed by a clock that tests set."""

import contextlib
import copy

import pytest
import small_run

from anytime_lab.study.plan import Study, grid, runs, values
from benchmarks import harness
from lab.benchmarks import optimizers, train_step


@pytest.fixture(autouse=True)
def _study(monkeypatch, tmp_path):
    """Puts a study of two optimizers, one of them with two seeds, in the place of any."""
    config = small_run.settings("unused", tmp_path)
    muon = copy.deepcopy(config)
    muon.optimizer.kind = "muon"
    both = [*runs("muon", muon, grid(values("seed", 1, 2)), "root")]
    study = Study("two", "root", [*both, *runs("adamw", config, [{}], "root")])
    opened = contextlib.nullcontext(study)
    monkeypatch.setattr(optimizers.study_files, "open_study", lambda path: opened)


def test_times_are_ratios_within_a_round(monkeypatch, read_record):
    made = {}

    def make_update(config, mesh):
        update = train_step.Update(config, lambda: 0, 1, 1, program="")
        return made.setdefault(type(config.optimizer).__name__.lower(), update)

    clocks = {"adamw": iter([9.0, 1.0, 2.0, 4.0]), "muon": iter([9.0, 1.0, 6.0, 4.0])}

    def seconds_per_call(function, calls):
        (kind,) = (kind for kind, update in made.items() if update.function is function)
        return next(clocks[kind])

    monkeypatch.setattr(optimizers, "make_update", make_update)
    monkeypatch.setattr(harness, "seconds_per_call", seconds_per_call)
    assert optimizers.main(["--study=two.py", "--rounds=3"]) == 0
    times = {row["optimizer"]: row["times_adamw"] for row in read_record()["rows"]}
    # The ratios are 1, 3 and 1; that of the medians is 2.
    assert times == {"muon": 1.0, "adamw": 1.0}
    assert all(update.config.averages == () for update in made.values())
