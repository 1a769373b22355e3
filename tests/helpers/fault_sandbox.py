"""Sandboxes of random faults: a small run and its data, and what is required of every command."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import random
import shutil
import signal
import threading
import time
from typing import Any

import small_run
from bucket_server import BucketServer
from forked_starts import Start, Starts
from training_runs import bits

LIMIT_SECONDS = 60  # of any command, in which a run of 20 updates takes about three
STOP = "--config.stop=2x"  # 20 updates; the run of a sandbox was stopped after 10
STOP_LATER = "--config.stop=4x"  # 40 updates: time for something to happen
_LAUNCH = threading.Lock()
_NOISE = ("Traceback", "unexpected ", "Exception ignored", "was never awaited", "Warning:")
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class Violation(AssertionError):
    """A promise that was not kept."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Original:
    """What sandboxes are copies of: run and data, another run of another seed, the final arrays."""

    folder: pathlib.Path
    arrays: dict[int, dict[Any, Any]]
    losses: str
    server: BucketServer

    @classmethod
    def make(cls, folder: pathlib.Path, starts: Starts) -> "Original":
        """Prepares the data and trains the runs."""
        small_run.prepare_dataset(folder)
        for name, seed in (("run", 0), ("other", 1)):
            file = f"{name}.py"
            small_run.write_config(folder / file, name, "data", seed=seed)
            start = starts.launch(f"--config={file}", folder=folder)
            assert start.wait() == 0, start.output
        whole = shutil.copytree(folder, folder.with_name("whole"))
        for stop in (STOP, STOP_LATER):
            start = starts.launch("--config=run.py", stop, folder=whole)
            assert start.wait() == 0, start.output
        start = starts.launch("--run=run", command="evaluate", folder=folder)
        assert start.wait() == 0, start.output
        arrays = {step: bits(whole / "run", step) for step in (20, 40)}
        server = BucketServer()
        os.environ.update(server.environment)  # before the libraries read it
        return cls(folder, arrays, start.output, server)


class Sandbox:
    """A folder with a run, its data and its configuration, which one fault may damage."""

    def __init__(
        self, folder: pathlib.Path, original: Original, starts: Starts, draw: random.Random
    ):
        """Copies the original."""
        self.folder = shutil.copytree(original.folder, folder)
        self.run, self.data = folder / "run", folder / "data"
        self.draw, self.original = draw, original
        self.description = ""  # of the fault, if a promise is broken
        self.ended: list[Ended] = []
        self._starts = starts

    def begin(self, command: str, *argv: str, **spec: Any) -> Start:
        """Starts a command in the folder, in a process with the faults of `process_faults`."""
        probe = ("process_faults", "apply", spec)
        with _LAUNCH:
            return self._starts.launch(
                *argv, command=command, folder=self.folder, separate_errors=True, probe=probe
            )

    def end(self, start: Start, limit: float = LIMIT_SECONDS) -> Ended:
        """Waits for the end of a command and checks what is required of all."""
        try:
            status = start.wait(limit)
        except AssertionError as error:
            start.kill(signal.SIGABRT)  # prints the stack of every thread
            with contextlib.suppress(AssertionError):
                start.wait(5)
            start.kill(signal.SIGKILL)
            text = f"{start.output[-300:]} {start.errors[-4000:]}"
            raise Violation(f"did not end within {limit:.0f} s: {text}") from error
        ended = Ended(status, start.output, start.errors, time.monotonic() - start.began)
        self.ended.append(ended)
        text = f"status {status}, output {ended.output[-300:]!r}, errors {ended.errors[-4000:]!r}"
        if any(noise in ended.output + ended.errors for noise in _NOISE):
            raise Violation(f"noise: {text}")
        if -status in _CRASHES:
            raise Violation(f"a crash: {text}")
        if status not in (0, 1, 2, 75, 130, 141) and status > 0:
            raise Violation(f"an unknown {text}")
        lines = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
        if lines != ended.errors.splitlines()[len(ended.errors.splitlines()) - len(lines) :]:
            raise Violation(f"lines of error that are not at the end: {text}")
        if len(lines) > 1 and status != 2:
            raise Violation(f"several lines of error: {text}")
        if lines and status not in (1, 2, 75):
            raise Violation(f"an error without its status: {text}")
        return ended

    def do(self, command: str, *argv: str, limit: float = LIMIT_SECONDS, **spec: Any) -> Ended:
        """Runs a command to its end."""
        return self.end(self.begin(command, *argv, **spec), limit)

    def train(self, *argv: str, stop: str = STOP, **spec: Any) -> Ended:
        """Resumes the run to its stop; if it says that it is done, its arrays must be the right."""
        ended = self.do("train", "--config=run.py", stop, *argv, **spec)
        if ended.status == 0:
            step = 20 if stop == STOP else 40
            if not (self.run / "checkpoints" / str(step)).is_dir():
                raise Violation(f"status 0, and no checkpoint at {step}: {ended.output[-500:]}")
            if bits(self.run, step) != self.original.arrays[step]:
                raise Violation(f"other arrays at {step} than those of the unbroken run")
        return ended

    def recover(self, stop: str = STOP) -> None:
        """Checks that the run can be completed, with the right arrays, and verified."""
        ended = self.train(stop=stop)
        if ended.status:
            raise Violation(f"the run does not resume: {ended.errors[-500:]}")
        ended = self.do("runs", "--run=run", "--verify")
        if ended.status:
            raise Violation(f"the completed run does not verify: {ended.output[-500:]}")

    def evaluate(self) -> Ended:
        """Evaluates the run; losses that are printed are the right ones."""
        ended = self.do("evaluate", "--run=run")
        if ended.status == 0 and ended.output != self.original.losses:
            raise Violation(f"other losses: {ended.output}")
        return ended

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all files of run and data."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            digest.update(str(path).encode("utf-8", "surrogateescape"))
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.read_bytes())
        return digest.hexdigest()
