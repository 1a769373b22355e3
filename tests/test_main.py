"""The command line: one clear line for what cannot be used, and a run that a signal cannot spoil.

`commands` runs many command lines for the price of one start of Python: each in a process forked
before JAX has opened any device.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import types

import pytest
import tiny
from forked import environment
from tiny import dataset_fixture  # noqa: F401

from anytime_jax import compilation, main
from anytime_jax.records import read_records

TESTS = pathlib.Path(__file__).parent
REPOSITORY = TESTS.parent

RUN_EACH = """
import json, os, sys, warnings
from anytime_jax import compilation, main
from forked import leaving
warnings.simplefilter("ignore")  # forking while JAX has threads is what this is about
for line in sys.stdin:
    number, argv = json.loads(line)
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY, 0o600), stream)
        sys.argv = ["anytime_jax.main", *argv]
        with leaving():
            main.cli()
    print(number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def write_config(path, run, data, **changes):
    """A configuration file of a tiny run."""
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport tiny\n\n"
        f"def get_config():\n    return tiny.settings({str(run)!r}, {str(data)!r}, **{changes!r})\n"
    )
    return path


# Bad input

BAD = {
    "no configuration": ([], "Give --config=configs/quickstart.py"),
    "a flag that is not there": (["--config=good.py", "--confg=1"], "confg"),
    "an argument without a flag": (["--config=good.py", "extra"], "unexpected argument 'extra'"),
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
    "data that nobody prepared": (["--config=good.py"], "python -m anytime_jax.prepare"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit status, output and complaint of each bad command line."""
    folder = tmp_path_factory.mktemp("bad")
    write_config(folder / "good.py", folder / "run", folder / "data")
    (folder / "syntax.py").write_text("def get_config(:\n    return 1\n")
    (folder / "raises.py").write_text("def get_config():\n    return 1 / 0\n")
    (folder / "imports.py").write_text("import no_such_module\n")
    (folder / "empty.py").write_text("config = 1\n")
    (folder / "missing.py").write_text(
        (folder / "good.py").read_text().replace("return tiny", "given = tiny")
        + "    del given.seed\n    return given\n"
    )
    before = sorted(folder.iterdir())
    lines = [json.dumps([i, argv]) for i, (argv, _) in enumerate(BAD.values())]
    ended = subprocess.run(
        [sys.executable, "-c", RUN_EACH],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    statuses = dict(map(int, line.split()) for line in ended.stdout.splitlines())
    found = {}
    for i, name in enumerate(BAD):
        out, err = ((folder / f"{i}.{stream}").read_text() for stream in ("out", "err"))
        found[name] = (statuses[i], out, err)
    made = [p for p in sorted(folder.iterdir()) if p not in before]
    left = [p.name for p in made if p.suffix not in (".out", ".err")]
    return found, left


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
    """Runs `main.run` on settings; returns exit status and complaint."""

    def run(settings):
        monkeypatch.setattr(main, "CONFIG", types.SimpleNamespace(value=settings))
        for flag in ("_FALL_BACK", "_COORDINATOR", "_PROCESSES", "_PROCESS", "_CLUSTER"):
            monkeypatch.setattr(main, flag, types.SimpleNamespace(value=None))
        monkeypatch.setattr(compilation, "set_up", lambda: None)
        status = main.run(["anytime_jax.main"])
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
    status, err = run_main(tiny.settings(run, dataset.path, **changes))
    assert status == 2, err
    (line,) = err.splitlines()
    assert re.match(f"error: .*{message}", line), line
    assert not run.parent.exists()


def test_a_directory_of_another_run_is_refused_as_it_is(run_main, dataset, tmp_path):
    other = json.dumps({"identity": {"seed": 5}})
    (tmp_path / "run.json").write_text(other)
    status, err = run_main(tiny.settings(tmp_path, dataset.path))
    assert status == 2
    assert "belongs to a run with other settings" in err
    assert "seed was 5, is 0" in err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", other)]


def test_a_run_directory_that_cannot_be_made_is_bad_input(run_main, dataset, tmp_path):
    (tmp_path / "file").write_text("")
    status, err = run_main(tiny.settings(tmp_path / "file" / "run", dataset.path))
    assert status == 2
    assert "config.run_dir" in err


# Signals


def test_the_first_signal_asks_and_a_second_interrupt_kills():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with main._interruptible() as asked:
            assert not asked()
            os.kill(os.getpid(), number)
            assert asked()
            os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may insist: it is under way
            assert asked()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


class Process:
    """`python -m anytime_jax.main` with a log of what it says."""

    def __init__(self, argv, folder, name):
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment(folder)
            )

    def wait_for(self, text):
        for _ in range(1200):
            if text in self.log.read_text():
                return
            if self.process.poll() is not None:
                break
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"it never said {text!r}:\n{self.log.read_text()}")

    def end(self):
        status = self.process.wait(60)
        return status, self.log.read_text()


@pytest.fixture
def start_process(tmp_path):
    started = []

    def begin(argv, name):
        started.append(Process(argv, tmp_path, name))
        return started[-1]

    yield begin
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def go_on_line(said):
    """The command that an interrupted run says to go on with, run by this Python."""
    (step,) = re.findall(r"interrupted, saved at ([\d,]+) steps", said)
    (line,) = re.findall(r"To go on: (\S*python\S* -m anytime_jax\.main .*)", said)
    return int(step.replace(",", "")), [sys.executable, *shlex.split(line)[1:]]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_line_that_is_printed_goes_on(
    dataset, tmp_path, start_process, number
):
    run = tmp_path / "a run"
    file = write_config(
        tmp_path / "config.py", run, dataset.path, stop="never", data__repeat=True,
        eval__every="1000 steps", checkpoint__every="1000 steps", log__tensorboard=True,
    )  # fmt: skip
    argv = [sys.executable, "-m", "anytime_jax.main", f"--config={file}", "--config.name=two words"]
    first = start_process(argv, "first")
    first.wait_for("1x  validation")
    first.process.send_signal(number)
    status, said = first.end()
    assert status == 0, said
    assert "finishing this update, then saving" in said
    assert "Traceback" not in said
    step, argv = go_on_line(said)
    assert (run / "checkpoints" / str(step)).is_dir()
    assert "--config.name=two words" in argv

    # To the next step but one: the end of a run, its table and its picture.
    end = step + 2
    second = start_process([*argv, f"--config.stop={end} steps"], "second")
    status, said = second.end()
    assert status == 0, said
    assert f"from     {step:,} steps" in said
    assert f"at {end:,} steps" in said
    assert "validation loss (nats per token), * the best of each row" in said
    assert "To go on to" in said
    assert (run / "curves.png").stat().st_size > 10_000
    assert any((run / "tensorboard").iterdir())
    rows = read_records(run)
    assert rows[-1].step == end
    assert [row.step for row in rows if "train/loss" in row.values] == [*range(3, end + 1, 3)]
