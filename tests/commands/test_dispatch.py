"""Tests of the commands by name, and of the start of a process that runs one of them."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from anytime_jax.commands import command_line, dispatch

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_help_of_each_command_ends_with_an_example(name, capsys):
    module = dispatch.load(name)
    assert module.__doc__.splitlines()[0] == dispatch.COMMANDS[name]
    with pytest.raises(SystemExit) as exit:
        command_line.run(module, f"anytime {name}", ["--help"])
    assert exit.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    examples = lines[lines.index("example:") + 1 :]
    assert [line.strip() for line in examples] == [
        f"anytime {name} {example}".strip() for example in module.EXAMPLES
    ]


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_commands_are_listed(argv, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anytime", *argv])
    assert dispatch.main("anytime") == status
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in dispatch.COMMANDS)


def test_unknown_command_is_bad_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anytime", "trian"])
    assert dispatch.main("anytime") == 2
    assert "train" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["anytime_jax", "anytime_jax.main"])
def test_wrong_option_is_one_line(module):
    words = ["train"] * (module == "anytime_jax")
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--confg=1"],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_interrupt_during_the_imports_is_silent(tmp_path):
    argv = [sys.executable, "-m", "anytime_jax.main", "--config=none.py"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, cwd=REPOSITORY)
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        while "jaxlib" not in maps.read_text():  # the slowest import has started
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "output").read_text() == ""


def test_only_the_module_of_the_command_is_imported():
    code = (
        "import sys; from anytime_jax.commands import dispatch; dispatch.load('runs');"
        "print([m for m in sys.modules if m.startswith('anytime_jax.commands.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    loaded = {name.rpartition(".")[2] for name in eval(done.stdout)}
    assert loaded & {*dispatch.COMMANDS} == {"runs"}
