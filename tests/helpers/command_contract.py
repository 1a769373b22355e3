"""What every command keeps to: checks of one by its name, the trainer's or a plugin's."""

import pathlib
import shlex

import pytest
from run_command import run_command

from anytime_jax import plugins
from anytime_jax.commands import argument_parser, dispatch


def _options_of(name):
    parser = argument_parser.Parser(prog=name)
    dispatch.import_command(name).add_options(parser)
    return [x for x in parser._actions if x.option_strings]


def check_options_without_a_value(name, capsys):
    """They are refused: empty text would be the current folder where an option is a path."""
    command = dispatch.import_command(name)
    options = [x for x in _options_of(name) if x.nargs != 0]
    for action in options:
        option = action.option_strings[0]
        if action.default == "":
            continue  # empty text is the default, as of a prompt
        for words in ([f"{option}="], [f"{option}= "], [option, ""]):
            assert run_command(command, words) == 2
            assert f"error: {option} " in capsys.readouterr().err
    assert options


def check_values_of_another_type(name, capsys):
    """They are named."""
    command = dispatch.import_command(name)
    for action in _options_of(name):
        if action.type not in (None, pathlib.Path, argument_parser.path):
            option = action.option_strings[0]
            assert run_command(command, [f"{option}=wrong"]) == 2
            assert option in capsys.readouterr().err


def check_help(name, capsys):
    """It has the summary of the list of commands, and examples that can be parsed."""
    module, summary = dispatch.import_command(name), plugins.commands()[name].summary
    assert module.__doc__.splitlines()[0] == summary
    with pytest.raises(SystemExit) as exit:
        run_command(module, ["--help"])
    assert exit.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: anytime {name} ")
    assert summary in " ".join(lines)
    examples = lines[lines.index("example:") + 1 :]
    assert [line.strip() for line in examples] == [
        f"anytime {name} {example}".strip() for example in module.EXAMPLES
    ]
    for example in module.EXAMPLES:
        argument_parser.parse(module, name, shlex.split(example.partition(">")[0]))


CHECKS = [check_options_without_a_value, check_values_of_another_type, check_help]
