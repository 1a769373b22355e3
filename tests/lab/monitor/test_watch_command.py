"""The watch command: lines, the screen of a terminal, runs that grow or go away, bad input."""

import io
import os
import shutil
import signal
import types

import pytest
from synthetic_run import RecordedRun

from anytime_jax.checkpoints import run_directory
from anytime_jax.commands import rich_console
from anytime_jax.lab.monitor import watch_command as watch


@pytest.fixture(name="run")
def run_fixture(tmp_path):
    return RecordedRun(tmp_path / "run")


def nothing():
    pass


def test_lines_of_what_was_recorded_since(command, run, meanwhile):
    meanwhile(
        nothing,
        lambda: run.add(60, 120),
        nothing,
        lambda: run.add(130, evaluate=False),
        lambda: run.add(240),
    )
    status, out, _ = command(watch, f"--run={run.run_dir}")
    assert status == 0
    words = out.split()
    assert out.count("recorded has written no record yet") == 1
    assert out.count("recorded at 120 steps") == 1
    assert out.count("recorded at 130 steps") == 1
    assert out.count("recorded at 240 steps") == 1
    # Every evaluation is printed once.
    assert [words.count(f"{word}x") for word in ("0.125", "0.25", "0.5")] == [1, 1, 1]
    assert out.count("best weights: f100") == 2
    assert "\x1b" not in out


def test_end_of_the_process_and_damage_are_news(command, run, meanwhile):
    run.add(60)
    lock = run_directory.lock(run.run_dir)

    def damage():
        with (run.run_dir / "records" / "0000.jsonl").open("a") as file:
            file.write("damage\n")

    with lock:
        meanwhile(lambda: lock.__exit__(None, None, None), nothing, damage, nothing)
        status, out, _ = command(watch, f"--run={run.run_dir}")
    assert status == 0
    assert out.count("  training;") == 1
    assert out.count("no process has trained it for") == 2
    assert out.count("0000.jsonl: read up to line 3") == 1


def test_run_that_goes_away_is_a_failure_of_one_line(command, run, meanwhile):
    run.add(60)
    meanwhile(lambda: shutil.rmtree(run.run_dir), nothing)
    status, out, err = command(watch, f"--run={run.run_dir}")
    assert status == 1
    assert "recorded at 60 steps" in out
    assert err.startswith("error: ")
    assert str(run.run_dir) in err
    assert err.count("\n") == 1


def test_bad_input_is_named(rejected, run, tmp_path):
    assert f"--run={tmp_path}" in rejected(watch, f"--run={tmp_path}")
    for every in ("0", "nan", "1e9", "often"):
        assert "--every" in rejected(watch, f"--run={run.run_dir}", f"--every={every}")
    (run.run_dir / "run.json").write_text("{}")
    assert "run.json" in rejected(watch, f"--run={run.run_dir}")


@pytest.fixture(name="terminal")
def terminal_fixture(monkeypatch):
    """A terminal of 80 columns that keeps what is written to it."""

    class Terminal(io.StringIO):
        encoding = "utf-8"
        size = os.terminal_size((80, 24))

        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    variables = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    for name in (*variables, "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *file: terminal.size)
    monkeypatch.setattr(rich_console, "sys", types.SimpleNamespace(stdout=terminal))
    return terminal


ALTERNATE, NORMAL, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def test_screen_is_drawn_anew_and_the_terminal_is_restored(command, run, meanwhile, terminal):
    run.add(60)
    meanwhile(lambda: run.add(120), nothing)
    assert command(watch, f"--run={run.run_dir}")[0] == 0
    screen, _, after = terminal.getvalue().partition(NORMAL)
    assert ALTERNATE in screen
    assert "60 steps" in screen
    assert "120 steps" in screen
    assert SHOW_CURSOR in terminal.getvalue()
    assert "best weights: f100" in after


def test_screen_follows_the_size_of_the_terminal(command, run, meanwhile, terminal):
    run.add(60, 120, 240)

    def widen():
        terminal.size = os.terminal_size((120, 40))

    meanwhile(widen, nothing, pause=0.0)  # no look at the run
    assert command(watch, f"--run={run.run_dir}")[0] == 0
    first, _, second = terminal.getvalue().partition("minus the loss of last")
    assert "loss (nats)" in first
    assert second


def test_dumb_terminal_gets_lines(command, run, meanwhile, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    run.add(60)
    meanwhile(nothing)
    assert command(watch, f"--run={run.run_dir}")[0] == 0
    assert "no process" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize("end", ["SIGTERM", "the run goes away"])
def test_terminal_is_restored_at_other_ends(command, run, meanwhile, terminal, end):
    run.add(60)
    before = signal.getsignal(signal.SIGTERM)
    if end == "SIGTERM":
        meanwhile(lambda: os.kill(os.getpid(), signal.SIGTERM), nothing)
    else:
        meanwhile(lambda: shutil.rmtree(run.run_dir), nothing)
    assert command(watch, f"--run={run.run_dir}")[0] == (end != "SIGTERM")
    assert NORMAL in terminal.getvalue()
    assert signal.getsignal(signal.SIGTERM) is before
