"""Tests of the progress display."""

import io
import time

import small_run
from rich.console import Console

from anytime_jax.training.progress import Display


def test_terminal_has_the_time_of_the_compilation_so_far():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    display = Display(small_run.config("run").clock, console)
    time.sleep(1.1)  # the start, which is no part of it
    with display:
        time.sleep(0.3)
        assert "compiling ..." in file.getvalue()
        assert "0:00:00" in file.getvalue()
        time.sleep(1.0)
    assert "0:00:01" in file.getvalue()
    assert "0:00:02" not in file.getvalue()
