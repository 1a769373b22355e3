"""Exit of the remaining processes, with a message, when a multi-host run loses a process.

When a process is lost, either a collective raises an error in the others, or JAX's runtime notices
and calls C's `abort()` in a thread of its own. JAX has no public hook for that, so `handle_abort`
handles the signal that `abort()` raises. A start that is stuck ends in the same way (`silence`).
"""

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from anytime_jax.errors import ProcessLostError

_MAX_SECONDS = 15  # time limit for the message, even if the storage of the checkpoints hangs
_is_ending = threading.Lock()
_make_message: Callable[[str], str] = str


def set_message(make_message: Callable[[str], str]) -> None:
    """Sets the function that makes the message from what the runtime said."""
    global _make_message
    _make_message = make_message


def make_error(cause: object) -> ProcessLostError:
    """Returns the error that ends this process; `cause` is what the runtime said."""
    return ProcessLostError(_make_message(str(cause)[:200]))


def handle_abort() -> None:
    """Makes an abort of this process end it as a ProcessLostError does."""
    _libc.signal(signal.SIGABRT, _abort_handler)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _abort_handler(number: int) -> None:
    """Handles SIGABRT in the aborting thread; Python's handlers run later, in the main thread.

    It waits for the interpreter's lock, which JAX releases wherever it waits for other processes.
    """
    del number
    end(lambda: str(make_error("JAX aborted this one: see above")))


def end(make_line: Callable[[], str]) -> NoReturn:
    """Ends this process at once, from any thread, with a line and the status of a lost process."""
    if not _is_ending.acquire(blocking=False):
        time.sleep(2 * _MAX_SECONDS)  # another thread is ending this process
    try:
        signal.alarm(_MAX_SECONDS)  # the default action kills this process
        with contextlib.suppress(OSError):
            os.write(2, f"error: {make_line()}\n".encode())
    finally:
        os._exit(os.EX_TEMPFAIL)


def _load_libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    return libc


_libc = _load_libc()
