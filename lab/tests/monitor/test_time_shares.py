"""Shares of the time since the first start, on records written by hand."""

import json

import pytest

from anytime_jax.checkpoints.metric_records import read_records
from anytime_lab.monitor.time_shares import describe, time_shares


def write(run_dir, number, from_step, started, *lines):
    """Writes the segment of a start; a line is a step and its seconds."""
    (run_dir / "records").mkdir(exist_ok=True)
    header = {"format_version": 1, "version": "1", "from_step": from_step, "started": started}
    texts = [
        {"step": step, "tokens": step, "values": {}, "seconds": seconds} for step, seconds in lines
    ]
    text = "".join(json.dumps(x) + "\n" for x in [header, *texts])
    (run_dir / "records" / f"{number:04d}.jsonl").write_text(text)


def seconds(updates, **others):
    return {"updates": updates, **others}


def test_lost_work_is_what_a_later_start_went_back_behind(tmp_path):
    """1,000 s in all: 100 s of the first start are lost, and 300 s have no record."""
    write(
        tmp_path, 0, 0, "2026-01-01T00:00:00+00:00",
        (20, seconds(150.0, compiling=50.0)),
        (40, seconds(300.0, compiling=50.0, saving=50.0)),
        (60, seconds(380.0, compiling=50.0, saving=70.0)),
    )  # fmt: skip
    write(tmp_path, 1, 40, "2026-01-01T00:13:20+00:00", (50, seconds(190.0, saving=10.0)))
    total, shares = time_shares(tmp_path)
    assert total == 1000
    assert shares == pytest.approx(
        {
            "updates": 0.49,
            "compiling": 0.05,
            "saving": 0.06,
            "lost work": 0.1,
            "none of these": 0.3,
        }
    )
    (line,) = describe(tmp_path)
    assert "updates 49.0%" in line
    assert "lost work 10.0%" in line


def test_start_that_goes_back_behind_two_loses_the_work_of_both(tmp_path):
    """Of 100 + 100 + 100 s, those of the first start up to step 10 stay, and all of the third."""
    write(tmp_path, 0, 0, "2026-01-01T00:00:00+00:00", (10, seconds(40.0)), (20, seconds(100.0)))
    write(tmp_path, 1, 20, "2026-01-01T00:01:40+00:00", (30, seconds(100.0)))
    write(tmp_path, 2, 10, "2026-01-01T00:03:20+00:00", (20, seconds(100.0)))
    total, shares = time_shares(tmp_path)
    assert total == 300
    assert shares["lost work"] == pytest.approx(160 / 300)
    assert shares["updates"] == pytest.approx(140 / 300)


def test_clock_that_was_set_back_leaves_shares(tmp_path):
    write(tmp_path, 0, 0, "2026-01-02T00:00:00+00:00", (10, seconds(60.0)))
    write(tmp_path, 1, 10, "2026-01-01T00:00:00+00:00", (20, seconds(40.0)))
    assert time_shares(tmp_path) == (100, {"updates": 1, "lost work": 0, "none of these": 0})


def test_records_without_seconds_have_no_shares(tmp_path):
    write(tmp_path, 0, 0, "2026-01-01T00:00:00+00:00")
    assert describe(tmp_path) == []
    assert read_records(tmp_path) == []
