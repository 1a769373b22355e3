"""Records: one row a step, and the same after kills and resumes as without."""

import json
import os
import pathlib
import tempfile

import hypothesis
import hypothesis.strategies as st
import pytest

from anytime_jax import __version__
from anytime_jax.checkpoints import metric_records
from anytime_jax.checkpoints.metric_records import RecordWriter, Row, read_records

HEADER = f'{{"format_version": 1, "from_step": 0, "version": "{__version__}"}}'
ROW = '{"step": %d, "tokens": 8, "values": {"a": 1.5}}'


def segment(run, number):
    return run / "records" / f"{number:04d}.jsonl"


def write_lines(run, number, *lines):
    segment(run, number).parent.mkdir(parents=True, exist_ok=True)
    segment(run, number).write_text("".join(f"{line}\n" for line in lines))


def write(run, start, rows):
    """Writes a segment with the values of each step."""
    writer = RecordWriter(run, start, {"note": "é"})
    for step, values in rows:
        writer.write(step, 10 * step, values)
    writer.close()


def steps_and_warnings(run):
    warnings = []
    return [row.step for row in read_records(run, warnings.append)], warnings


def test_rows_round_trip(tmp_path):
    assert read_records(tmp_path) == []
    writer = RecordWriter(tmp_path, 0, {"jax": "1"})
    writer.write(2, 20, {"train/loss": 5.5, "lr": 1e-3})
    writer.write(2, 20, {"eval/last/loss": 5.0})
    writer.write(4, 40, {"train/loss": 1 / 3})
    writer.sync()
    assert read_records(tmp_path) == [
        Row(2, 20, {"train/loss": 5.5, "lr": 1e-3, "eval/last/loss": 5.0}),
        Row(4, 40, {"train/loss": 1 / 3}),
    ]
    writer.close()
    header, *_ = segment(tmp_path, 0).read_text().split("\n")
    assert json.loads(header) == {**json.loads(HEADER), "jax": "1"}


def test_write_rejects_repeated_names_and_earlier_steps(tmp_path):
    writer = RecordWriter(tmp_path, 5, {})
    writer.write(5, 50, {"a": 1.0, "b": 1.0})  # the first step itself is no earlier one
    with pytest.raises(ValueError, match="'b'"):
        writer.write(5, 50, {"c": 1.0, "b": 1.0})
    writer.write(5, 50, {"c": 2.0})  # a rejected row leaves no name behind
    with pytest.raises(ValueError, match="step 4"):
        writer.write(4, 40, {"d": 1.0})
    writer.write(6, 60, {"b": 2.0})
    writer.close()
    assert [row.values for row in read_records(tmp_path)] == [
        {"a": 1.0, "b": 1.0, "c": 2.0},
        {"b": 2.0},
    ]


def test_amended_row_keeps_the_rows_after_it(tmp_path):
    write(tmp_path, 0, [(2, {"a": 1.0, "b": 1.0}), (4, {"a": 2.0})])
    writer = RecordWriter(tmp_path, None, {})
    writer.amend(2, 20, {"b": 3.0, "c": 4.0})
    writer.close()
    rows = [(row.step, row.tokens, row.values) for row in read_records(tmp_path)]
    assert rows == [(2, 20, {"a": 1.0, "b": 3.0, "c": 4.0}), (4, 40, {"a": 2.0})]


def test_file_cut_at_any_byte_keeps_complete_rows(tmp_path):
    write(tmp_path, 0, [(2, {"a": 1.0}), (4, {"a": 2.0})])
    content = segment(tmp_path, 0).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        segment(tmp_path, 0).write_bytes(content[:cut])
        steps, warnings = steps_and_warnings(tmp_path)
        assert steps == [2, 4][: max(0, sum(end <= cut for end in ends) - 1)]
        assert len(warnings) == (cut not in (0, *ends))


def test_segment_without_complete_header_supersedes_nothing(tmp_path):
    write_lines(tmp_path, 0, HEADER, ROW % 2)
    segment(tmp_path, 1).write_text('{"format_version": 1, "from_')
    write(tmp_path, 2, [(4, {"a": 2.0})])
    assert segment(tmp_path, 2).is_file()
    assert [row.step for row in read_records(tmp_path)] == [2, 4]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"step": 3}',
        '{"step": -1, "tokens": 8, "values": {}}',
        '{"step": 3, "tokens": 8, "values": {"a": "b"}}',
        "\udcff\udcfe\x00",
    ],
)
def test_segment_is_read_up_to_an_invalid_line(tmp_path, line):
    write_lines(tmp_path, 0, HEADER, ROW % 2)
    with segment(tmp_path, 0).open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{line}\n{ROW % 4}\n")
    write_lines(tmp_path, 1, HEADER.replace('step": 0', 'step": 2'), ROW % 6)
    steps, (warning,) = steps_and_warnings(tmp_path)
    assert steps == [2, 6]
    assert f"{segment(tmp_path, 0)}: read up to line 3" in warning


@pytest.mark.parametrize("header", [HEADER.replace('version": 1', 'version": 2'), "[]"])
def test_segment_of_another_format_is_skipped_with_a_warning(tmp_path, header):
    write_lines(tmp_path, 0, HEADER, ROW % 2, ROW % 4)
    write_lines(tmp_path, 1, header, ROW % 3)
    steps, (warning,) = steps_and_warnings(tmp_path)
    assert steps == [2, 4]
    assert "line 1" in warning


def test_starts_are_listed_once_each(tmp_path):
    for step, started in ((0, "first"), (5, "second"), (None, "scores")):
        writer = RecordWriter(tmp_path, step, {"started": started})
        writer.amend(1, 1, {"tasks/last/one/acc": 1.0})
        writer.close()
    (tmp_path / "records" / "0099.jsonl").write_text("[1]\n")
    starts = metric_records.read_starts(tmp_path)
    assert [(x["started"], x["from_step"]) for x in starts] == [("first", 0), ("second", 5)]


def test_seconds_are_read_by_start_and_change_no_row(tmp_path):
    spent = {"updates": 1.0}
    for step, start in ((0, "first"), (4, "second")):
        writer = RecordWriter(tmp_path, step, {"start": start}, seconds=lambda: spent)
        writer.write(step + 2, 2, {"a": 1.0})
        spent["saving"] = 0.25
        writer.amend(step + 3, 3, {})
        writer.close()
    assert [row.step for row in metric_records.read_records(tmp_path)] == [2, 6]
    first, second = (x["seconds"] for x in metric_records.read_starts(tmp_path))
    both = {"updates": 1.0, "saving": 0.25}
    assert first == [(2, {"updates": 1.0}), (3, both)]
    assert second == [(6, both), (7, both)]


@pytest.mark.parametrize(
    ("step", "seconds"), [("null", '{"updates": 1.0}'), ("0", "[1]")], ids=["no start", "a list"]
)
def test_seconds_that_are_of_no_start_are_left_out(tmp_path, step, seconds):
    line = f'{{"step": 1, "tokens": 1, "values": {{}}, "seconds": {seconds}}}'
    write_lines(tmp_path, 0, HEADER.replace('from_step": 0', f'from_step": {step}'), line)
    assert [x["seconds"] for x in metric_records.read_starts(tmp_path)] == [[]] * (step == "0")


def test_amendments_and_a_start_may_open_segments_at_the_same_time(tmp_path, monkeypatch):
    write(tmp_path, 0, [(2, {"a": 1.0}), (4, {"a": 2.0})])
    known = metric_records.segments(tmp_path)
    monkeypatch.setattr(metric_records, "segments", lambda run_dir: known)  # none sees the others
    writers = [RecordWriter(tmp_path, step, {}) for step in (None, 2, None)]
    monkeypatch.undo()
    for writer, values in zip(writers, ({"b": 1.0}, {"a": 3.0}, {"c": 1.0}), strict=True):
        writer.amend(2, 2, values)
        writer.close()
    assert [row.values for row in read_records(tmp_path)] == [{"a": 3.0, "b": 1.0, "c": 1.0}]


def test_closed_segment_is_on_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    write(tmp_path, 0, [(2, {"a": 1.0})])
    assert synced == [segment(tmp_path, 0).stat().st_size]


def test_segment_of_another_version_is_read_with_a_warning(tmp_path):
    write_lines(tmp_path, 0, HEADER.replace(__version__, "0.0.1"), ROW % 2)
    steps, (warning,) = steps_and_warnings(tmp_path)
    assert (steps, "0.0.1" in warning) == ([2], True)


STEPS = 12


def write_until(run, start, end, torn):
    """Writes the records of a start up to its end, and removes `torn` bytes of the last line."""
    steps = range(start + 1, end + 1)
    losses = [(step, {"train/loss": 1 / step}) for step in steps if step % 2 == 0]
    losses += [(step, {"eval/last/loss": 2 / step}) for step in steps if step % 3 == 0]
    write(run, start, sorted(losses, key=lambda row: row[0]))
    file = sorted((run / "records").iterdir())[-1]
    content = file.read_bytes()
    file.write_bytes(content[: max(0, len(content) - torn)])


@hypothesis.given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, 60)), max_size=5),
)
def test_killed_and_resumed_run_has_the_records_of_an_unbroken_one(every, kills):
    """A checkpoint at every `every` updates; each kill removes bytes of the last line.

    What was written before a checkpoint is safe: records are synced before every save.
    """
    with tempfile.TemporaryDirectory() as folder:
        broken, unbroken = pathlib.Path(folder, "broken"), pathlib.Path(folder, "unbroken")
        write_until(unbroken, 0, STEPS, 0)
        start = 0
        for updates, torn in kills:
            end = min(start + updates, STEPS)
            saved = max(start, end // every * every)
            unsafe = any(step % 2 == 0 or step % 3 == 0 for step in range(saved + 1, end + 1))
            write_until(broken, start, end, min(torn, 40) if unsafe else 0)
            start = saved
        write_until(broken, start, STEPS, 0)
        assert read_records(broken) == read_records(unbroken)
