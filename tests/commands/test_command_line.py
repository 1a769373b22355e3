"""What every door does with its arguments, and with what goes wrong behind it."""

import pytest

from anytime_jax.commands import command_line
from anytime_jax.errors import InputError, RunError


@pytest.fixture
def door():
    """Runs a door whose work raises `error`, or returns 3; returns the exit status."""

    def run(*argv, error=None):
        def work(arguments):
            assert arguments.number == 7
            if error is not None:
                raise error
            return 3

        parser = command_line.make_parser("door", "What it does.")
        parser.add_argument("--number", type=int, default=7)
        return command_line.run(parser, work, argv)

    return run


def test_what_the_work_returns_is_the_exit_status(door):
    assert door("--number=7") == door() == 3


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("--a=1: give\n 2"), 2, "error: --a=1: give 2\n"),
        (RunError("broken \x1b[2J"), 1, "error: broken \\x1b[2J\n"),
        (FileNotFoundError(2, "not there", "x"), 1, "error: [Errno 2] not there: 'x'\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_status(door, capsys, error, status, said):
    assert door(error=error) == status
    assert capsys.readouterr() == ("", said)


def test_only_debug_shows_where(door, capsys):
    assert door("--debug", error=InputError("wrong")) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nerror: wrong\n")


def test_a_mistake_of_ours_is_not_hidden(door):
    with pytest.raises(ZeroDivisionError):
        door(error=ZeroDivisionError())


@pytest.mark.parametrize("argv", [("--numb=7",), ("--number=x",), ("more",)])
def test_arguments_that_are_refused_leave_with_one_line(door, capsys, argv):
    with pytest.raises(SystemExit) as left:
        door(*argv)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith("error: ")
    assert said.endswith("; --help lists the options\n")
    assert said.count("\n") == 1


def test_help_names_the_door(door, capsys):
    with pytest.raises(SystemExit) as left:
        door("--help")
    said = capsys.readouterr().out
    assert left.value.code == 0
    assert said.startswith("usage: python -m anytime_jax door ")
    assert "What it does." in said
    assert "--debug" in said
