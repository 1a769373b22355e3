"""Tests of the command line: commands by name, options, errors and exit statuses."""

import subprocess
import sys
import types

import command_contract
import pytest
from paths import REPOSITORY
from run_command import run_command

from anytime_jax import builtin_plugin, plugins
from anytime_jax.commands import argument_parser, dispatch
from anytime_jax.errors import BucketError, InputError, ProcessLostError, RunError


@pytest.fixture
def run():
    """Runs a command that raises `error`, or returns 3; returns its exit status."""

    def start(*argv, error=None):
        def work(arguments):
            assert arguments.number == 7
            if error is not None:
                raise error
            return 3

        command = types.ModuleType("fake")
        command.EXAMPLES, command.run = (), work
        command.add_options = lambda parser: parser.add_argument("--number", type=int, default=7)
        return run_command(command, argv)

    return start


def test_exit_status_is_what_the_command_returns(run):
    assert run("--number=7") == run() == 3


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("--a=1: give\n 2"), 2, "error: --a=1: give 2\n"),
        (ProcessLostError("another"), 75, "error: another\n"),
        (BucketError("gone"), 75, "error: gone\n"),
        (RunError("broken \x1b[2J"), 1, "error: broken \\x1b[2J\n"),
        (FileNotFoundError(2, "not there", "x"), 1, "error: [Errno 2] not there: 'x'\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_error_is_one_line_and_a_status(run, capsys, error, status, line):
    assert run(error=error) == status
    assert capsys.readouterr() == ("", line)


def test_error_that_nothing_expects_has_its_traceback(run, capsys):
    error = KeyError("a\x1b[2J")
    error.add_note("The last good checkpoint is none.")
    assert run(error=error) == 1
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback")
    assert last == "The last good checkpoint is none."


def test_debug_shows_traceback(run, capsys):
    assert run("--debug", error=InputError("wrong")) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith("\nerror: wrong\n")


@pytest.mark.parametrize("word", ["--numb=7", "--config.seed=1"])
def test_unknown_argument_is_bad_input(run, capsys, word):
    assert run(word) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("name", builtin_plugin.PLUGIN.commands)
@pytest.mark.parametrize("check", command_contract.CHECKS)
def test_command_keeps_to_what_every_command_does(name, check, capsys):
    check(name, capsys)


def test_overrides_are_separated_from_options():
    words = ["--config.seed=1", "--config=a.py", "--config.name=a b", "--debug"]
    arguments = argument_parser.parse(dispatch.import_command("train"), "train", words)
    assert arguments.config == ["a.py"]
    assert arguments.overrides == ["--config.seed=1", "--config.name=a b"]
    with pytest.raises(InputError, match=r"--config\.seed=VALUE"):
        argument_parser.parse(dispatch.import_command("train"), "train", ["--config.seed", "1"])


def test_program_is_what_a_shell_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my env" / "python"
    assert dispatch.display_path(str(path), "python") == "'my env/python'"
    assert dispatch.display_path("/elsewhere/python", "python") == "python"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    assert dispatch.display_path(str(path), "python") == "python"


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--help"], 0)])
def test_commands_are_listed(argv, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anytime", *argv])
    assert dispatch.main("anytime") == status
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in plugins.commands())


def test_unknown_command_is_bad_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anytime", "trian"])
    assert dispatch.main("anytime") == 2
    assert "train" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["anytime_jax", "train"], ["anytime_jax.main"]])
def test_wrong_option_is_one_line(words):
    done = subprocess.run(
        [sys.executable, "-m", *words, "--confg=1"],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
