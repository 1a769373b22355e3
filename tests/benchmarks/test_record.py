"""Timing in turn, and the record of a benchmark."""

import json

import jax

from benchmarks import harness, record


def test_interleave_alternates_and_drops_first_round():
    clock = iter(range(100))
    order = []

    def timer(name):
        order.append(name)
        return float(next(clock))

    seconds = harness.interleave({"a": lambda: timer("a"), "b": lambda: timer("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert seconds == {"a": [2.0, 4.0, 6.0], "b": [3.0, 5.0, 7.0]}
    assert harness.medians(seconds) == {"a": 4.0, "b": 5.0}


def test_record_has_date_and_versions_but_no_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=/home/someone/dump --xla_b=2")
    parser = harness.make_parser("benchmarks.x", "about")
    parser.add_argument("--a")
    result = record.Result("title", [{"n": 1, "seconds": 2 / 3}])
    for _ in range(2):
        assert record.run(parser, ["--a=/home/someone/b c"], lambda options: result) == 0
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 2  # appended
    contents = json.loads(lines[1])
    assert contents["rows"] == [{"n": 1, "seconds": 0.666667}]
    assert contents["command"].startswith("python -m benchmarks.x '--a=b c'")
    assert contents["machine"]["environment"]["XLA_FLAGS"] == "--xla_a=dump --xla_b=2"
    assert contents["versions"]["jax"] == jax.__version__
