"""Tests of the start of a process that runs a command."""

import os
import pathlib
import signal
import subprocess
import sys
import time


def test_interrupt_during_imports_ends_silently(tmp_path):
    argv = [sys.executable, "-m", "anytime_jax.main", "--config=none.py"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        while "jaxlib" not in maps.read_text():  # the slowest import has started
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "log").read_text() == ""
