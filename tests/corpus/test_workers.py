"""Workers: results in order, and the end of the workers whatever ends the work."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import paths
import pytest

from anytime_jax.corpus.workers import run_tasks
from anytime_jax.errors import InputError, RunError


class Result(NamedTuple):
    tokens: int


def square(number):
    assert number != 3
    return Result(number**2)


def test_results_are_in_order_and_finished_tasks_are_skipped():
    reports = []
    tasks = {number: functools.partial(square, number) for number in range(1, 7)}
    results = run_tasks("squaring", tasks, {3: Result(9)}, 2, reports.append)
    assert list(results.items()) == [(number, (number**2,)) for number in range(1, 7)]
    assert [report.done for report in reports] == [1, 2, 3, 4, 5, 6]


def die():
    os._exit(9)


def test_death_of_a_worker_is_an_error():
    with pytest.raises(RunError):
        run_tasks("dying", {1: die, 2: die}, {}, 2, None)


def refuse():
    raise InputError("wrong")


def sleep():
    time.sleep(600)


def test_error_of_a_task_ends_the_others():
    with pytest.raises(InputError, match="wrong"):
        run_tasks("waiting", {1: sleep, 2: refuse}, {}, 2, None)


def runs(process):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


PROGRAM = """
import os, time
from test_workers import functools, run_tasks
def start(folder):
    open(f"{folder}/{os.getpid()}", "w").close()
    time.sleep(600)
if __name__ == "__main__":
    task = functools.partial(start, os.getcwd())
    print("starts", flush=True)
    run_tasks("waiting", {1: task, 2: task}, {}, 2, None)
"""


def start(folder):
    """Starts two workers that write files named by their numbers, and wait."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    places = f"{paths.REPOSITORY}:{Path(__file__).parent}:{Path(paths.__file__).parent}"
    process = subprocess.Popen(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": places},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starts\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_process(number, tmp_path):
    """Also at a signal that only this process gets, and one that it cannot catch."""
    process, workers = start(tmp_path), []
    while len(workers) < 2:
        assert process.poll() is None
        time.sleep(0.05)
        workers = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    end = time.monotonic() + 60
    while any(map(runs, workers)):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_has_one_traceback(tmp_path):
    """A terminal sends it to the workers too, here during their imports."""
    process = start(tmp_path)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
