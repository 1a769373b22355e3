"""Signals that ask a run to save and end, or a command that follows a run to end."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anytime_jax.distributed import processes

# Ctrl-C, notices of preemption, a closed terminal, and what schedulers send before a limit.
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)


@contextlib.contextmanager
def handle_signals(
    handler: Callable[[int, Any], None], numbers: Sequence[int] = SIGNALS
) -> Iterator[None]:
    """Calls a function on signals, except on signals that this process was told to ignore."""
    handled = [x for x in numbers if signal.getsignal(x) is not signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether one of `SIGNALS` has asked the run to save and end.

    In a run of one process, a second SIGINT raises KeyboardInterrupt.
    """
    if not processes.is_single():
        # JAX handles SIGTERM, and tells the other processes of it.
        others = [number for number in SIGNALS if number != signal.SIGTERM]
        with handle_signals(lambda number, frame: os.kill(os.getpid(), signal.SIGTERM), others):
            yield processes.PreemptionSignal()
        return
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        del frame
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        with contextlib.suppress(OSError):  # the terminal may be closed; print may be interrupted
            os.write(
                1, b"\nfinishing this update, then saving ... (Ctrl-C now: end at once, unsaved)\n"
            )

    with handle_signals(handle):
        yield lambda: bool(received)


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends the block at Ctrl-C or SIGTERM, the ends of a command that follows a run."""
    stop = handle_signals(signal.default_int_handler, [signal.SIGTERM])
    with contextlib.suppress(KeyboardInterrupt), stop:
        yield
