"""Tests of the progress display."""

import io

import small_run
from rich.console import Console

from anytime_jax.training.progress import Display


def test_terminal_has_the_time_of_the_compilation_so_far():
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=True, width=80, get_time=lambda: now[0])
    display = Display(small_run.config("run").clock, console)
    now[0] += 100  # the start, which is no part of it
    with display:
        assert "compiling ..." in file.getvalue()
        assert "0:00:00" in file.getvalue()
        now[0] += 61
        display._live.refresh()
    assert "0:01:01" in file.getvalue()
    assert "0:02:41" not in file.getvalue()
