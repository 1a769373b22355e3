"""Commands, events while one follows a run, and the results of the synthetic study."""

import functools

import pytest
import synthetic_study

from anytime_lab.forecast import run_forecast
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.monitor import follow
from anytime_lab.study.results import Results


@pytest.fixture
def meanwhile(monkeypatch):
    """Calls functions, one at each look at the run, and then Ctrl-C."""

    def call(*events, pause=3600.0):
        remaining, clock = list(events), [0.0]

        def sleep(duration):
            clock[0] += pause
            if not remaining:
                raise KeyboardInterrupt
            remaining.pop(0)()

        monkeypatch.setattr(follow.time, "sleep", sleep)
        monkeypatch.setattr(follow.time, "monotonic", lambda: clock[0])

    return call


@pytest.fixture
def quick_fits(monkeypatch):
    """Makes a forecast estimate its uncertainty from two laws, not from 24."""
    monkeypatch.setattr(run_forecast, "FunctionalFit", functools.partial(FunctionalFit, samples=2))


@pytest.fixture(scope="session", name="results")
def results_fixture(tmp_path_factory):
    """Results of the whole synthetic study."""
    return Results(synthetic_study.write_study(tmp_path_factory.mktemp("study") / "all"))
