"""Calibration of forecasts on the first laptop study, and what a forecast may have seen."""

import dataclasses
import functools

import numpy as np
import pytest
from paths import REPOSITORY

from anytime_jax.errors import InputError
from anytime_lab.forecast import (
    forecast_calibration,
    forecast_calibration_report,
    run_loss_history,
)
from anytime_lab.forecast.forecast_calibration import forecast_study
from anytime_lab.forecast.functional_law_fit import FunctionalFit

STUDY = str(REPOSITORY / "lab" / "evidence" / "first_laptop")
CONSTANT, OTHER = "constant-peak=0.01", "inverse_sqrt-peak=0.01-alpha=1920"
DECAY, COSINE = "wsd-peak=0.01-horizon=4x", "cosine-peak=0.01-horizon=4x"
BEGIN = 960  # 2x


def cut(run, until=None, later=0.0):
    """A run with two weight labels, up to a step, its losses after `BEGIN` raised by `later`."""
    history = run.history.select(np.isin(run.history.labels, ["last", "f25"]))
    rules = {"f25": history.rules["f25"]}
    losses = history.losses + later * (history.last > BEGIN)
    history = dataclasses.replace(history, losses=losses, rules=rules)
    return dataclasses.replace(run, history=history.until(until or history.step))


@pytest.fixture(name="read")
def read_fixture(monkeypatch):
    """Makes the study one of a few of its runs: the constant one and those given."""
    runs = {run.name: (run, plan) for run, plan in run_loss_history.read_study(STUDY)}

    def read(others, later=0.0):
        chosen = {name: cut(runs[name][0]) for name in others}
        chosen[OTHER] = cut(runs[OTHER][0], until=BEGIN)
        chosen[CONSTANT] = cut(runs[CONSTANT][0], later=later)
        study = [(run, runs[name][1]) for name, run in chosen.items()]
        monkeypatch.setattr(run_loss_history, "read_study", lambda path, **options: study)
        few_samples = functools.partial(FunctionalFit, samples=2)
        monkeypatch.setattr(forecast_calibration, "FunctionalFit", few_samples)
        return {run.name: run for run, _ in study}

    return read


def test_forecasts_do_not_depend_on_what_came_later(read):
    found = []
    for later in (0.0, 1.0):
        runs = read([DECAY], later)
        outcomes = forecast_study("few", begins=[2])
        assert {(x.run, x.begin) for x in outcomes} == {(CONSTANT, 2)}
        found.append([(x.loss, x.low, x.high, x.gain, x.constant_gain) for x in outcomes])
    assert found[0] == found[1]
    history = runs[CONSTANT].history
    actual = {(x.end, x.label): x.actual for x in outcomes if x.kind == "run"}
    assert sorted(actual) == [(end, label) for end in (4.0, 8.0) for label in ("f25", "last")]
    (place,) = np.flatnonzero(
        (history.last == 3840) & ~history.training & (np.array(history.labels) == "f25")
    )
    assert actual[8.0, "f25"] == history.losses[place]
    decays = [x for x in outcomes if x.kind == "decay"]
    assert {(x.end, x.prior) for x in decays} == {(4.0, "general"), (4.0, "study")}
    assert all(abs(x.error) < 0.03 for x in outcomes if x.kind == "decay")


def test_prior_knowledge_is_of_other_schedules_and_for_cosines_of_no_cosine(monkeypatch):
    seen = []

    class Related:
        def __init__(self, run, others, source):
            self.names = {x.name for x in others}

        def prior(self, start):
            seen.append((start.name, self.names))

    def outcomes(start, begin, name, prior, targets):
        names = seen.pop()[1] if name == "study" else set()
        targets = {run.name for _, run, _ in targets}
        return [(start.name, name, names, targets)]

    monkeypatch.setattr(forecast_calibration, "RelatedRuns", Related)
    monkeypatch.setattr(forecast_calibration, "_outcomes", outcomes)
    found = forecast_study(STUDY, begins=[2])
    study = [x for x in found if x[1] == "study"]
    assert {x[0] for x in study} >= {CONSTANT, OTHER, "constant-peak=0.01-seed=1"}
    for run, _, names, targets in study:
        kind_and_peak = run.split("-alpha")[0].removesuffix("-seed=1").removesuffix("-stop=2x")
        assert names
        assert not names & targets
        assert run not in names
        if kind_and_peak.startswith("constant"):
            peak = kind_and_peak.removeprefix("constant-")
            assert not [x for x in names if x.startswith((f"constant-{peak}", f"wsd-{peak}-"))]
            assert not [x for x in names if x.startswith(f"wsd_to_0-{peak}-")]
        if any(x.startswith("cosine") for x in targets):
            assert not [x for x in names if x.startswith("cosine")]


def test_study_without_a_later_loss_is_refused(read):
    read([])
    with pytest.raises(InputError, match="16x"):
        forecast_study("few", begins=[16])


@pytest.mark.slow
def test_intervals_cover_and_laws_beat_a_constant_gain(tmp_path):
    outcomes = forecast_study(STUDY)
    for begin in (1, 2):
        part = [x for x in outcomes if (x.prior, x.begin, x.end) == ("study", begin, 4)]
        assert 0.7 <= np.mean([x.is_covered for x in part]) <= 1

    def error(gain, prior, begin, end):
        """Root mean square error of the gain of an average."""
        part = [
            x
            for x in outcomes
            if (x.prior, x.begin, x.end, x.kind) == (prior, begin, end, "run") and x.label != "last"
        ]
        return np.sqrt(np.mean([(getattr(x, gain) - x.actual_gain) ** 2 for x in part]))

    for prior in ("general", "study"):
        for begin, end in ((1, 4), (1, 8), (2, 8)):
            law = error("gain", prior, begin, end)
            assert law < error("constant_gain", prior, begin, end), (prior, begin, end)
    table, figure = forecast_calibration_report.write(tmp_path, outcomes)
    assert len(table.read_text().splitlines()) == len(outcomes) + 1
    assert figure.stat().st_size > 10_000
    assert len(forecast_calibration_report.tables(outcomes)) == 3
