"""Tests of standard output and standard error: closed, broken, of few characters; of Ctrl-C."""

import os
import subprocess
import sys

import pytest
from paths import REPOSITORY

from anytime_jax.commands import standard_streams


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


def test_characters_that_an_encoding_lacks_are_escaped(process_state, tmp_path, monkeypatch):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        standard_streams.configure()
        print("café, \udcff")
    assert (tmp_path / "out").read_text() == "caf\\xe9, \\udcff\n"


# Logs an error in each file that is named.
LOGGING = """
import sys
from anytime_jax.commands import standard_streams
standard_streams.leave_out_raised_errors()
from absl import logging  # after the command has begun, as Orbax is

for name in sys.argv[1:]:
    text = f"try: 1 / 0\\nexcept ZeroDivisionError: logging.exception({name!r})"
    exec(compile(text, name, "exec"))
"""


def test_errors_that_orbax_logs_are_left_out():
    command = [sys.executable, "-c", LOGGING, "lib/orbax/future.py", "lib/other.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "orbax" not in ended.stderr
    assert ended.stderr.startswith("ERROR:absl:lib/other.py\nTraceback")


# A command of a few imports, whose work is its first argument.
PROGRAM = """
import sys
from anytime_jax.commands import exit_status, standard_streams
from anytime_jax.errors import InputError

def fail(error):
    raise error

standard_streams.configure()
standard_streams.exit_process(exit_status.run(lambda: eval(sys.argv[1]) or 0))
"""
FULL = "error: [Errno 28] No space left on device\n"
BOTH = "print('lost', file=sys.stderr) or print('done')"


@pytest.mark.parametrize(
    ("work", "redirection", "expected"),
    [
        ("print('out')", ">&-", (0, "", "")),
        ("print('out')", ">/dev/full", (1, "", FULL)),
        (BOTH, "2>/dev/full", (0, "done\n", "")),
        (BOTH, "2>&-", (0, "done\n", "")),
    ],
)
def test_output_that_cannot_be_written(work, redirection, expected):
    words = ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", PROGRAM, work]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.parametrize(
    ("work", "status"), [("print('out')", 141), ("fail(InputError('wrong'))", 2)]
)
def test_output_without_a_reader_ends_quietly(work, status):
    pipe = broken_pipe()
    errors = pipe if status == 2 else subprocess.PIPE
    words = [sys.executable, "-c", PROGRAM, work]
    done = subprocess.run(words, cwd=REPOSITORY, stdout=pipe, stderr=errors, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr or b"") == (status, b"")


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


LOOPS = """
import asyncio, gc, resource
from anytime_jax.commands import standard_streams

standard_streams.configure()
resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
try:
    asyncio.new_event_loop()
except OSError as error:
    print(type(error).__name__)
gc.collect()
"""


def test_event_loop_without_a_descriptor_says_so_once():
    done = subprocess.run([sys.executable, "-c", LOOPS], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("OSError\n", "")
