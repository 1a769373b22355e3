"""Screens of a run: what they show and that they fit, at several sizes of a terminal."""

import io
import re

import pytest
from rich.console import Console
from synthetic_run import LABELS, RecordedRun

from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.lab.monitor import run_snapshot
from anytime_jax.lab.monitor.run_screen import Screen

STEPS = (60, 120, 240, 480, 720, 960)


def show(run_dir, width, height, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file, width=width, height=height, soft_wrap=True, markup=False, highlight=False,
        force_terminal=True, no_color=True, _environ={},
    )  # fmt: skip
    with console.capture() as capture:
        console.print(Screen(run_snapshot.take(run_dir)))
    lines = re.sub("\x1b\\[[0-3;]*m", "", capture.get()).splitlines()
    assert "\x1b" not in "".join(lines)  # no color
    assert len(lines) <= height
    return lines


@pytest.fixture(scope="module", name="run_dir")
def run_dir_fixture(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("screen") / "run"
    RecordedRun(run_dir).add(*STEPS)
    return run_dir


@pytest.mark.parametrize(
    ("width", "height", "encoding"), [(80, 24, "utf-8"), (120, 40, "ascii"), (200, 50, "utf-8")]
)
def test_screen_has_state_chart_and_table_and_fits(run_dir, width, height, encoding):
    lines = show(run_dir, width, height, encoding)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert len(lines) > 0.8 * height
    assert "960 steps (2x, 3.93M tokens)" in text
    assert "no process" in text
    assert "best weights: f100" in text
    for name in ("o last", "* f100", "+ f50", ". training", "0.25x", "2x", *LABELS):
        assert name in text
    assert ("minus the loss of last" in text) == (width >= 110)
    assert sum("*" in line for line in lines) > 5
    text.encode(encoding)


def test_narrow_screen_has_the_best_averages(run_dir):
    text = "\n".join(show(run_dir, 60, 20))
    header = next(line for line in text.splitlines() if "budget" in line)
    assert header.split() == ["budget", "steps", "tokens", "last", "f25", "f50", "f100"]


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (300, 3)])
def test_tiny_terminal_shows_what_fits(run_dir, size):
    assert show(run_dir, *size)


def test_run_without_evaluation_or_records_or_with_damage(tmp_path):
    run = RecordedRun(tmp_path / "run")
    assert "no record yet" in show(run.run_dir, 80, 24)[0]
    run.add(10, 20, 30, evaluate=False)
    text = "\n".join(show(run.run_dir, 80, 24))
    assert "no evaluation yet" in text
    assert ". training" in text
    with (run.run_dir / "records" / "0000.jsonl").open("a") as file:
        file.write("damage\n")
    assert "warning" in "\n".join(show(run.run_dir, 80, 24))


def test_average_that_was_replaced_is_not_shown(tmp_path):
    run = RecordedRun(tmp_path / "run").add(60, 120).add(240, labels=("last", "f7"))
    text = "\n".join(show(run.run_dir, 120, 40))
    assert "* f7" in text


def test_evaluation_before_the_first_update_is_in_the_table(tmp_path):
    """A model that is continued has one; the axis of the chart is logarithmic."""
    run = RecordedRun(tmp_path / "run")
    writer = RecordWriter(run.run_dir, 0, {})
    writer.write(0, 0, {"eval/last/loss": 7.5, "eval/f25/loss": 7.5})
    writer.close()
    assert "nothing to draw yet" in "\n".join(show(run.run_dir, 120, 40))
    run.add(60, 120)
    text = "\n".join(show(run.run_dir, 120, 40))
    assert re.search(r"^ *0x +0 .* 7\.5000", text, re.MULTILINE)
    assert "o last" in text
