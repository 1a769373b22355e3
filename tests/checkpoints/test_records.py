"""Records: one row a step, no name twice, and nothing of a kill to be seen."""

import json
import pathlib
import tempfile

import hypothesis
import hypothesis.strategies as st
import pytest

from anytime_jax import __version__
from anytime_jax.checkpoints.records import RecordWriter, Row, read_records


def segment(run, number):
    return run / "records" / f"{number:04d}.jsonl"


def test_rows_are_read_as_they_were_written(tmp_path):
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
    assert json.loads(header) == {"format_version": 1, "segment": 0, "from_step": 0, "jax": "1"}


def test_a_name_is_written_once_a_step_and_never_into_the_past(tmp_path):
    writer = RecordWriter(tmp_path, 3, {})
    writer.write(5, 50, {"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match=r"\['b'\] again at step 5"):
        writer.write(5, 50, {"c": 1.0, "b": 1.0})
    writer.write(5, 50, {"c": 2.0})  # what was refused left no name behind
    with pytest.raises(ValueError, match="into the past at step 4, after step 5"):
        writer.write(4, 40, {"d": 1.0})
    writer.write(6, 60, {"b": 2.0})
    writer.close()
    assert [row.values for row in read_records(tmp_path)] == [
        {"a": 1.0, "b": 1.0, "c": 2.0},
        {"b": 2.0},
    ]


def test_the_step_that_a_start_begins_at_is_not_the_past(tmp_path):
    writer = RecordWriter(tmp_path, 4, {})
    writer.write(4, 40, {"a": 1.0})
    with pytest.raises(ValueError, match="into the past"):
        writer.write(3, 30, {"a": 1.0})
    writer.close()


def test_a_start_supersedes_what_came_after_its_step(tmp_path):
    for start, steps in ((0, (2, 4, 6)), (4, (6, 8, 10)), (8, ())):
        writer = RecordWriter(tmp_path, start, {})
        for step in steps:
            writer.write(step, 10 * step, {"from": float(start)})
        writer.close()
    assert [(row.step, row.values["from"]) for row in read_records(tmp_path)] == [
        (2, 0.0),
        (4, 0.0),
        (6, 4.0),
        (8, 4.0),
    ]
    assert len(list((tmp_path / "records").iterdir())) == 3  # nothing is ever overwritten


def test_a_torn_line_is_passed_over_wherever_it_breaks(tmp_path):
    writer = RecordWriter(tmp_path, 0, {"note": "é"})
    writer.write(2, 20, {"a": 1.0})
    writer.write(4, 40, {"a": 2.0})
    writer.close()
    whole = segment(tmp_path, 0).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        segment(tmp_path, 0).write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        assert [row.step for row in read_records(tmp_path)] == [2, 4][: max(0, complete - 1)]


def test_a_start_that_was_killed_while_it_wrote_its_head_changes_nothing(tmp_path):
    writer = RecordWriter(tmp_path, 0, {})
    writer.write(2, 20, {"a": 1.0})
    writer.close()
    segment(tmp_path, 1).write_text('{"segment": 1, "from_')
    writer = RecordWriter(tmp_path, 2, {})
    writer.write(4, 40, {"a": 2.0})
    writer.close()
    assert segment(tmp_path, 2).is_file()
    assert [row.step for row in read_records(tmp_path)] == [2, 4]


def write_lines(run, number, *lines):
    segment(run, number).parent.mkdir(parents=True, exist_ok=True)
    segment(run, number).write_text("".join(f"{line}\n" for line in lines))


HEAD = f'{{"format_version": 1, "segment": 0, "from_step": 0, "version": "{__version__}"}}'
ROW = '{"step": %d, "tokens": 8, "values": {"a": 1.5}}'


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", "null", "", '{"step": 3}', '{"step": -1, "tokens": 8, "values": {}}',
     '{"step": "3", "tokens": 8, "values": {}}', '{"step": 3, "tokens": 8, "values": 1}',
     '{"step": 3, "tokens": 8, "values": {"a": "b"}}',
     '{"step": 3, "tokens": 8, "values": {"a": []}}'],
)  # fmt: skip
def test_a_segment_is_read_as_far_as_it_is_good_and_that_is_said(tmp_path, line):
    write_lines(tmp_path, 0, HEAD, ROW % 2, line, ROW % 4)
    write_lines(tmp_path, 1, HEAD.replace('step": 0', 'step": 2'), ROW % 6)
    said = []
    assert [row.step for row in read_records(tmp_path, said.append)] == [2, 6]
    (remark,) = said
    assert f"{segment(tmp_path, 0)}: read up to line 3, which is no record" in remark


def test_bytes_that_are_no_text_are_said_too(tmp_path):
    write_lines(tmp_path, 0, HEAD, ROW % 2)
    with segment(tmp_path, 0).open("ab") as file:
        file.write(b"\xff\xfe\x00\n")
    said = []
    assert [row.step for row in read_records(tmp_path, said.append)] == [2]
    assert "line 3" in said[0]


@pytest.mark.parametrize("head", [HEAD.replace('version": 1', 'version": 2'), "{}", "[]", "x"])
def test_a_segment_of_another_format_is_passed_over_and_that_is_said(tmp_path, head):
    write_lines(tmp_path, 0, HEAD, ROW % 2, ROW % 4)
    write_lines(tmp_path, 1, head, ROW % 3)
    said = []
    assert [row.step for row in read_records(tmp_path, said.append)] == [2, 4]
    (remark,) = said
    assert "line 1" in remark


def test_another_version_of_the_code_is_said_and_read(tmp_path):
    write_lines(tmp_path, 0, HEAD.replace(__version__, "0.0.1"), ROW % 2)
    said = []
    assert [row.step for row in read_records(tmp_path, said.append)] == [2]
    assert said == [f"{segment(tmp_path, 0)}: written by version 0.0.1, this is {__version__}"]


def test_a_torn_line_is_said(tmp_path):
    write_lines(tmp_path, 0, HEAD, ROW % 2)
    with segment(tmp_path, 0).open("a") as file:
        file.write('{"step": 4, "tok')
    said = []
    assert [row.step for row in read_records(tmp_path, said.append)] == [2]
    assert "its last line is torn" in said[0]


def test_no_records_is_no_rows(tmp_path):
    assert read_records(tmp_path) == []


STEPS = 12


def run_until(run, start, end, torn):
    """Writes what a start of a run writes up to its end, its last line torn where asked."""
    writer = RecordWriter(run, start, {})
    for step in range(start + 1, end + 1):
        if step % 2 == 0:
            writer.write(step, 10 * step, {"train/loss": 1 / step})
        if step % 3 == 0:
            writer.write(step, 10 * step, {"eval/last/loss": 2 / step})
    writer.close()
    if torn:
        file = sorted((run / "records").iterdir())[-1]
        content = file.read_bytes()
        file.write_bytes(content[: max(0, len(content) - torn)])


@hypothesis.given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, 60)), max_size=5),
)
def test_kills_and_resumes_leave_the_records_of_an_unbroken_run(every, kills):
    """`every` updates a checkpoint; a kill after some updates tears some bytes off the last line.

    What was written before a checkpoint is safe: records are synced before every save.
    """
    with tempfile.TemporaryDirectory() as folder:
        broken, whole = pathlib.Path(folder, "broken"), pathlib.Path(folder, "whole")
        run_until(whole, 0, STEPS, 0)
        start = 0
        for updates, torn in kills:
            end = min(start + updates, STEPS)
            saved = max(start, end // every * every)
            unsafe = any(step % 2 == 0 or step % 3 == 0 for step in range(saved + 1, end + 1))
            run_until(broken, start, end, min(torn, 40) if unsafe else 0)
            start = saved
        run_until(broken, start, STEPS, 0)
        assert read_records(broken) == read_records(whole)
