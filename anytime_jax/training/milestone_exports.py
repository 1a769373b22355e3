"""Exports of a run at its milestones, made while the run trains.

A process of the command `export`, beside the run and on the CPU, reads the weights of a complete
checkpoint. So updates do not wait, an export that fails does not end the run, and several processes
of a run need not agree on anything.
"""

import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.config.run_config import Config
from anytime_jax.errors import needs_extra, within
from anytime_jax.formats import model_reader
from anytime_jax.storage.paths import storage_path

DIRECTORY = "exports"  # of a run
_POLL_SECONDS = 2.0  # between looks at a save: in a bucket, each is a request


def check(config: Config) -> None:
    """Raises an InputError if no export can be made of a run that asks for one."""
    if config.checkpoint.export:
        with within("config"):
            model_reader.find_format(config.model)
        with needs_extra("export"):
            import safetensors  # noqa: F401
            import tokenizers  # noqa: F401
            import yaml  # noqa: F401


def output(config: Config, step: int) -> Path:
    """Returns the directory of the export of a step."""
    return storage_path(config.directory) / DIRECTORY / f"{config.checkpoint.export}-{step}"


def is_due(config: Config, step: int, stop: float) -> bool:
    """Whether the checkpoint of a step, of a run that ends at `stop`, is exported."""
    return bool(config.checkpoint.export) and (step == stop or config.clock.is_milestone(step))


def missing(config: Config, stop: float) -> list[int]:
    """Returns the saved steps whose export is due and not there."""
    due = [x for x in saved_steps(storage_path(config.directory)) if is_due(config, x, stop)]
    return [step for step in due if not _is_made(config, step)]


def _is_made(config: Config, step: int) -> bool:
    return (output(config, step) / model_reader.PROVENANCE).is_file()


class MilestoneExports:
    """Exports of one run, made one after another; only its primary process makes any.

    `say` prints a line about each. `close` ends an export that is under way: the next start makes
    up for it.
    """

    def __init__(self, config: Config, say: Callable[[str], None]):
        """Starts a thread, which waits for the exports to make."""
        self._config, self._say = config, say
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "export")
        self._jobs: list[concurrent.futures.Future[None]] = []
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def add(self, step: int) -> None:
        """Makes the export of a step as soon as its checkpoint is complete; returns at once."""
        self._jobs.append(self._thread.submit(self._make, step))

    @property
    def is_done(self) -> bool:
        """Whether all exports have been made, or have failed."""
        return all(job.done() for job in self._jobs)

    def close(self) -> None:
        """Ends the thread, and an export that is under way."""
        self._closing.set()
        with contextlib.suppress(AttributeError, OSError):  # there is none, or it has ended
            self._process.kill()  # type: ignore[union-attr]
        self._thread.shutdown(cancel_futures=True)

    def _make(self, step: int) -> None:
        config, directory = self._config, storage_path(self._config.directory)
        try:
            while step not in saved_steps(directory):
                if self._closing.wait(_POLL_SECONDS):
                    return
            result = self._run(
                f"--run={config.directory}",
                f"--step={step}",
                f"--weights={config.checkpoint.export}",
                f"--output={output(config, step)}",
                *(f"--trust={package}" for package in config.packages()),
            )
        except Exception as error:  # whatever it is, the run goes on
            result = f"{type(error).__name__}: {error}"
        if _is_made(config, step):
            self._say(f"export   {output(config, step)}")
        elif not self._closing.is_set():
            self._say(f"export   none of step {step:,}; the next start tries again: {result}")

    def _run(self, *arguments: str) -> str:
        """Runs the command and returns the last line that it prints."""
        command = [sys.executable, "-m", "anytime_jax", "export", *arguments]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            encoding="utf-8",
            errors="replace",
            process_group=0,  # Ctrl-C is for the run, which ends it
        ) as self._process:
            if self._closing.is_set():  # `close` came before the process
                self._process.kill()
            lines = self._process.communicate()[0].split("\n")
        return next(filter(None, reversed(lines)), f"status {self._process.returncode}")
