"""End of a start that is stuck: it prints the stacks of all threads, and launchers start it again.

A start can wait forever without an error: for a mount that is gone, for a save that never ends, or
for another process that waits. A thread notices that no sign of life has come for a long time.

The thread prints the stacks after half of this time, and ends the process after all of it. So each
process of several prints its stacks before the first one ends. Some work gives no sign for long and
must go on. The thread notes how far such work has come when it prints, and compares at the end:

    compilations  the time that this process has spent on processors, while one of its threads is in
                  JAX's compiler. At least 1% of the limit has to be added.
    saves         the files below the checkpoints, which grow while any process writes.

A process that has compiled waits for the others in `paused`: each of them has its own watch.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from anytime_jax.distributed import lost_process_exit

_COMPILER = os.path.join("jax", "_src", "compiler.py")
_POLL_SECONDS = 1.0


class Watch:
    """Context manager that ends the process after `seconds` without a call of `alive`; 0 for never.

    It begins with the first call. `list_files` returns what is below the checkpoints, and
    `describe` the end of the message.
    """

    def __init__(
        self, seconds: float, list_files: Callable[[], Any], describe: Callable[[], str] = str
    ):
        self._seconds, self._list_files, self._describe = seconds, list_files, describe
        self._last = float("inf")
        self._closed = threading.Event()

    def __enter__(self) -> "Watch":
        if self._seconds:
            threading.Thread(target=self._watch, name="silence", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()

    def alive(self) -> None:
        """Gives a sign of life."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time of the block."""
        self._last = float("inf")
        yield
        self.alive()

    def _watch(self) -> None:
        half, noted = self._seconds / 2, None
        while not self._closed.wait(min(_POLL_SECONDS, half / 10)):
            last, now = self._last, time.monotonic()
            if now - last < half:
                noted = None
            elif noted is None:
                noted = now, self._progress()
                self._print_stacks()
            # Not the time since the last sign: this process may have been stopped and continued.
            elif now - noted[0] >= half:
                if self._progress() != noted[1]:
                    noted = None
                elif self._last == last and not self._closed.is_set():
                    self._end()
                    return

    def _progress(self) -> tuple[Any, ...]:
        """Returns what changes while this process compiles, or any process writes a checkpoint."""
        frames = sys._current_frames().values()
        is_compiling = any(map(_is_in_compiler, frames))
        spent = sum(os.times()[:4]) // (self._seconds / 100) if is_compiling else None
        files = []

        def find() -> None:
            with contextlib.suppress(Exception):
                files.append(self._list_files())

        finding = threading.Thread(target=find, daemon=True)  # the storage may hang
        finding.start()
        finding.join(self._seconds / 4)
        return spent, *files

    def _print_stacks(self) -> None:
        minutes = f"{self._seconds / 120:.3g} minutes"
        text = (
            f"nothing has happened for {minutes}; after {minutes} more this process ends, unless "
            "it compiles or a checkpoint is written"
        )
        with contextlib.suppress(Exception):
            os.write(2, f"\n{text} (guard.silence); the stacks of all threads:\n".encode())
            faulthandler.dump_traceback(2, all_threads=True)

    def _end(self) -> None:
        minutes = f"{self._seconds / 60:.3g} minutes"
        lost_process_exit.end(
            lambda: (
                f"nothing has happened for {minutes} (guard.silence), see the stacks above"
                f"{self._describe()}. Start the run again with the same command, which resumes it"
            )
        )


def _is_in_compiler(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER):
            return True
        frame = frame.f_back
    return False
