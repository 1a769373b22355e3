"""Tests of the framework of the commands: options, errors and exit statuses."""

import types

import pytest
from run_command import run_command

from anytime_jax.errors import InputError, RunError


@pytest.fixture
def run():
    """Runs a command that raises `error`, or returns 3; returns its exit status."""

    def start(*argv, error=None):
        def work(arguments):
            assert arguments.number == 7
            if error is not None:
                raise error
            return 3

        command = types.ModuleType("fake", "Do something.")
        command.EXAMPLES = ("--number=1",)
        command.add_options = lambda parser: parser.add_argument(
            "--number", type=int, default=7, help="a number"
        )
        command.run = work
        return run_command(command, argv)

    return start


def test_exit_status_is_what_the_command_returns(run):
    assert run("--number=7") == run() == 3


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("--a=1: give\n 2"), 2, "error: --a=1: give 2\n"),
        (RunError("broken \x1b[2J"), 1, "error: broken \\x1b[2J\n"),
        (FileNotFoundError(2, "not there", "x"), 1, "error: [Errno 2] not there: 'x'\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (KeyError("a"), 1, "error: unexpected KeyError: 'a' (--debug shows where)\n"),
    ],
)
def test_error_is_one_line_and_a_status(run, capsys, error, status, line):
    assert run(error=error) == status
    assert capsys.readouterr() == ("", line)


def test_long_message_is_shortened(run, capsys):
    run(error=InputError("a" * 10_000))
    assert len(capsys.readouterr().err) < 600


def test_debug_shows_traceback(run, capsys):
    assert run("--debug", error=InputError("wrong")) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith("\nerror: wrong\n")


@pytest.mark.parametrize("word", ["--numb=7", "--number=x", "more", "--config.seed=1"])
def test_unknown_argument_is_bad_input(run, capsys, word):
    assert run(word) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


def test_help_has_description_defaults_and_example(run, capsys):
    with pytest.raises(SystemExit) as exit:
        run("--help")
    printed = capsys.readouterr().out
    assert exit.value.code == 0
    assert printed.startswith("usage: python -m anytime_jax fake ")
    assert "Do something." in printed
    assert "(default: 7)" in printed
    assert printed.endswith("python -m anytime_jax fake --number=1\n")
