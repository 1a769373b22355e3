"""Tests of the command line: commands by name, options, errors and exit statuses."""

import pathlib
import shlex
import subprocess
import sys
import types

import pytest
from paths import REPOSITORY
from run_command import run_command

from anytime_jax.commands import command_line, dispatch
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


def _parser_of(name):
    parser = command_line.Parser(prog=name)
    dispatch.import_command(name).add_options(parser)
    return parser


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_options_without_a_value_are_refused(name, capsys):
    """Empty text would be the current folder where an option is a path."""
    command = dispatch.import_command(name)
    options = [x for x in _parser_of(name)._actions if x.nargs != 0 and x.option_strings]
    for action in options:
        option = action.option_strings[0]
        for words in ([f"{option}="], [f"{option}= "], [option, ""]):
            if action.default == "":
                continue  # empty text is the default, as of a prompt
            assert run_command(command, words) == 2
            assert f"error: {option} has no value" in capsys.readouterr().err
    assert options


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_values_of_another_type_are_named_with_what_is_allowed(name, capsys):
    command = dispatch.import_command(name)
    for action in _parser_of(name)._actions:
        if action.type not in (None, pathlib.Path, command_line.path):
            option = action.option_strings[0]
            assert run_command(command, [f"{option}=wrong"]) == 2
            line = capsys.readouterr().err
            assert line.startswith(f"error: argument {option}: ")
            assert "wrong" in line
            assert "invalid" not in line
            assert "could not" not in line


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("compile --config=quickstart --topology=h100:1 --tries=3", "--tries"),
        ("compile --config=quickstart --topology=h100:1 --search --hlo=x", "--hlo"),
        ("compile --config=quickstart --topology=h100:1 --search --at=2x", "--at"),
        ("forecast --run=x --every=5", "--every"),
        ("forecast --run=x --warmup=5", "--warmup"),
        ("forecast --csv=x --study=laptop", "--study"),
        ("forecast --calibrate=x --decay=linear:0.1", "--decay"),
        ("report --run=x --average=f25", "--average"),
        ("report --study=x --watch", "--watch"),
        ("sweep --list --only=x", "--only"),
        ("sweep --list --study=laptop --jobs=1", "--jobs"),
        ("sweep --slurm=x --study=laptop --jobs=1", "--jobs"),
        ("sweep --run --study=laptop --tokens-per-s=1", "--tokens-per-s"),
        ("theory rates --config.seed=1", "--config.seed"),
        ("theory --config=theory_figure rates", "--config"),
    ],
)
def test_options_that_would_be_ignored_are_refused(words, refused, capsys):
    name, *words = words.split()
    assert run_command(dispatch.import_command(name), words) == 2
    assert f"error: {refused} has no effect with" in capsys.readouterr().err


def test_overrides_are_separated_from_options():
    words = ["--config.seed=1", "--config=a.py", "--config.name=a b", "--debug"]
    arguments = command_line.parse(dispatch.import_command("train"), "train", words)
    assert arguments.config == ["a.py"]
    assert arguments.overrides == ["--config.seed=1", "--config.name=a b"]
    with pytest.raises(InputError, match=r"--config\.seed=VALUE"):
        command_line.parse(dispatch.import_command("train"), "train", ["--config.seed", "1"])


def test_program_is_quoted_for_a_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my env" / "python"
    assert dispatch.display_path(str(path), "python") == "'my env/python'"
    assert dispatch.display_path("/elsewhere/python", "python") == "python"


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_help_has_summary_defaults_and_examples(name, capsys):
    module = dispatch.import_command(name)
    assert module.__doc__.splitlines()[0] == dispatch.COMMANDS[name]
    with pytest.raises(SystemExit) as exit:
        run_command(module, ["--help"])
    assert exit.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: python -m anytime_jax {name} ")
    assert dispatch.COMMANDS[name] in lines
    assert name != "generate" or "(default: 0.8)" in " ".join(lines)
    examples = lines[lines.index("example:") + 1 :]
    assert [line.strip() for line in examples] == [
        f"python -m anytime_jax {name} {example}".strip() for example in module.EXAMPLES
    ]
    for example in module.EXAMPLES:
        command_line.parse(module, name, shlex.split(example.partition(">")[0]))


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--help"], 0)])
def test_commands_are_listed(argv, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anytime", *argv])
    assert dispatch.main("anytime") == status
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in dispatch.COMMANDS)


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
