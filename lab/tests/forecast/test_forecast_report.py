"""The report of a forecast: table and figure; points of runs and of logs."""

import dataclasses
import functools

import numpy as np
import pytest
from loss_laws import history

from anytime_jax.averaging import LIVE, GrowingWindow
from anytime_jax.config.clock import Clock
from anytime_jax.errors import InputError
from anytime_jax.schedules import constant, cosine
from anytime_lab.forecast import (
    forecast_figure,
    forecast_report,
    forecast_subject,
    run_forecast,
)
from anytime_lab.forecast.forecast_subject import Subject
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.forecast.prior import general_prior

NOW = 1_000


def make_subject(now=NOW, schedule=None):
    """A run with training losses and evaluations, of losses that fall as a power law."""
    steps = np.arange(50, now + 1, 50)
    curve = 2 + 6 * steps**-0.35
    noise = 0.002 * np.cos(np.arange(len(steps)) * 2.3)
    kinds = ((LIVE, True, curve + 0.05 + noise), (LIVE, False, curve + 0.05), ("f25", False, curve))
    rows = [
        (s, s, x, label, is_training)
        for label, is_training, losses in kinds
        for s, x in zip(steps, losses, strict=True)
    ]
    seen = history(schedule or constant(1e-2, 50), rows, {"f25": GrowingWindow(25.0)})
    clock = Clock(8, 64, 512 * 250)  # 1x is 250 steps
    return Subject("made", clock, seen, general_prior(seen))


@pytest.fixture(scope="module", name="made")
def made_fixture():
    """The forecast of a run; its uncertainty is estimated from two laws, not from 24."""
    subject, few_samples = make_subject(), functools.partial(FunctionalFit, samples=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_forecast, "FunctionalFit", few_samples)
        return subject, forecast_subject.forecast(subject, "32x")


def test_rows_are_now_and_the_doublings(made):
    table, *_ = forecast_report.summarize(*made)
    header, *rows = table.text()
    assert header[:4] == ["budget", "steps", "tokens", "live"]
    assert [row[0] for row in rows] == ["4x", "8x", "16x", "32x*"]
    assert [row[1] for row in rows] == ["1,000", "2,000", "4,000", "8,000"]
    assert rows[0][2] == "512K"
    # Now as measured, later with intervals.
    measured = 2 + 6 * NOW**-0.35
    assert rows[0][3:5] == [f"{measured + 0.05:.4f}", f"{measured:.4f} f25"]
    for row in rows[1:]:
        assert all("±" in cell for cell in row[3:])


def test_poor_fit_is_named(made, monkeypatch):
    monkeypatch.setattr(made[1].fit, "misfit", 2.2)
    lines = [x for x in forecast_report.describe(*made) if isinstance(x, str)]
    assert "2.2 times" in " ".join(lines)


def test_figure_is_drawn_into_the_directory(made, tmp_path):
    file = forecast_figure.draw(tmp_path, *made)
    assert file == tmp_path / "forecast.png"
    (axes,) = forecast_figure.make_figure(*made).axes
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"f25, measured", "f25, fit and forecast", "not calibrated"} <= set(words)
    lines = {line.get_label(): line.get_xdata() for line in axes.lines}
    begin = lines["f25, measured"].min()  # the fit is drawn beside the losses, and goes on
    assert lines["f25, fit and forecast"].min() <= begin < lines["f25, fit and forecast"].max()


@pytest.mark.parametrize(
    ("subject", "steps"),
    [
        (make_subject(), [2000, 4000]),
        (make_subject(1200), [2000, 4000]),
        (make_subject(schedule=cosine(1e-2, 3000, 50)), [2000, 3000]),
        (make_subject(schedule=cosine(1e-2, 9000, 50)), [2000, 4000]),
        # No doubling of 1x is within four times the run so far.
        (dataclasses.replace(make_subject(), clock=Clock(8, 64, 512 * 5_000)), [4000]),
    ],
)
def test_default_points(subject, steps):
    assert forecast_subject._steps(subject, None) == steps


@pytest.mark.parametrize("to", ["2x", "many", "5000x", "13x"])
def test_bad_points_are_named(to):
    subject = make_subject(schedule=cosine(1e-2, 3000, 50) if to == "13x" else None)
    with pytest.raises(InputError, match="--to"):
        forecast_subject.forecast(subject, to)


def test_finished_schedule_is_an_error():
    with pytest.raises(InputError, match="schedule"):
        forecast_subject.forecast(make_subject(schedule=cosine(1e-2, NOW, 50)))


def test_log_counts_from_its_own_length(tmp_path):
    steps = range(100, 4001, 100)
    file = tmp_path / "log.csv"
    rows = [f"{s},0.01,{2 + 6 * s**-0.35}" for s in steps]
    file.write_text("\n".join(["step,lr,loss", *rows]))
    log = forecast_subject.open_log(file, tokens_per_step=64)
    assert log.last_rate == 0.01
    assert forecast_subject._steps(log, None) == [8000, 16000]
    assert forecast_subject._steps(log, "512K tokens") == [8000]
    without = forecast_subject.open_log(file)
    with pytest.raises(InputError, match="--tokens-per-step"):
        forecast_subject.forecast(without, "512K tokens")
    with pytest.raises(InputError, match="schedule"):
        forecast_subject.open_log(file, cosine(0.01, 2000))
