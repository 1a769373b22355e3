"""Worker pool: results in order, and the death of a worker is an error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import paths
import pytest

from anytime_jax.corpus.worker_pool import run_tasks
from anytime_jax.errors import RunError


class Result(NamedTuple):
    tokens: int


class Square(NamedTuple):
    number: int

    def load_result(self):
        return Result(9) if self.number == 3 else None

    def run(self):
        assert self.number != 3
        return Result(self.number**2)


class Deadly:
    def load_result(self):
        return None

    def run(self):
        os._exit(9)


def test_results_are_in_order_and_finished_tasks_are_skipped():
    reports = []
    tasks = [Square(number) for number in range(1, 7)]
    results = run_tasks(tasks, 2, "squaring", reports.append)
    assert results == [(1,), (4,), (9,), (16,), (25,), (36,)]
    assert [report.done for report in reports] == [1, 2, 3, 4, 5, 6]


class Endless:
    def load_result(self):
        return None

    def run(self):
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)


def test_sigterm_ends_the_workers_and_leaves_no_semaphore():
    code = (
        "from test_worker_pool import Endless, run_tasks\n"
        "if __name__ == '__main__': run_tasks([Endless(), Endless()], 2, 'waiting', None)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{paths.REPOSITORY}:{Path(__file__).parent}:{Path(paths.__file__).parent}",
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, timeout=300, capture_output=True, text=True
    )
    assert "KeyboardInterrupt" in ended.stderr
    assert "semaphore" not in ended.stderr


def test_death_of_a_worker_is_an_error():
    with pytest.raises(RunError):
        run_tasks([Deadly(), Deadly()], 2, "dying", None)
