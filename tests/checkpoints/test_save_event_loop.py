"""A save whose write fails prints nothing: its error is raised."""

import subprocess
import sys

SAVE = """
import asyncio, pathlib, resource, sys
import numpy as np
import orbax.checkpoint as ocp
from anytime_jax.checkpoints.save_event_loop import EventLoopPolicy

asyncio.set_event_loop_policy(EventLoopPolicy())
folder, tree = pathlib.Path(sys.argv[1]), {f"x{i}": np.random.rand(40_000) for i in range(40)}
ocp.PyTreeCheckpointer().save(folder / "whole", tree)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for attempt in range(3):
    try:
        ocp.PyTreeCheckpointer().save(folder / str(attempt), tree)
    except Exception as error:
        print(type(error).__name__)
"""


def test_writes_that_outlive_a_failed_save_print_nothing(tmp_path):
    command = [sys.executable, "-c", SAVE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert len(done.stdout.split()) == 3, done.stderr
    assert "Event loop is closed" not in done.stderr
