"""Page of a run: its text, its figures, and when these are drawn again."""

import os
import re

import pytest
from synthetic_run import RecordedRun

from anytime_jax.errors import InputError
from anytime_jax.study import run_figure, run_page


def test_page_has_state_table_and_figures_with_alternative_text(tmp_path):
    RecordedRun(tmp_path, name="<b>&").add(60, 120)
    page = run_page.RunPage(tmp_path)
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
    draw = run_figure.draw_losses
    figures = {"losses": (lambda rows: drawn.append(1) or draw(rows), "")}
    monkeypatch.setattr(run_page, "_FIGURES", figures)
    page = run_page.RunPage(tmp_path)
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
    page = run_page.RunPage(tmp_path)
    assert "no record yet" in page.read("")[1].decode()
    assert page.read("losses.svg") is None
    run.add(10, evaluate=False)
    text = page.read("")[1].decode()
    assert "no evaluation yet" in text
    assert "<img" not in text


@pytest.mark.parametrize("name", ["run.json", "losses", ".svg", "../run.json", "index.html", "/"])
def test_no_other_file_is_read(tmp_path, name):
    RecordedRun(tmp_path).add(60)
    assert run_page.RunPage(tmp_path).read(name) is None


def test_damage_is_on_the_page_and_a_run_that_went_away_is_an_error(tmp_path):
    run = RecordedRun(tmp_path / "run").add(60)
    with (run.run_dir / "records" / "0000.jsonl").open("a") as file:
        file.write("damage\n")
    page = run_page.RunPage(run.run_dir)
    assert re.search(r'class="note">.*0000.jsonl', page.read("")[1].decode())
    run.run_dir.rename(tmp_path / "away")
    with pytest.raises(InputError):
        page.read("")
