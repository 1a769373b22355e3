"""Ctrl-C outside the work of a command: a line and an exit status, from the first import on.

This module is imported before all others, so it imports only what the interpreter has loaded by
then, and `signal`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

INTERRUPTED = 130  # 128 + SIGINT


def on_interrupt(handler: Callable[..., object]) -> None:
    """Sets a handler of Ctrl-C, unless this process was told to ignore it (`&` in a shell)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def end_interrupted(*signal_and_frame: object) -> None:
    """Handler of SIGINT that ends the process if there is nothing to clean up."""
    del signal_and_frame
    try:  # noqa: SIM105  (contextlib takes a part of the time without a handler)
        os.write(2, b"\ninterrupted\n")
    except OSError:
        pass
    os._exit(INTERRUPTED)
