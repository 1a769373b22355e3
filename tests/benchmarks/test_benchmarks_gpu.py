"""The one command for a GPU: it refuses where there is none, and outlives the parts that fail."""

import json
import math

import pytest

from anytime_jax.checkpoints.records import Row
from anytime_jax.errors import RunError
from benchmarks import gpu, training


def test_no_gpu_is_bad_input(capsys, tmp_path):
    output = tmp_path / "gpu.json"
    assert gpu.main([f"--output={output}"]) == 2
    error = capsys.readouterr().err
    assert error == "error: JAX sees no GPU here, only a cpu: try --smoke\n"
    assert not output.exists()


def part(module, smoke="", seconds=5.0):
    return gpu.Part(seconds=seconds, module=module, full=smoke, smoke=smoke)


def test_a_part_that_fails_is_a_row_and_not_the_end(monkeypatch, tmp_path, capsys):
    parts = {
        "endless": part("timeit", "-n 1000000000 pass", seconds=0.5),
        "absent": part("no_such_module"),
        "peers": part("platform", "--torch-python=TORCH"),
        "good": part("platform"),
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "_LOOKING", 0)
    monkeypatch.setattr(gpu, "_look", lambda: {"platform": "cpu", "devices": "1 x cpu"})
    written, save = [], gpu.record.save

    def saved(name, argv, rows, *more):
        written.append(len(rows))
        save(name, argv, rows, *more)

    monkeypatch.setattr(gpu.record, "save", saved)
    output = tmp_path / "gpu.json"
    assert gpu.main(["--smoke", f"--output={output}"]) == 1
    assert written == [1, 2, 3, 4]  # after every part
    found = json.loads(output.read_text())
    measured = {row["part"]: row["measured"] for row in found["rows"]}
    assert list(measured) == list(parts)
    assert measured.pop("endless").startswith("ended: it took over ")
    assert found["details"]["endless"]["seconds"] < 4
    assert measured.pop("absent").endswith("No module named no_such_module")
    assert measured.pop("peers") == "left out: it needs --torch-python"
    assert measured.pop("good").endswith(" s")
    assert "absent: failed: " in capsys.readouterr().out


def test_parts_fit_nine_minutes_and_bring_their_data():
    assert gpu._LOOKING + sum(part.seconds for part in gpu.PARTS.values()) <= 540
    assert gpu.choose(["theory", "startup"]) == ["corpus", "startup", "theory"]
    assert gpu.choose(["ceiling"]) == ["ceiling"]


def test_words_of_a_failure():
    said = "Traceback\nValueError: too much\n----\nFor simplicity, frames are hidden.\n"
    assert gpu._last_words(said) == "ValueError: too much"
    assert gpu._last_words("only this\n") == "only this"
    assert gpu._last_words("error: no /home/someone/file\n") == "error: no file"


def test_rows_of_a_record():
    found = {"rows": [{"what": "x", "tokens_per_s": 12_345.6, "gain": None, "met": "no", "y": 1}]}
    given = gpu.Part(1, "x", "", "", columns=("tokens_per_s", "gain", "met"))
    (row,) = gpu.make_rows("a", given, gpu.Outcome(1.0, found=found))
    assert row == {"part": "a", "what": "x", "measured": "12,346 tokens/s, target missed"}


def run_of(losses):
    """Records of a run: one row an update, and speeds that differ from run to run."""
    return [
        Row(i, 8 * i, {"train/loss": loss, "eval/f25/loss": loss, "tokens_per_s": 100.0 + i})
        for i, loss in enumerate(losses, start=1)
    ]


def test_two_runs_are_compared_without_their_timings():
    ours = run_of([5.0, 4.0, 3.0])
    others = [Row(row.step, row.tokens, {**row.values, "tokens_per_s": 1.0}) for row in ours]
    assert training.largest_difference(ours, others) == 0
    assert training.largest_difference(ours, run_of([5.0, 4.25, 3.0])) == 0.25
    assert math.isnan(training.largest_difference(ours, run_of([5.0, math.nan, 3.0])))
    with pytest.raises(RunError, match="not of the same things"):
        training.largest_difference(ours, ours[:2])


def test_what_is_told_of_a_run():
    rows = training.make_rows(run_of([5.0, *[4.0] * 8, 1.0, 2.0, 3.0]), 1e-3, saved=6)
    told = {row["what"]: (row["value"], row["met"]) for row in rows}
    assert told["train/loss of the last 3"] == (2.0, "yes")
    assert told["largest difference, resumed"] == (1e-3, "no")
    assert told["tokens/s before the save"] == (104.0, None)  # updates 3 to 5
    assert told["tokens/s while it is written"] == (109.0, None)  # updates 8 to 10
    assert "mfu at the end" not in told
    (row,) = [row for row in training.make_rows(run_of([3.0] * 12), 0.0, 6) if row["met"] == "no"]
    assert row["what"] == "train/loss of the last 3"


def test_an_odd_number_of_updates(capsys):
    assert training.main(["--data=none", "--updates=9"]) == 2
    assert capsys.readouterr().err == "error: --updates=9: give an even number from 8\n"
