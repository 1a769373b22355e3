"""Page of a run: its text, its figures, and when these are drawn again."""

import os
import re
import threading

import pytest
from synthetic_run import RecordedRun

from anytime_jax.checkpoints import curves
from anytime_jax.errors import InputError
from anytime_jax.lab.forecast import page_forecast
from anytime_jax.lab.forecast.page_forecast import PageForecast
from anytime_jax.lab.monitor import run_page


def test_page_has_state_table_and_figures_with_alternative_text(tmp_path):
    RecordedRun(tmp_path, name="<b>&").add(60, 120)
    page = run_page.RunPage(tmp_path, PageForecast())
    media_type, content = page.read("")
    text = content.decode()
    assert media_type == "text/html; charset=utf-8"
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert "at 120 steps (0.25x, 492K tokens)" in text
    assert len(re.findall(r'<img [^>]*alt="[^"]*best weights: f100[^"]*"', text)) == 2
    assert text.index("<td>120</td>") < text.index("<td>60</td>")  # the latest first
    assert "http" not in text  # loads nothing from elsewhere
    for name in re.findall(r'src="(\w+\.svg)\?', text):
        media_type, figure = page.read(name)
        assert media_type == "image/svg+xml"
        assert figure.startswith(b"<?xml")


def test_figures_are_drawn_again_at_a_new_evaluation_alone(tmp_path, monkeypatch):
    run = RecordedRun(tmp_path).add(60)
    drawn = []
    draw = curves.draw_losses
    figures = {"losses": (lambda rows: drawn.append(1) or draw(rows), "")}
    monkeypatch.setattr(run_page, "_FIGURES", figures)
    page = run_page.RunPage(tmp_path, PageForecast())
    first = page.read("losses.svg")
    assert page.read("losses.svg") == first
    before = (tmp_path / "records" / "0000.jsonl").stat()
    run.add(70, evaluate=False)
    os.utime(tmp_path / "records" / "0001.jsonl", ns=(before.st_mtime_ns,) * 2)
    assert page.read("losses.svg") == first
    assert "70 steps" in page.read("")[1].decode()
    run.add(120)
    page.read("losses.svg")
    assert len(drawn) == 2


def test_run_without_evaluations_has_no_figures(tmp_path):
    run = RecordedRun(tmp_path)
    page = run_page.RunPage(tmp_path, PageForecast())
    assert "no record yet" in page.read("")[1].decode()
    assert page.read("losses.svg") is None
    run.add(10, evaluate=False)
    text = page.read("")[1].decode()
    assert "no evaluation yet" in text
    assert "<img" not in text


def test_forecast_is_made_once_for_what_was_recorded(tmp_path, monkeypatch):
    """At an evaluation or 5% later, after a rest; the page does not wait for it."""
    run = RecordedRun(tmp_path).add(60)
    made, clock, wait = [], [0.0], threading.Event()

    def read(snapshot, step):
        wait.wait(20)
        made.append(step)
        clock[0] += 2.0  # seconds that it takes
        return f"forecast at {step} & later", None

    monkeypatch.setattr(page_forecast, "_read", read)
    monkeypatch.setattr(page_forecast.time, "monotonic", lambda: clock[0])
    page = run_page.RunPage(tmp_path, PageForecast())

    def show():
        text = page.read("")[1].decode()
        page._forecast.wait()
        return text

    assert "forecast at" not in page.read("")[1].decode()
    wait.set()
    page._forecast.wait()
    assert "forecast at 60" in show()
    assert page.read("forecast.svg") is None
    run.add(120)
    assert "forecast at 60" in show()
    assert made == [60]  # it rests
    clock[0] += 60
    show()
    clock[0] += 60
    run.add(123, evaluate=False)
    show()
    assert made == [60, 120]
    run.add(130, evaluate=False)
    show()
    assert made == [60, 120, 130]


def test_page_has_the_forecast_with_its_figure(tmp_path):
    RecordedRun(tmp_path).add(*range(60, 500, 30))
    page = run_page.RunPage(tmp_path, PageForecast())
    page.read("")
    page._forecast.wait()
    text = page.read("")[1].decode()
    assert "±" in text
    assert 'src="forecast.svg?480"' in text
    kind, figure = page.read("forecast.svg")
    assert kind == "image/svg+xml"
    assert figure.startswith(b"<?xml")


def test_page_says_why_there_is_no_forecast(tmp_path, monkeypatch):
    RecordedRun(tmp_path).add(60)
    page = run_page.RunPage(tmp_path, PageForecast())
    page.read("")
    page._forecast.wait()
    assert "No forecast: " in page.read("")[1].decode()

    def fail(run_dir):
        raise RuntimeError("<defect>")

    monkeypatch.setattr(page_forecast.forecast_subject, "open_run", fail)
    page = run_page.RunPage(tmp_path, PageForecast())
    page.read("")
    page._forecast.wait()
    assert "RuntimeError: &lt;defect&gt;" in page.read("")[1].decode()


@pytest.mark.parametrize("name", ["run.json", "losses", ".svg", "../run.json", "index.html", "/"])
def test_no_other_file_is_read(tmp_path, name):
    RecordedRun(tmp_path).add(60)
    assert run_page.RunPage(tmp_path, PageForecast()).read(name) is None


def test_damage_is_on_the_page_and_a_run_that_went_away_is_an_error(tmp_path):
    run = RecordedRun(tmp_path / "run").add(60)
    with (run.run_dir / "records" / "0000.jsonl").open("a") as file:
        file.write("damage\n")
    page = run_page.RunPage(run.run_dir, PageForecast())
    assert re.search(r'class="note">.*0000.jsonl', page.read("")[1].decode())
    run.run_dir.rename(tmp_path / "away")
    with pytest.raises(InputError):
        page.read("")
