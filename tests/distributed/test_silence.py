"""A start that is stuck: its stacks and its status; work that takes long; and how it resumes."""

import itertools
import math
import os
import time

import pytest
import small_run
from run_processes import Processes
from small_run import CHANGES, write_config
from training_runs import bits, records

from anytime_jax.distributed import lost_process_exit, processes, silence
from anytime_jax.training.loop import train

SECONDS = 0.5

# A data source that never answers from sample 48 on, while the file is there that STALLED names.
STALLED = """
import os, pathlib, time
from anytime_jax.data.windows import Windows

read = Windows.batch

def batch_from_lost_mount(self, first, *arguments):
    stalled = pathlib.Path(STALLED or os.environ["STALLED"])
    while first >= 48 and self._split == "train" and stalled.exists():
        time.sleep(0.1)
    return read(self, first, *arguments)

Windows.batch = batch_from_lost_mount
"""


def use_processor(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def in_compiler(function):
    """The function as if it were in JAX's compiler."""
    scope = {"function": function}
    text = "def compile(x):\n    function(x)"
    exec(compile(text, os.path.join("x", "jax", "_src", "compiler.py"), "exec"), scope)
    return scope["compile"]


@pytest.fixture(name="ends")
def ends_fixture(monkeypatch):
    """The lines with which a watch would have ended this process."""
    lines = []
    monkeypatch.setattr(lost_process_exit, "end", lambda make_line: lines.append(make_line()))
    return lines


@pytest.mark.parametrize(
    ("work", "files", "is_stuck"),
    [
        (time.sleep, dict, True),
        (use_processor, dict, True),  # as a device that is waited for may
        (in_compiler(time.sleep), dict, True),
        (in_compiler(use_processor), dict, False),
        (time.sleep, itertools.count().__next__, False),  # a checkpoint grows
        (time.sleep, lambda: time.sleep(1000), True),  # its storage hangs
        (time.sleep, lambda: 1 / 0, True),
    ],
    ids=["waits", "spins", "stuck compiler", "compiles", "saves", "hanging files", "no files"],
)
def test_work_that_takes_long_is_told_from_none(work, files, is_stuck, ends):
    with silence.Watch(SECONDS, files, lambda: "; the last") as watch:
        watch.alive()
        work(5 * SECONDS)
    assert len(ends) == is_stuck
    assert all("; the last" in line for line in ends)


def test_signs_of_life_keep_a_start(ends):
    with silence.Watch(SECONDS, dict) as watch:
        time.sleep(2 * SECONDS)  # before the first sign
        watch.alive()
        with watch.paused():
            time.sleep(2 * SECONDS)
        for _ in range(20):
            watch.alive()
            time.sleep(SECONDS / 5)
    time.sleep(2 * SECONDS)  # after the end
    assert ends == []


def test_watch_pauses_while_others_compile(dataset, monkeypatch, tmp_path):
    watches, paused = [], []

    def make_watch(*arguments):
        watches.append(Watch(*arguments))
        return watches[-1]

    Watch = silence.Watch
    monkeypatch.setattr(silence, "Watch", make_watch)
    monkeypatch.setattr(processes, "barrier", lambda: paused.append(math.isinf(watches[0]._last)))
    train(small_run.config(tmp_path / "run", dataset.path, guard__silence=30, stop="2 steps"))
    assert len(paused) >= 2  # in the manager of checkpoints, and after the update is compiled
    assert all(paused)


def write(folder, stalled):
    folder.mkdir(exist_ok=True)
    file = write_config(folder / "config.py", folder / "run", folder / "builtin", **CHANGES)
    file.write_text(f"{file.read_text()}\n{STALLED.replace('STALLED or', f'{stalled!r} or')}")
    return file


@pytest.mark.slow
def test_stuck_process_of_two_names_its_function(tmp_path):
    file = write(tmp_path, "")
    variables = [{"STALLED": str(tmp_path / "none")}, {"STALLED": str(file)}]
    flags = ("--config.guard.silence=1", "--config.stop=1x")
    both = Processes(file, flags, devices=1, variables=variables)
    assert both.wait(240) == [os.EX_TEMPFAIL] * 2, both.output(0)
    outputs = [both.output(i) for i in range(2)]
    assert ["in batch_from_lost_mount" in x for x in outputs] == [False, True], outputs
    last = [x.splitlines()[-1] for x in outputs]
    assert any("is that of step 4" in x for x in last), last  # the first to end, which ends both
    assert all(x.startswith("error: ") for x in last), last
    Processes(file, flags, devices=1, variables=variables[:1] * 2).succeed()


def test_stuck_update_ends_with_its_stack_and_the_run_resumes_exactly(starts, tmp_path):
    def start(name, stalled, *flags):
        folder = tmp_path / name
        file = write(folder, str(folder / "stalled"))
        if stalled:
            (folder / "stalled").touch()
        started = starts.launch(f"--config={file}", "--config.stop=1x", *flags)
        status = started.wait()
        (folder / "stalled").unlink(missing_ok=True)
        return status, started.output

    status, output = start("stuck", True, "--config.guard.silence=0.1")
    assert status == os.EX_TEMPFAIL, output
    assert "in batch_from_lost_mount" in output
    assert "read_batch" in output
    assert "is that of step 4" in output.splitlines()[-1]
    for name in ("stuck", "whole"):
        status, output = start(name, False)
        assert status == 0, output
    stuck, whole = (tmp_path / name / "run" for name in ("stuck", "whole"))
    assert bits(stuck, 10) == bits(whole, 10)
    assert records(stuck) == records(whole)
