"""Tests of the training command: bad input, signals and the command that it prints.

Each start is a process forked before JAX has opened a device (`forked_starts.py`): many for the
price of one import.
"""

import json
import os
import re
import shlex
import signal
import time

import pytest
import small_run
from small_run import write_config

from anytime_jax.checkpoints import loss_figure
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import config_file, train
from anytime_jax.config import schema
from anytime_jax.distributed import jax_settings
from anytime_jax.training import signals

# Bad input: arguments, and what the message names
BAD = {
    "no configuration": ([], "--config=quickstart"),
    "two configurations": (["--config=good.py", "--config=b.py"], "b.py"),
    "unknown option": (["--config=good.py", "--confg=1"], "--confg"),
    "argument without an option": (["--config=good.py", "extra"], "extra"),
    "missing file": (["--config=none.py"], "none.py"),
    "misspelt name": (["--config=quikstart"], "did you mean --config=quickstart?"),
    "folder": (["--config=."], "--config=."),
    "unknown setting": (["--config=good.py", "--config.batchsize=4"], "did you mean batch_size?"),
    "unknown nested setting": (["--config=good.py", "--config.model.widht=4"], "model.width"),
    "another type": (["--config=good.py", "--config.batch_size=many"], "batch_size"),
    "bad value": (["--config=good.py", "--config.optimizer.b2=1.5"], "config.optimizer.b2"),
    "unknown optimizer": (
        ["--config=good.py", "--config.optimizer.kind=adam"],
        "adamw, muon, pace, schedule_free_adamw",
    ),
    "setting of another optimizer": (
        ["--config=good.py", "--config.optimizer.pullback=0.1"],
        "config.optimizer.pullback is not a setting of adamw",
    ),
    "a whole group": (
        ["--config=good.py", "--config.optimizer=muon"],
        "config.optimizer is a group of settings: change one of them, such as optimizer.kind",
    ),
    "optimizer that is not there": (
        ["--config=good.py", "--config.optimizer.kind=no_such_package:Mine"],
        "config.optimizer.kind = 'no_such_package:Mine' cannot be imported",
    ),
    "schedule without its settings": (
        ["--config=good.py", "--config.schedule.kind=cosine"],
        "config.schedule.horizon is missing",
    ),
    "syntax error": (["--config=syntax.py"], "syntax.py"),
    "error inside the file": (["--config=raises.py"], "ZeroDivisionError"),
    "exit inside the file": (["--config=exits.py"], "SystemExit"),
    "missing import": (["--config=imports.py"], "no_such_module"),
    "no get_config": (["--config=empty.py"], "get_config"),
    "missing setting": (["--config=missing.py"], "config.name"),
    "process without its coordinator": (["--config=good.py", "--process=1"], "--coordinator"),
    "process beyond the last": (
        ["--config=good.py", "--coordinator=a:1", "--processes=2", "--process=2"],
        "--process=2",
    ),
    "no cluster": (["--config=good.py", "--cluster"], "--cluster"),
    "missing data": (["--config=good.py"], "python -m anytime_jax prepare"),
}


@pytest.fixture(scope="module")
def results(starts, tmp_path_factory):
    """Exit status, output and error output of each bad command line, and what they left."""
    folder = tmp_path_factory.mktemp("bad")
    write_config(folder / "good.py", folder / "run", folder / "data")
    (folder / "syntax.py").write_text("def get_config(:\n    return 1\n")
    (folder / "raises.py").write_text("def get_config():\n    return 1 / 0\n")
    (folder / "exits.py").write_text("raise SystemExit(0)\n")
    (folder / "imports.py").write_text("import no_such_module\n")
    (folder / "empty.py").write_text("config = 1\n")
    (folder / "missing.py").write_text(
        (folder / "good.py").read_text().replace("return small_run", "config = small_run")
        + "    del config.name\n    return config\n"
    )
    before = sorted(folder.iterdir())
    results = {}
    for name, (argv, _) in BAD.items():
        start = starts.launch(*argv, folder=folder, separate_errors=True)
        results[name] = (start.wait(), start.output, start.errors)
    return results, [p.name for p in sorted(folder.iterdir()) if p not in before]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(results, name):
    status, out, err = results[0][name]
    assert (status, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert BAD[name][1] in err


def test_bad_input_leaves_no_files(results):
    assert results[1] in ([], ["__pycache__"])


REJECTED = {
    "eval.tokens": ({"eval__tokens": 10_000}, "config.eval.tokens"),
    "length": ({"model__length": 16, "chinchilla_tokens": 640}, "length = 16, but it has 8"),
    "vocabulary": ({"model__vocab_size": 200}, "vocab_size = 200, but it has 300"),
    "mesh": ({"mesh__data": 3}, "config.mesh"),
    "batch": ({"batch_size": 12}, "config.batch_size"),
    "evaluated batch": ({"eval__batch_size": 6}, "config.eval.batch_size"),
    "heads": ({"mesh__tensor": 8}, "config.model.heads"),
    "stop": ({"stop": "100x"}, "config.stop"),
    "wandb": ({"log__wandb_project": "mine"}, "anytime_jax[wandb]"),
    "width": ({"mesh__fsdp": 8, "model__width": 20, "model__heads": 2}, "fsdp = 8"),
}


@pytest.fixture
def train_rejected(monkeypatch, rejected):
    """Trains with settings that must be rejected; returns the line of error output."""

    def start(settings):
        monkeypatch.setattr(config_file, "load", lambda arguments: schema.build(settings.to_dict()))
        monkeypatch.setattr(jax_settings, "configure", lambda: None)
        return rejected(train)

    return start


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_start_leaves_no_files(train_rejected, dataset, tmp_path, name):
    changes, named = REJECTED[name]
    run = tmp_path / "runs" / "run"
    assert named in train_rejected(small_run.settings(run, dataset.path, **changes))
    assert not run.parent.exists()


def test_directory_of_another_run_is_rejected(train_rejected, dataset, tmp_path):
    other = json.dumps({"identity": {"seed": 5}})
    (tmp_path / "run.json").write_text(other)
    assert "seed was 5, is 0" in train_rejected(small_run.settings(tmp_path, dataset.path))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", other)]


def test_run_directory_inside_a_file_is_rejected(train_rejected, dataset, tmp_path):
    (tmp_path / "file").write_text("")
    settings = small_run.settings(tmp_path / "file" / "run", dataset.path)
    assert "config.run_dir" in train_rejected(settings)


# Signals


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_signals_of_terminals_and_schedulers_request_a_save(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with signals.interruptible() as interrupted:
            os.kill(os.getpid(), number)
            assert interrupted()
        signal.signal(number, signal.SIG_IGN)
        with signals.interruptible() as interrupted:  # as under nohup
            os.kill(os.getpid(), number)
            assert not interrupted()
    finally:
        signal.signal(number, before)


def test_first_signal_requests_a_save_and_a_second_interrupt_kills():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with signals.interruptible() as interrupted:
            assert not interrupted()
            os.kill(os.getpid(), number)
            assert interrupted()
            os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat it during the save
            assert interrupted()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def wait_for(start, text):
    limit = time.monotonic() + 60
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
        eval__every="1000 steps", checkpoint__every="1000 steps", log__tensorboard=True,
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


def test_curves_that_cannot_be_drawn_are_a_line(tmp_path, monkeypatch, capsys):
    def fail(*unused):
        raise KeyError("f7")

    monkeypatch.setattr(loss_figure, "draw", fail)
    assert train._draw_curves(small_run.config(tmp_path), []) is None
    assert f"the curves could not be drawn in {tmp_path}: KeyError: 'f7'" in capsys.readouterr().out
