"""The command line: one clear line for what cannot be used, and a run that a signal cannot spoil.

Each is a process forked before JAX has opened any device (`forked.py`): many for the price of one
start of Python.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import time

import pytest
import small_run
from run_command import run_command
from small_run import dataset_fixture, write_config  # noqa: F401

from anytime_jax.checkpoints.records import read_records
from anytime_jax.commands import config_file, train
from anytime_jax.distributed import runtime
from anytime_jax.training import startup

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


# Bad input

BAD = {
    "no configuration": ([], "--config"),
    "a flag that is not there": (["--config=good.py", "--confg=1"], "confg"),
    "an argument without a flag": (["--config=good.py", "extra"], "extra"),
    "a file that is not there": (["--config=none.py"], "none.py"),
    "a folder": (["--config=."], "--config=."),
    "an unknown setting": (
        ["--config=good.py", "--config.batchsize=4"],
        "config.batchsize is not a setting: did you mean batch_size?",
    ),
    "an unknown nested setting": (["--config=good.py", "--config.model.widht=4"], "model.width"),
    "another type": (["--config=good.py", "--config.batch_size=many"], "batch_size"),
    "a bad value": (
        ["--config=good.py", "--config.optimizer.b2=1.5"],
        "config.optimizer.b2 = 1.5 is not allowed",
    ),
    "a syntax error": (["--config=syntax.py"], "syntax.py"),
    "an error inside the file": (["--config=raises.py"], "ZeroDivisionError"),
    "an import that is not there": (["--config=imports.py"], "no_such_module"),
    "a file without get_config": (["--config=empty.py"], "get_config"),
    "a setting that is missing": (["--config=missing.py"], "config.seed is missing"),
    "half of a host's place": (
        ["--config=good.py", "--process=1"],
        "--coordinator and --processes",
    ),
    "a place beyond the last": (
        ["--config=good.py", "--coordinator=a:1", "--processes=2", "--process=2"],
        "--process=2 of --processes=2",
    ),
    "a cluster that is none": (["--config=good.py", "--cluster"], "--cluster: the processes did"),
    "data that nobody prepared": (["--config=good.py"], "python -m anytime_jax prepare"),
}


@pytest.fixture(scope="module")
def answers(starts, tmp_path_factory):
    """Exit status, output and complaint of each bad command line."""
    folder = tmp_path_factory.mktemp("bad")
    write_config(folder / "good.py", folder / "run", folder / "data")
    (folder / "syntax.py").write_text("def get_config(:\n    return 1\n")
    (folder / "raises.py").write_text("def get_config():\n    return 1 / 0\n")
    (folder / "imports.py").write_text("import no_such_module\n")
    (folder / "empty.py").write_text("config = 1\n")
    (folder / "missing.py").write_text(
        (folder / "good.py").read_text().replace("return small_run", "given = small_run")
        + "    del given.seed\n    return given\n"
    )
    before = sorted(folder.iterdir())
    found = {}
    for name, (argv, _) in BAD.items():
        start = starts.begin(*argv, folder=folder, apart=True)
        found[name] = (start.wait(), start.said, start.complained)
    return found, [p.name for p in sorted(folder.iterdir()) if p not in before]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_and_status_2(answers, name):
    status, out, err = answers[0][name]
    assert status == 2, err
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    assert BAD[name][1] in line


def test_bad_input_leaves_nothing_behind(answers):
    assert answers[1] in ([], ["__pycache__"])


@pytest.fixture
def run_main(monkeypatch, capsys):
    """Runs `train` on settings; returns exit status and complaint."""

    def run(settings):
        monkeypatch.setattr(config_file, "load", lambda arguments: settings.to_dict())
        monkeypatch.setattr(runtime, "set_up", lambda: None)
        status = run_command(train, [])
        return status, capsys.readouterr().err

    return run


REFUSED = {
    "eval.tokens": ({"eval__tokens": 10_000}, r"config\.eval\.tokens = 10,000"),
    "length": ({"model__length": 16, "chinchilla_tokens": 640}, r"windows of 8"),
    "vocabulary": ({"model__vocab_size": 200}, r"vocabulary of 300"),
    "mesh": ({"mesh__data": 3}, r"config\.mesh: .* 8 devices"),
    "batch": ({"batch_size": 12}, r"config\.batch_size / microbatches = 12"),
    "heads": ({"mesh__tensor": 8}, r"config\.model\.heads = 4"),
    "stop": ({"stop": "100x"}, r"config\.stop = '100x' needs 8,000 windows"),
    "wandb": ({"log__wandb_project": "mine"}, r"pip install 'anytime_jax\[wandb\]'"),
    "width": (
        {"mesh__fsdp": 8, "model__width": 20, "model__heads": 2},
        r"config\.mesh.*fsdp = 8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_start_leaves_nothing_behind(run_main, dataset, tmp_path, name):
    changes, message = REFUSED[name]
    run = tmp_path / "runs" / "run"
    status, err = run_main(small_run.settings(run, dataset.path, **changes))
    assert status == 2, err
    (line,) = err.splitlines()
    assert re.match(f"error: .*{message}", line), line
    assert not run.parent.exists()


def test_a_directory_of_another_run_is_refused_as_it_is(run_main, dataset, tmp_path):
    other = json.dumps({"identity": {"seed": 5}})
    (tmp_path / "run.json").write_text(other)
    status, err = run_main(small_run.settings(tmp_path, dataset.path))
    assert status == 2
    assert "belongs to a run with other settings" in err
    assert "seed was 5, is 0" in err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", other)]


def test_a_run_directory_that_cannot_be_made_is_bad_input(run_main, dataset, tmp_path):
    (tmp_path / "file").write_text("")
    status, err = run_main(small_run.settings(tmp_path / "file" / "run", dataset.path))
    assert status == 2
    assert "config.run_dir" in err


# Signals


def test_the_first_signal_asks_and_a_second_interrupt_kills():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with startup.interruptible() as asked:
            assert not asked()
            os.kill(os.getpid(), number)
            assert asked()
            os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may insist: it is under way
            assert asked()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def wait_for(start, text):
    """Waits until a start has said something."""
    limit = time.monotonic() + 60
    while text not in start.said:
        over = start.is_over or time.monotonic() > limit
        assert not over, f"it never said {text!r}:\n{start.said}"
        time.sleep(0.05)


def go_on_line(said):
    """Where an interrupted run was saved, and the arguments that it says to go on with."""
    (step,) = re.findall(r"interrupted, saved at ([\d,]+) steps", said)
    (line,) = re.findall(r"To resume: (\S*python\S* -m anytime_jax\.main .*)", said)
    return int(step.replace(",", "")), shlex.split(line)[3:]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_line_that_is_printed_goes_on(dataset, tmp_path, starts, number):
    run = tmp_path / "a run"
    file = write_config(
        tmp_path / "config.py", run, dataset.path, stop="never", data__repeat=True,
        eval__every="1000 steps", checkpoint__every="1000 steps", log__tensorboard=True,
    )  # fmt: skip
    first = starts.begin(f"--config={file}", "--config.name=two words", folder=tmp_path)
    wait_for(first, "1x  validation")
    first.kill(number)
    assert first.wait() == 0, first.said
    said = first.said
    assert "finishing this update, then saving" in said
    assert "Traceback" not in said
    step, argv = go_on_line(said)
    assert (run / "checkpoints" / str(step)).is_dir()
    assert "--config.name=two words" in argv

    # To the next step but one: the end of a run, its table and its picture.
    end = step + 2
    second = starts.begin(*argv, f"--config.stop={end} steps", folder=tmp_path)
    assert second.wait() == 0, second.said
    said = second.said
    assert f"from     {step:,} steps" in said
    assert f"at {end:,} steps" in said
    assert "validation loss (nats per token), * the best of each row" in said
    assert "To continue to" in said
    assert (run / "curves.png").stat().st_size > 10_000
    assert any((run / "tensorboard").iterdir())
    rows = read_records(run)
    assert rows[-1].step == end
    assert [row.step for row in rows if "train/loss" in row.values] == [*range(3, end + 1, 3)]
