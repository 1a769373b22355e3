"""Tests of the training command: bad input, signals and the command that it prints."""

import re
import shlex
import signal
import time

import pytest
import small_run
from small_run import write_config

from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import loss_figure, train

# Signals


def wait_for(start, text):
    limit = time.monotonic() + 300
    while text not in start.output:
        over = start.has_ended or time.monotonic() > limit
        assert not over, f"it never printed {text!r}:\n{start.output}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_signal_saves_and_the_printed_command_resumes(dataset, tmp_path, starts, number):
    run = tmp_path / "a run"
    file = write_config(
        tmp_path / "config.py", run, dataset.path, stop="never", data__repeat=True,
        eval__every="1000 steps", checkpoint__every="1000 steps", log__trackers={"tensorboard": {}},
    )  # fmt: skip
    first = starts.launch(f"--config={file}", "--config.name=two words", folder=tmp_path)
    wait_for(first, "1x  validation")
    first.kill(number)
    assert first.wait() == 0, first.output
    assert "finishing this update, then saving" in first.output
    assert "Traceback" not in first.output
    (saved,) = re.findall(r"interrupted, saved at ([\d,]+) steps", first.output)
    step = int(saved.replace(",", ""))
    assert (run / "checkpoints" / str(step)).is_dir()
    (line,) = re.findall(r"To resume: python -m anytime_jax\.main (.*)", first.output)
    argv = shlex.split(line)
    assert argv == [f"--config={file}", "--config.name=two words"]

    # To the next step but one: the end of a run, its table and its figure.
    end = step + 2
    second = starts.launch(*argv, f"--config.stop={end} steps", folder=tmp_path)
    assert second.wait() == 0, second.output
    assert f"from     {step:,} steps" in second.output
    assert f"at {end:,} steps" in second.output
    assert "validation loss (nats per token), * the best of each row" in second.output
    (line,) = re.findall(r"To continue to .*: python -m anytime_jax\.main (.*)", second.output)
    assert [word.partition("=")[0] for word in shlex.split(line)].count("--config.stop") == 1
    assert (run / "curves.png").stat().st_size > 10_000
    assert any((run / "tensorboard").iterdir())
    rows = read_records(run)
    assert rows[-1].step == end
    assert [row.step for row in rows if "train/loss" in row.values] == [*range(3, end + 1, 3)]


def test_plan_says_what_a_start_would_do_and_writes_nothing(dataset, tmp_path, command):
    file = write_config(tmp_path / "config.py", tmp_path / "run", dataset.path)
    status, out, err = command(train, f"--config={file}", "--plan")
    assert (status, err) == (0, "")
    assert "from     0 steps" in out
    assert not (tmp_path / "run").exists()


def test_curves_that_cannot_be_drawn_are_a_line(tmp_path, monkeypatch, capsys):
    def fail(*unused):
        raise KeyError("f7")

    monkeypatch.setattr(loss_figure, "draw", fail)
    assert train._draw_figures(small_run.config(tmp_path), []) == {}
    assert f"the curves could not be drawn in {tmp_path}: KeyError: 'f7'" in capsys.readouterr().out
