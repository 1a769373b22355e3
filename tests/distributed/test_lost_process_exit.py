"""Lost process: an abort is one line and a status; the other of two ends, and the run resumes."""

import os
import signal
import subprocess
import sys
import time

import jax
import pytest
import small_run
from paths import REPOSITORY
from run_processes import Processes
from small_run import write_config

from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.distributed import processes

STEPS = 24
CHANGES = small_run.CHANGES | {
    "eval__every": "7 steps",
    "checkpoint__every": "5 steps",
    "log__every": "1 steps",
    "stop": f"{STEPS} steps",
}

_UPDATE = "anytime_jax.training.active_run:Run.update"
_SAVE = "anytime_jax.checkpoints.manager:CheckpointManager.save"
# Moments, as `process_kills` reads them; the process that is lost, and how.
LOSSES = {
    "opening devices": ("jax:devices 0 before", 1, "SIGKILL"),
    "preparing": ("anytime_jax.training.run_data:make_builtin 0 during", 0, "SIGKILL"),
    "updating": (f"{_UPDATE} 13 during", 0, "SIGSTOP"),
    "while a save is written": (f"{_SAVE} 2 after", 0, "SIGKILL"),
    "ending": ("anytime_jax.training.loop:train 0 after", 1, "SIGKILL"),
}


# Aborts in threads of C, as JAX's runtime does, while the interpreter is busy.
ABORT = """
import ctypes, sys, threading, time
from anytime_jax.distributed import lost_process_exit

def make_message(cause):
    time.sleep(float(sys.argv[2]))
    return "the line"

lost_process_exit._MAX_SECONDS = int(sys.argv[3])
lost_process_exit.set_message(make_message)
lost_process_exit.handle_abort()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
while True:
    pass
"""


@pytest.mark.parametrize(
    ("threads", "seconds", "limit", "status", "output"),
    [
        (5, 0.1, 100, os.EX_TEMPFAIL, "error: the line\n"),
        (1, 1000, 1, -signal.SIGALRM, ""),  # the storage of the checkpoints hangs
    ],
)
def test_abort_is_one_line_and_a_status(threads, seconds, limit, status, output):
    command = [sys.executable, "-c", ABORT, *map(str, (threads, seconds, limit))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (status, output)


@pytest.mark.parametrize(
    ("error", "is_single", "expected"),
    [
        (jax.errors.JaxRuntimeError("UNKNOWN: Connection closed by peer"), False, True),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), False, True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False, False),
        (jax.errors.JaxRuntimeError("UNKNOWN: Connection closed by peer"), True, False),
        (OSError("Connection reset by peer"), False, False),
    ],
)
def test_errors_that_tell_of_a_lost_process(error, is_single, expected, monkeypatch):
    monkeypatch.setattr(processes, "is_single", lambda: is_single)
    assert processes.is_sign_of_loss(error) == expected


def write(folder):
    """Writes the configuration of a run; a process with the variable LOSS is lost."""
    folder.mkdir(exist_ok=True)
    run, data = folder / "run", folder / "builtin-300"
    file = write_config(folder / "run.py", run, data, **CHANGES)
    text = file.read_text()
    file.write_text(f"{text}\nimport process_kills\n\nprocess_kills.install()\n")
    return file


def result(run_dir):
    """The losses of a run, and the checksums of its last state."""
    rows = {row.step: row.values for row in read_records(run_dir)}
    losses = {
        (step, name): values[name] for step, values in rows.items() for name in values
        if name.endswith("loss")
    }  # fmt: skip
    meta = checkpoint_reader.verify_checkpoint(run_dir / "checkpoints" / str(STEPS))
    return losses, meta.checksums


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    Processes(write(folder), devices=1).succeed()
    return result(folder / "run")


def is_lost(process):
    """Whether a process has ended or was stopped."""
    if process.poll() is not None:
        return True
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
@pytest.mark.parametrize("moment", LOSSES)
def test_lost_process_ends_the_other_and_the_run_resumes_exactly(moment, unbroken, tmp_path):
    loss, index, how = LOSSES[moment]
    variables = [{}, {}]
    variables[index] = {"KILL_AT": f"{loss} {how}"}
    file = write(tmp_path)
    both = Processes(file, devices=1, variables=variables)
    lost, survivor = both.processes[index], both.processes[1 - index]
    deadline = time.monotonic() + 120
    while not is_lost(lost):
        assert time.monotonic() < deadline, both.output(0)
        time.sleep(0.02)
    status = survivor.wait(240)
    lost.kill()
    assert both.wait() == [status, -signal.SIGKILL][:: 1 if index else -1]
    assert status == os.EX_TEMPFAIL, both.output(1 - index)
    line = both.output(1 - index).splitlines()[-1]
    assert line.startswith("error: another process of this run was lost")
    saved = checkpoint_listing.saved_steps(tmp_path / "run")
    assert f"is {f'step {saved[-1]}' if saved else 'none'}." in line
    Processes(file, devices=1).succeed()
    assert result(tmp_path / "run") == unbroken
