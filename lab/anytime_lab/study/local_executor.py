"""Local execution of a study, in processes on this machine, trunks before their branches."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from anytime_jax.checkpoints import run_ownership
from anytime_jax.data.dataset_info import METADATA_NAME
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_duration
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import signals
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study
from anytime_lab.study.tasks import StudyTask, log_file

# Exit statuses of a process that a forwarded signal ended, after a save or before any update.
_INTERRUPTED = (0, 130, *(-x for x in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)))
_POLL_SECONDS = 0.5


class Slot(NamedTuple):
    """CPU cores and `CUDA_VISIBLE_DEVICES` of one process; None leaves the variable as it is."""

    cores: tuple[int, ...]
    gpus: str | None


def split_machine(processes: int) -> list[Slot]:
    """Deals the cores out evenly and, to several processes, the GPUs.

    Raises an InputError if there are more processes than cores or GPUs.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= processes <= len(cores):
        raise InputError(f"--jobs={processes}: give 1 to {len(cores)}, the cores of this machine")
    every_gpu = ",".join(str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", every_gpu)
    words = (x.strip() for x in visible.split(","))  # CUDA reads them up to one like -1
    gpus = list(itertools.takewhile(lambda x: x and not x.startswith("-"), words))
    if gpus and processes > len(gpus):
        raise InputError(f"--jobs={processes}: give 1 to {len(gpus)}, the GPUs of this machine")
    is_shared = gpus and processes > 1
    return [
        Slot(tuple(cores[i::processes]), ",".join(gpus[i::processes]) if is_shared else None)
        for i in range(processes)
    ]


def make_command(study_file: str, name: str) -> list[str]:
    """Returns the command line that trains a run of a study."""
    return [sys.executable, "-m", "anytime_jax", "train", f"--config={study_file}:{name}"]


class _Process(NamedTuple):
    """A process that trains a run, whose log had `log_size` bytes before."""

    task: StudyTask
    popen: subprocess.Popen[bytes]
    log_size: int
    slot: Slot
    started: float


class LocalExecutor:
    """Trains the unfinished runs of a study, several processes at a time.

    Several executors may work on one study, on machines that share its directory: a run directory
    has one process at a time.
    """

    def __init__(
        self,
        study: Study,
        study_file: str,
        tasks: Sequence[StudyTask],
        slots: Sequence[Slot],
        print_line: Callable[[str], None],
    ):
        """Prepares to train `tasks`."""
        self._study, self._study_file, self._print = study, study_file, print_line
        self._slots = slots
        self._pending = [task for task in tasks if not task.is_finished]
        self._total, self._finished = len(tasks), len(tasks) - len(self._pending)
        self._processes: list[_Process] = []
        self._failures: dict[str, str] = {}  # by name of the run
        self._signals: list[int] = []
        self._config_errors: set[str] = set()
        self._gave_up = False

    def run(self) -> int:
        """Trains until nothing is left to start and returns the exit status: 0, 1 or 130."""
        if not self._pending:
            self._print(f"all {self._total} runs of {self._study.name} are finished")
            return 0
        study_files.write_plan(self._study)
        started = time.monotonic()
        with self._forward_signals():
            try:
                while self._processes or (self._pending and self._may_start):
                    self._collect()
                    while self._start_next():
                        pass
                    self._fail_orphans()
                    time.sleep(_POLL_SECONDS)
            finally:  # no process may outlive this one, whatever happens
                self._send(signal.SIGTERM)
                for process in self._processes:
                    process.popen.wait()
        elapsed = format_duration(time.monotonic() - started)
        summary = f"{self._finished} of {self._total} runs are finished, after {elapsed}"
        if self._signals:
            summary = f"interrupted after {elapsed}; the same command resumes"
        self._print(summary)
        for name, reason in self._failures.items():
            self._print(f"  {name}: {reason}")
        if self._pending and not self._signals:
            self._print(f"  skipped {len(self._pending)} runs: same configuration error twice")
        return 1 if self._failures else 130 if self._signals else 0

    @property
    def _may_start(self) -> bool:
        return not self._signals and not self._gave_up

    def _start_next(self) -> bool:
        """Starts a process for the first run that is ready; False without one or a free slot."""
        used = {process.slot for process in self._processes}
        slot = next((slot for slot in self._slots if slot not in used), None)
        task = self._next_task() if slot and self._may_start else None
        if not slot or not task:
            return False
        # Large pages speed up training on a CPU; for a GPU they change nothing.
        env = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **os.environ}
        if slot.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = slot.gpus
        with log_file(self._study, task.run.name).open("ab") as file:
            log_size = file.tell()
            popen = subprocess.Popen(
                make_command(self._study_file, task.run.name),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                # Ctrl-C then reaches the process only once, through `_forward_signals`.
                start_new_session=True,
            )
        self._processes.append(_Process(task, popen, log_size, slot, time.monotonic()))
        with contextlib.suppress(OSError):  # the process may have ended already
            os.sched_setaffinity(popen.pid, slot.cores)  # JAX starts its threads later
        if self._signals:  # the signal arrived while the process was started
            self._send(self._signals[-1])
        self._pending.remove(task)
        clock = task.config.clock
        self._print(
            f"started  {task.run.name}, from {clock.multiple(task.step):.3g}x to "
            f"{clock.multiple(task.stop_step):.3g}x"
        )
        return True

    def _next_task(self) -> StudyTask | None:
        """The first run whose trunk is finished and that no process has or prepares data for."""
        training = [process.task for process in self._processes]
        unfinished = {task.run.name for task in [*self._pending, *training]}
        data = {task.config.data.path for task in training}
        preparing = {path for path in data if not (storage_path(path) / METADATA_NAME).exists()}
        ready = (
            task
            for task in self._pending
            if task.run.trunk not in unfinished
            and task.config.data.path not in preparing
            and not run_ownership.is_locked(task.run.run_dir)
        )
        return next(ready, None)

    def _collect(self) -> None:
        """Records runs that another executor finished, and the outcome of ended processes."""
        for task in [task for task in self._pending if task.is_finished]:
            self._pending.remove(task)
            self._record_finished(task, "elsewhere")
        for process in list(self._processes):
            status = process.popen.poll()
            if status is not None:
                self._processes.remove(process)
                self._record_outcome(process, status)

    def _record_outcome(self, process: _Process, status: int) -> None:
        task, elapsed = process.task, format_duration(time.monotonic() - process.started)
        if task.is_finished:
            self._record_finished(task, f"in {elapsed}")
        elif run_ownership.is_locked(task.run.run_dir):
            self._pending.append(task)  # another process has locked the run first
        elif not (self._signals and status in _INTERRUPTED):
            log = log_file(self._study, task.run.name)
            cause = f"exit status {status}" if status >= 0 else f"signal {-status}"
            message = _last_line(log, process.log_size) or "no output"
            if status < 0:  # its last line is of what it did before
                message = "it was killed"
            failure = f"{message} ({cause}; log: {log})"
            self._failures[task.run.name] = failure
            self._print(f"FAILED   {task.run.name}, after {elapsed}: {failure}")
            if status == 2:  # if a configuration error occurs twice, very likely every run has it
                self._gave_up |= message in self._config_errors
                self._config_errors.add(message)

    def _record_finished(self, task: StudyTask, how: str) -> None:
        self._finished += 1
        self._print(f"finished {task.run.name}, {how} ({self._finished} of {self._total})")

    def _fail_orphans(self) -> None:
        """Marks branches whose trunk failed as failed."""
        for task in [task for task in self._pending if task.run.trunk in self._failures]:
            self._pending.remove(task)
            self._failures[task.run.name] = f"its trunk {task.run.trunk} failed"

    @contextlib.contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """Forwards termination signals to every process, which saves and exits."""

        def forward(number: int, frame: object) -> None:
            del frame
            self._signals.append(number)
            self._send(number)

        with signals.handle_signals(forward):
            yield

    def _send(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.popen.send_signal(number)


def _last_line(log: Path, start: int) -> str:
    """The last line of a log after its first `start` bytes; empty without any."""
    text = log.read_bytes()[start:].decode("utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
