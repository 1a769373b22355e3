"""Tests of standard output and standard error: closed, broken, of few characters; of Ctrl-C."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from paths import REPOSITORY

from anytime_jax.commands import rich_console, standard_streams

COMMAND = [sys.executable, "-m", "anytime_jax"]


def launch(words, **options):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], env=environment, cwd=REPOSITORY, text=True, **options
    )


def broken_pipe():
    """A pipe to write to that nothing reads."""
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.fixture(name="process_state")
def process_state_fixture(monkeypatch):
    """Lets a test change what belongs to the process."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(standard_streams.atexit, "register", lambda *unused: None)


def test_characters_that_an_encoding_lacks_are_replaced(process_state, tmp_path, monkeypatch):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        standard_streams.configure()
        print("1.5 ± 0.2, 4×, café, \udcff")
    assert (tmp_path / "out").read_text() == "1.5 +- 0.2, 4x, caf\\xe9, \\udcff\n"


def test_console_uses_no_lines_where_the_encoding_has_none(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert rich_console.open_console().options.ascii_only


@pytest.mark.parametrize("words", [("runs", "--run={}"), ("runs", "--help")])
def test_output_without_a_reader_ends_quietly(whole, words):
    pipe = broken_pipe()
    words = [word.format(whole) for word in words]
    process = launch(words, stdout=pipe, stderr=subprocess.PIPE)
    os.close(pipe)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0 if "--help" in words else 141, "")


def test_errors_without_a_reader_keep_their_status(tmp_path):
    pipe = broken_pipe()
    process = launch(["runs", f"--run={tmp_path}"], stdout=pipe, stderr=pipe)
    os.close(pipe)
    assert process.wait(60) == 2


def test_messages_that_cannot_be_written_end_nothing():
    program = (
        "import sys; from anytime_jax.commands.standard_streams import configure; configure();"
        " print('lost', file=sys.stderr, flush=True); print('done')"
    )
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=full, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_configuration_that_cannot_be_printed_is_a_failure():
    words = [*COMMAND, "train", "--config=quickstart", "--print-config"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device: 'standard output'\n"


def test_closed_output_is_no_failure(whole):
    words = ["bash", "-c", '"$@" >&-', "bash", *COMMAND, "runs", f"--run={whole}"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["anytime_jax", "anytime_jax.main"])
def test_interrupt_during_the_imports_is_one_line(module):
    """The module that handles it comes first: each import of another one interrupts the process."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *unused):\n"
        "        if name.removeprefix('anytime_jax.commands.') not in first:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        f"first = 'anytime_jax', {module + '.__main__'!r}, {module!r}, 'anytime_jax.commands',"
        " 'interrupts', 'collections.abc'\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


def interrupt(words, seconds):
    """Exit status and output of a command that gets SIGINT after some seconds."""
    process = launch(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "longest"), [(["runs", "--verify"], 2.0), (["evaluate", "--max-error=1"], 5.0)]
)
def test_interrupt_at_any_moment_is_one_line(trained, words, longest):
    moments = random.Random(0)
    for _ in range(15):
        seconds = moments.uniform(0.2, longest)  # before, the interpreter itself starts
        status, output = interrupt([*words, f"--run={trained}"], seconds)
        assert "Traceback" not in output
        assert (status == 0) or (status == 130 and output.endswith("\ninterrupted\n")), output
