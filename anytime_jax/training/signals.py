"""Signals that ask a run to save and end: SIGINT, SIGTERM and notices of preemption."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from anytime_jax.distributed import processes


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGINT or SIGTERM has asked the run to save and end.

    In a run of one process, a second SIGINT raises KeyboardInterrupt.
    """
    if not processes.is_single():
        yield processes.PreemptionSignal()
        return
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        del frame
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        os.write(1, b"\nfinishing this update, then saving ...\n")  # print may be interrupted

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
